//! From header to header through one stretch of heap.
//!
//! ```text
//! address  +0 prev_size   of the chunk below, where that is free
//!          +8 size        and flags: 1 the chunk below is in use, 2 mapped on its own, 4 of a thread arena
//!         +16 the block (in use), or the links of its list (free)
//! ```
//!
//! Whether a chunk is in use stands in the header of the next one, so each is noted one step late. Only the last chunk
//! before the top has its answer in the top's header.
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        reason = "offsets of known layouts, added to addresses that were checked to lie in a mapping; places in lists made here"
    )
)]

use alloc::vec::Vec;

use super::chunk_log::{ChunkLog, Use};
use super::lists::Clues;
use super::memory::{ReadMemory, Unreadable, Window};
use super::problem::Problem;

pub(super) const PREVIOUS_IN_USE: u64 = 1;
pub(super) const IS_MAPPED: u64 = 2;
/// The smallest chunk that can be handed out.
pub(super) const LEAST_CHUNK: u64 = 32;
const FENCE: u64 = 16;
/// Breaks move by whole pages, and none is smaller.
const LEAST_PAGE: u64 = 4096;

/// How far the next chunk is looked for behind fenceposts: what others took from the break in between.
const FOREIGN_SEARCH: u64 = 256 << 20;
/// So many headers in a row are no coincidence.
const CONVINCING: usize = 12;

/// How a stretch ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    /// At a top chunk, whose header says this of the chunk below.
    Top { previous_in_use: bool, previous_size: u64 },
    /// At fenceposts.
    Fence,
}

/// Walks [start, end); gives the chunks, and where the walk came to (short of `end` when something was wrong).
pub(super) fn walk<M: ReadMemory + ?Sized>(
    memory: &M,
    start: u64,
    end: u64,
    ending: Ending,
    clues: &mut Clues<'_>,
    problems: &mut Vec<Problem>,
) -> (ChunkLog, u64) {
    let mut stretch = Stretch {
        window: Window::new(memory, end.saturating_add(16)),
        end,
        log: ChunkLog::default(),
        open: None,
        noted: start,
    };
    let result = stretch.run(start, clues, problems);
    match (result, ending) {
        (
            Ok(()),
            Ending::Top {
                previous_in_use,
                previous_size,
            },
        ) => {
            stretch.note_open(previous_in_use, previous_size, problems);
        }
        (Ok(()), Ending::Fence) => {
            // Fenceposts are missing: the last chunk's state is not known; in use is the careful guess.
            if let Some((address, size)) = stretch.open {
                problems.push(Problem::ChunkSize { address, size });
            }
            stretch.note_open(true, 0, problems);
        }
        (Err(problem), _) => problems.push(problem),
    }
    (stretch.log, stretch.noted)
}

struct Stretch<'m, M: ?Sized> {
    window: Window<'m, M>,
    end: u64,
    log: ChunkLog,
    /// The chunk whose use the next header tells.
    open: Option<(u64, u64)>,
    /// All chunks below are in the log.
    noted: u64,
}

impl<M: ReadMemory + ?Sized> Stretch<'_, M> {
    fn run(&mut self, start: u64, clues: &mut Clues<'_>, problems: &mut Vec<Problem>) -> Result<(), Problem> {
        let mut address = start;
        while address < self.end {
            let (previous, field) = self.header(address)?;
            let size = field & !7;
            if size == 0 && address + FENCE == self.end && field & PREVIOUS_IN_USE != 0 {
                // The last word of a thread arena's old segment. What stands before it is its first fencepost.
                self.fence_open();
                self.note(FENCE, Use::Fence);
                return Ok(());
            }
            self.note_open(field & PREVIOUS_IN_USE != 0, previous, problems);
            if size == FENCE && address + FENCE < self.end {
                address = self.cross_fence(address)?;
                continue;
            }
            if !is_size(size, self.end - address) || field & IS_MAPPED != 0 {
                return Err(Problem::ChunkSize { address, size: field });
            }
            if clues.full() {
                return Err(Problem::TooMuch { address });
            }
            clues.look(&mut self.window, address, size);
            self.open = Some((address, size));
            address += size;
            if self.log.weight() >= clues.log_budget {
                return Err(Problem::TooMuch { address });
            }
        }
        Ok(())
    }

    fn header(&mut self, address: u64) -> Result<(u64, u64), Problem> {
        self.window
            .header(address)
            .map_err(|Unreadable { address }| Problem::Unreadable { address })
    }

    fn note(&mut self, size: u64, usage: Use) {
        self.log.push(size, usage);
        self.noted += size;
    }

    fn note_open(&mut self, in_use: bool, footer: u64, problems: &mut Vec<Problem>) {
        let Some((address, size)) = self.open.take() else {
            return;
        };
        if !in_use && footer != size {
            problems.push(Problem::FreeChunkFooter { address, size, footer });
        }
        self.note(size, if in_use { Use::InUse } else { Use::Free });
    }

    fn fence_open(&mut self) {
        if let Some((_, size)) = self.open.take() {
            self.note(size, Use::Fence);
        }
    }

    /// Behind fenceposts: at the end, or at the next chunk that malloc made after somebody else had moved the break.
    fn cross_fence(&mut self, fence: u64) -> Result<u64, Problem> {
        let mut address = fence;
        while address < self.end && self.header(address)?.1 & !7 == FENCE {
            address += FENCE;
        }
        if address + FENCE == self.end && self.header(address)?.1 & !7 == 0 {
            address = self.end;
        }
        // They come in pairs, and close what ended with the break, at a page's end. A lone one is a size of 16 that
        // somebody has written.
        if address < fence + 2 * FENCE || address < self.end && !address.is_multiple_of(LEAST_PAGE) {
            return Err(Problem::ChunkSize {
                address: fence,
                size: FENCE,
            });
        }
        for _ in 0..(address - fence) / FENCE {
            self.note(FENCE, Use::Fence);
        }
        if address == self.end {
            return Ok(address);
        }
        let foreign = address;
        let search_end = self.end.min(address.saturating_add(FOREIGN_SEARCH));
        while address < search_end {
            if self.is_chain(address) {
                self.note(address - foreign, Use::Foreign);
                return Ok(address);
            }
            address += 16;
        }
        if search_end == self.end {
            self.note(self.end - foreign, Use::Foreign);
            return Ok(self.end);
        }
        Err(Problem::ChunkSize {
            address: foreign,
            size: 0,
        })
    }

    /// Headers follow each other from here, up to the end or for long enough.
    fn is_chain(&mut self, start: u64) -> bool {
        let mut address = start;
        for step in 0..CONVINCING {
            if address == self.end {
                return true;
            }
            let Ok((_, field)) = self.header(address) else {
                return false;
            };
            let size = field & !7;
            let first = step == 0;
            if first && field & 7 != PREVIOUS_IN_USE || field & IS_MAPPED != 0 || !is_size(size, self.end - address) {
                return false;
            }
            address += size;
        }
        true
    }
}

/// A size that a chunk can have where `room` bytes are left.
pub(super) fn is_size(size: u64, room: u64) -> bool {
    size >= LEAST_CHUNK && size.is_multiple_of(16) && size <= room
}
