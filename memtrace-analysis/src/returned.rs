//! The book of returns: what each free gave back to the system, and what other calls did.

use crate::chunk::SizeField;
use crate::event::{Entry, Frame};
use crate::meaning::{Return, ReturnWay};
use crate::report::Returned;
use crate::threads::Call;

#[derive(Clone, Debug, Default)]
pub struct ReturnBook {
    /// But for what chunks come to.
    sums: Returned,
    munmap_chunks: Chunks,
    trim_chunks: Chunks,
}

/// Chunk bytes of frees.
#[derive(Clone, Copy, Debug, Default)]
struct Chunks {
    bytes: u64,
    /// There was one whose chunk was not seen.
    unseen: bool,
}

impl Chunks {
    fn known(self) -> Option<u64> {
        (!self.unseen).then_some(self.bytes)
    }
}

fn add_chunk(chunks: &mut Chunks, frame: &Frame) {
    match frame.chunk {
        Some(chunk) => add(&mut chunks.bytes, SizeField(chunk).bytes()),
        None => chunks.unseen = true,
    }
}

const fn add(sum: &mut u64, value: u64) {
    *sum = sum.saturating_add(value);
}

impl ReturnBook {
    /// Enters what an allocator call gave back; `call` remembers what it has been counted for already.
    pub fn enter(&mut self, returned: &Return, frame: &Frame, call: &mut Call) {
        let sums = &mut self.sums;
        let bytes = returned.bytes;
        let by_munmap = matches!(returned.way, ReturnWay::Munmap | ReturnWay::Remapped);
        match frame.entry {
            Entry::Free if by_munmap => {
                add(&mut sums.by_free_munmap_bytes, bytes);
                if !call.unmapped {
                    add(&mut sums.frees_munmap, 1);
                    add_chunk(&mut self.munmap_chunks, frame);
                }
            }
            Entry::Free => {
                add(&mut sums.by_free_trim_bytes, bytes);
                if !call.trimmed {
                    add(&mut sums.frees_trim, 1);
                    add_chunk(&mut self.trim_chunks, frame);
                }
            }
            Entry::MallocTrim => add(&mut sums.by_trim_bytes, bytes),
            Entry::Realloc => add(&mut sums.by_realloc_bytes, bytes),
            _ => add(&mut sums.by_other_calls_bytes, bytes),
        }
        if by_munmap {
            call.unmapped = true;
        } else {
            call.trimmed = true;
        }
    }

    /// The sums, given the blocks that free let go of and their bytes, where these were counted.
    pub fn report(&self, freed: Option<(u64, u64)>) -> Returned {
        let led = self.sums.frees_munmap.saturating_add(self.sums.frees_trim);
        let led_bytes = self.munmap_chunks.bytes.saturating_add(self.trim_chunks.bytes);
        Returned {
            frees_munmap_chunk_bytes: self.munmap_chunks.known(),
            frees_trim_chunk_bytes: self.trim_chunks.known(),
            frees_nothing: freed.map(|(blocks, _)| blocks.saturating_sub(led)),
            frees_nothing_chunk_bytes: freed.map(|(_, bytes)| bytes.saturating_sub(led_bytes)),
            ..self.sums
        }
    }

    /// Bytes given back in all ways.
    pub const fn bytes(&self) -> u64 {
        let sums = &self.sums;
        sums.by_free_munmap_bytes
            .saturating_add(sums.by_free_trim_bytes)
            .saturating_add(sums.by_trim_bytes)
            .saturating_add(sums.by_realloc_bytes)
            .saturating_add(sums.by_other_calls_bytes)
    }
}
