//! The book of returns: what each free gave back to the system, and what other calls did.

use crate::chunk::SizeField;
use crate::event::{Entry, Frame};
use crate::meaning::{Return, ReturnWay};
use crate::report::Returned;
use crate::threads::Call;

#[derive(Clone, Debug, Default)]
pub struct ReturnBook {
    sums: Returned,
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
                    let chunk = frame.chunk.map_or(bytes, |chunk| SizeField(chunk).bytes());
                    add(&mut sums.frees_munmap_chunk_bytes, chunk);
                }
            }
            Entry::Free => {
                add(&mut sums.by_free_trim_bytes, bytes);
                if !call.trimmed {
                    add(&mut sums.frees_trim, 1);
                    add(
                        &mut sums.frees_trim_chunk_bytes,
                        frame.chunk.map_or(0, |chunk| SizeField(chunk).bytes()),
                    );
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

    /// The sums, given the blocks that free let go of.
    pub fn report(&self, freed_blocks: u64, freed_bytes: u64) -> Returned {
        let led = self.sums.frees_munmap.saturating_add(self.sums.frees_trim);
        let led_bytes = self
            .sums
            .frees_munmap_chunk_bytes
            .saturating_add(self.sums.frees_trim_chunk_bytes);
        Returned {
            frees_nothing: freed_blocks.saturating_sub(led),
            frees_nothing_chunk_bytes: freed_bytes.saturating_sub(led_bytes),
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
