//! Blocks with a mapping of their own, and pieces of the main arena that were mapped since the break was blocked.
//!
//! glibc keeps no list of either, only how many bytes they are. Both begin with a chunk header at a page's begin, in
//! an anonymous mapping that the kernel may have merged with others, so the begins of pages are searched for headers
//! until the books are satisfied.
//!
//! ```text
//! a block's mapping    prev_size 0 (or the bytes skipped for alignment), size | IS_MMAPPED, whole pages
//! a piece              prev_size 0, size | PREV_INUSE, chunks up to fenceposts at a page's end, or to the top
//! ```
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        reason = "offsets of known layouts, added to addresses that were checked to lie in a mapping; places in lists made here"
    )
)]

use alloc::vec::Vec;

use super::books::Settings;
use super::chunk_log::Chunk;
use super::locate::Anatomy;
use super::mapping::Mapping;
use super::memory::{ReadMemory, Window};
use super::residency::Residency;
use super::walk::{IS_MAPPED, PREVIOUS_IN_USE, is_size};

/// Pages whose begins are looked at, at most: 32 GiB of memory that is not malloc's.
const MOST_PAGES: u64 = 8 << 20;
/// Pages looked at with one batch of reads.
const BATCH: u64 = 512;

/// A block with a mapping of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedBlock {
    /// Begin and end of the mapping.
    pub start: u64,
    pub end: u64,
    pub chunk: u64,
    pub chunk_bytes: u64,
}

/// A stretch of the main arena outside the break's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub start: u64,
    /// Where its chunks end: at the top, or behind its fenceposts.
    pub end: u64,
    pub holds_top: bool,
}

#[derive(Debug, Default)]
pub struct Found {
    pub blocks: Vec<MappedBlock>,
    pub pieces: Vec<Piece>,
}

pub(super) struct Search<'a, M: ?Sized> {
    pub memory: &'a M,
    pub anatomy: &'a Anatomy,
    pub settings: &'a Settings,
    pub residency: &'a Residency,
    /// Bytes of the main arena that were not found in the break's range.
    pub pieces_missing: u64,
    pub main_top: u64,
    pub pages_left: u64,
}

impl<'a, M: ReadMemory + ?Sized> Search<'a, M> {
    pub fn new(memory: &'a M, anatomy: &'a Anatomy, settings: &'a Settings, residency: &'a Residency) -> Self {
        Search {
            memory,
            anatomy,
            settings,
            residency,
            pieces_missing: 0,
            main_top: 0,
            pages_left: MOST_PAGES,
        }
    }

    /// Looks through the anonymous mappings outside of `taken`, which is in order.
    pub fn run(mut self, mappings: &[Mapping], taken: &[(u64, u64)]) -> Found {
        let mut found = Found::default();
        let mut unexplained = Vec::new();
        for mapping in mappings
            .iter()
            .filter(|mapping| mapping.is_anonymous() && mapping.path != "[heap]")
        {
            for (start, end) in gaps(mapping.start, mapping.end, taken) {
                self.search(start, end, &mut found, &mut unexplained);
            }
        }
        // Blocks aligned to more than 16 bytes have their header further up.
        for (start, end) in unexplained {
            if !self.blocks_missing(&found) {
                break;
            }
            if let Some(block) = self.aligned_block(start, end) {
                found.blocks.push(block);
            }
        }
        found.blocks.sort_unstable_by_key(|block| block.start);
        found
    }

    fn blocks_missing(&self, found: &Found) -> bool {
        (found.blocks.len() as u64) < u64::from(self.settings.mapped_blocks)
    }

    fn search(&mut self, start: u64, end: u64, found: &mut Found, unexplained: &mut Vec<(u64, u64)>) {
        let page = self.residency.page();
        let mut address = start;
        while address < end && (self.blocks_missing(found) || self.pieces_missing > 0) {
            let (present, run) = self.residency.run(address);
            if !present {
                address = address.saturating_add(run);
                continue;
            }
            let header = (self.memory.word(address), self.memory.word(address.wrapping_add(8)));
            if let (Ok(previous), Ok(field)) = header {
                if let Some(block) = self.block(address, address, previous, field, end) {
                    found.blocks.push(block);
                    address = block.end;
                    continue;
                }
                if let Some(piece) = self.piece(address, previous, field, end) {
                    self.pieces_missing = self.pieces_missing.saturating_sub(piece.end - piece.start);
                    found.pieces.push(piece);
                    // The top's own bytes are behind it: they hold no headers.
                    address = piece.end.next_multiple_of(page).max(address + page);
                    continue;
                }
            }
            if unexplained.len() < 4096 {
                unexplained.push((address, end));
            }
            let Some(next) = self.next_candidate(address + page, end.min(address.saturating_add(run))) else {
                return;
            };
            address = next;
        }
    }

    /// The next page from `from` on whose first words may be a header; `to` where there is none. None: enough seen.
    fn next_candidate(&mut self, from: u64, to: u64) -> Option<u64> {
        let page = self.residency.page();
        let (mut places, mut words) = (Vec::new(), Vec::new());
        let mut address = from;
        while address < to {
            let pages = ((to - address) / page).clamp(1, BATCH);
            self.pages_left = self.pages_left.checked_sub(pages)?;
            places.clear();
            places.extend((0..pages).flat_map(|index| [address + index * page, address + index * page + 8]));
            self.memory.words(&places, &mut words);
            let hit = words.chunks_exact(2).position(|pair| match pair {
                [Some(0), Some(field)] => {
                    field & 7 == IS_MAPPED || self.pieces_missing > 0 && field & 7 == PREVIOUS_IN_USE
                }
                _ => false,
            });
            if let Some(hit) = hit {
                return Some(address + hit as u64 * page);
            }
            address += pages * page;
        }
        Some(to.max(from))
    }

    fn block(&self, start: u64, chunk: u64, previous: u64, field: u64, end: u64) -> Option<MappedBlock> {
        let size = field & !7;
        let length = (chunk - start)
            .checked_add(size)?
            .checked_add(self.anatomy.mapped_extra)?;
        let sound = field & 7 == IS_MAPPED
            && previous == chunk - start
            && size >= 32
            && length.is_multiple_of(self.residency.page())
            && length <= end - start;
        if sound {
            self.memory.note(chunk, &previous.to_le_bytes());
            self.memory.note(chunk + 8, &field.to_le_bytes());
        }
        sound.then_some(MappedBlock {
            start,
            end: start + length,
            chunk,
            chunk_bytes: size,
        })
    }

    fn aligned_block(&self, start: u64, end: u64) -> Option<MappedBlock> {
        (5..40).map(|shift| 1u64 << shift).find_map(|alignment| {
            let chunk = start.checked_add(16)?.checked_next_multiple_of(alignment)? - 16;
            if chunk <= start || chunk >= end || !self.residency.is_present(chunk) {
                return None;
            }
            let (previous, field) = (self.memory.word(chunk).ok()?, self.memory.word(chunk + 8).ok()?);
            self.block(start, chunk, previous, field, end)
        })
    }

    fn piece(&self, start: u64, previous: u64, field: u64, end: u64) -> Option<Piece> {
        if self.pieces_missing == 0 || previous != 0 || field & 7 != PREVIOUS_IN_USE {
            return None;
        }
        let mut window = Window::new(self.memory, end);
        let mut address = start;
        while address < end {
            if address == self.main_top {
                return Some(Piece {
                    start,
                    end: address,
                    holds_top: true,
                });
            }
            let (_, field) = window.header(address).ok()?;
            let size = field & !7;
            let closes = (address + 32).is_multiple_of(self.residency.page());
            if size == 16 && closes && window.header(address + 16).ok()?.1 & !7 == 16 {
                return Some(Piece {
                    start,
                    end: address + 32,
                    holds_top: false,
                });
            }
            if size != 16 && !is_size(size, end - address) || field & IS_MAPPED != 0 {
                return None;
            }
            address += size;
        }
        None
    }
}

impl MappedBlock {
    pub fn as_chunk(&self) -> Chunk {
        Chunk {
            address: self.chunk,
            size: self.chunk_bytes,
            usage: super::chunk_log::Use::InUse,
        }
    }
}

/// What [start, end) leaves when `taken` (in order) is cut out.
fn gaps(start: u64, end: u64, taken: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut from = start;
    for &(begin, finish) in taken.iter().filter(|(begin, finish)| *finish > start && *begin < end) {
        if from < begin {
            found.push((from, begin));
        }
        from = from.max(finish);
    }
    if from < end {
        found.push((from, end));
    }
    found
}
