//! What a large free chunk was before: many small blocks, or few large ones.
//!
//! Free chunks that merge keep the headers they had, inside of the chunk they become part of:
//!
//! ```text
//!                    prev_size of an old header             size of it
//! freed upwards      back to the begin of the free chunk    of the small block that it was
//! freed downwards    -                                      up to the end of the free chunk
//! freed in any order   -                                      up to an older header, and so on
//! ```
//!
//! A stretch out of the middle tells: of small blocks it holds such headers, of large ones only what the program wrote.
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        reason = "offsets of known layouts, added to addresses that were checked to lie in a mapping; places in lists made here"
    )
)]

use alloc::vec;

use super::elf::u64_at;
use super::memory::ReadMemory;
use super::residency::Residency;
use super::walk::{IS_MAPPED, is_size};

/// Old headers that are no coincidence, and how many must lead to each other where only that speaks for them.
const CONVINCING: usize = 3;
const CHAIN: usize = 4;
const STRETCH: u64 = 256 << 10;

/// True where the middle of a free chunk holds headers of small blocks.
pub(super) fn was_small<M: ReadMemory + ?Sized>(memory: &M, residency: &Residency, start: u64, end: u64) -> bool {
    let page = residency.page();
    let middle = (start + (end - start) / 2) & !(page - 1);
    let (present, run) = residency.run(middle);
    let length = STRETCH.min(run).min(end.saturating_sub(middle)) & !(page - 1);
    if !present || length == 0 {
        return false;
    }
    let mut bytes = vec![0; length as usize];
    if memory.read(middle, &mut bytes).is_err() {
        return false;
    }
    let stretch = Stretch {
        bytes: &bytes,
        at: middle,
        start,
        end,
    };
    let (mut found, mut last) = (0, 0);
    for address in (middle..middle + length)
        .step_by(16)
        .filter(|address| stretch.is_old_header(*address))
    {
        if address - last <= 16 {
            // Chunks are longer than that: this is some array of numbers that look like sizes.
            found = 0;
            last = address;
            continue;
        }
        found += 1;
        last = address;
        // Where the chunk below was in use, prev_size is the program's.
        let upwards = stretch.word(address) == Some(address - start);
        for place in [(address, upwards), (address + 8, true)]
            .into_iter()
            .filter(|place| place.1)
        {
            memory.note(place.0, &stretch.word(place.0).unwrap_or(0).to_le_bytes());
        }
        // The one behind has to be seen, too, before this one counts.
        if found > CONVINCING {
            return true;
        }
    }
    false
}

/// Bytes out of the middle of a free chunk from `start` to `end`.
struct Stretch<'a> {
    bytes: &'a [u8],
    at: u64,
    start: u64,
    end: u64,
}

impl Stretch<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        u64_at(self.bytes, usize::try_from(address.checked_sub(self.at)?).ok()?)
    }

    /// prev_size and size, where they could be those of a chunk in here.
    fn header(&self, address: u64) -> Option<(u64, u64)> {
        let (previous, field) = (self.word(address)?, self.word(address + 8)?);
        let size = field & !7;
        (is_size(size, self.end - address) && field & IS_MAPPED == 0).then_some((previous, size))
    }

    fn is_old_header(&self, address: u64) -> bool {
        let Some((previous, size)) = self.header(address) else {
            return false;
        };
        if previous == address - self.start || size == self.end - address {
            return true;
        }
        let mut next = address;
        for _ in 0..CHAIN {
            let Some((_, size)) = self.header(next) else {
                return false;
            };
            next += size;
        }
        true
    }
}
