//! From a request to the chunk that serves it: the arithmetic of glibc's malloc on 64-bit machines.
//!
//! A chunk carries eight bytes of size field before the block, ends on a multiple of 16 and is never below 32 bytes.
//! The aligned entry points ask their arena for more than the block, so that an aligned start is certain to lie in it.

use crate::event::{Entry, Frame};

/// Smallest chunk, and what must stay behind at the top after a block is cut off (glibc's MINSIZE).
pub const MIN_CHUNK: u64 = 32;
/// Alignment of every chunk.
pub const ALIGNMENT: u64 = 16;
/// Requests above this fail by themselves (PTRDIFF_MAX).
pub const MAX_REQUEST: u64 = i64::MAX as u64;

const SIZE_FIELD: u64 = 8;
const PREV_INUSE: u64 = 1;
const IS_MMAPPED: u64 = 2;
const NON_MAIN_ARENA: u64 = 4;
const FLAGS: u64 = PREV_INUSE | IS_MMAPPED | NON_MAIN_ARENA;

/// `value` rounded up to a multiple of `unit`, a power of two; None where it does not fit or `unit` is none.
pub fn round_up(value: u64, unit: u64) -> Option<u64> {
    let mask = unit_mask(unit)?;
    Some(value.checked_add(mask)? & !mask)
}

/// `value` rounded down to a multiple of `unit`, a power of two; None where `unit` is none.
pub fn round_down(value: u64, unit: u64) -> Option<u64> {
    Some(value & !unit_mask(unit)?)
}

fn unit_mask(unit: u64) -> Option<u64> {
    unit.is_power_of_two().then(|| unit.saturating_sub(1))
}

/// Chunk size that serves a request; None when the request can only fail.
pub fn chunk_size(request: u64) -> Option<u64> {
    if request > MAX_REQUEST {
        return None;
    }
    Some(round_up(request.checked_add(SIZE_FIELD)?, ALIGNMENT)?.max(MIN_CHUNK))
}

/// The size field of a chunk, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeField(pub u64);

impl SizeField {
    /// Bytes of the chunk.
    pub const fn bytes(self) -> u64 {
        self.0 & !FLAGS
    }

    /// The chunk has a mapping of its own.
    pub const fn mapped(self) -> bool {
        self.0 & IS_MMAPPED != 0
    }

    /// The chunk is a thread arena's.
    pub const fn non_main(self) -> bool {
        self.0 & NON_MAIN_ARENA != 0
    }
}

/// Chunk size that an allocator call asks its arena for; None for calls that ask for none or can only fail.
pub fn asked_of_arena(frame: &Frame, page_size: u64) -> Option<u64> {
    match frame.entry {
        Entry::Malloc | Entry::Calloc | Entry::Realloc => chunk_size(frame.request),
        Entry::Memalign | Entry::AlignedAlloc | Entry::PosixMemalign => aligned_chunk(frame.request, frame.argument),
        Entry::Valloc => aligned_chunk(frame.request, page_size),
        Entry::Pvalloc => aligned_chunk(round_up(frame.request, page_size)?, page_size),
        Entry::Free | Entry::MallocTrim => None,
    }
}

/// What the memalign family asks for: the block's chunk, the alignment and the smallest chunk that may be cut off in
/// front, as a request of its own. An alignment that every chunk has anyway goes the way of malloc.
fn aligned_chunk(request: u64, alignment: u64) -> Option<u64> {
    if alignment <= ALIGNMENT {
        return chunk_size(request);
    }
    let alignment = alignment.max(MIN_CHUNK).checked_next_power_of_two()?;
    chunk_size(chunk_size(request)?.checked_add(alignment)?.checked_add(MIN_CHUNK)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_become_chunks() {
        for (request, chunk) in [
            (0, 32),
            (1, 32),
            (24, 32),
            (25, 48),
            (40, 48),
            (64, 80),
            (1000, 1008),
            (2 << 20, 2_097_168),
        ] {
            assert_eq!(chunk_size(request), Some(chunk), "request {request}");
        }
        assert_eq!(chunk_size(u64::MAX), None);
        assert_eq!(chunk_size(MAX_REQUEST + 1), None);
    }

    #[test]
    fn rounding_knows_its_limits() {
        assert_eq!(round_up(4097, 4096), Some(8192));
        assert_eq!(round_up(u64::MAX, 4096), None);
        assert_eq!(round_up(5, 0), None);
        assert_eq!(round_down(8191, 4096), Some(4096));
        assert_eq!(round_down(8191, 3), None);
    }

    #[test]
    fn aligned_requests_ask_for_slack() {
        // memalign(64, 1000): 1008 + 64 + 32 as a request.
        assert_eq!(aligned_chunk(1000, 64), Some(1120));
        assert_eq!(aligned_chunk(1000, 16), chunk_size(1000));
        // An alignment that is no power of two is rounded up to one.
        assert_eq!(aligned_chunk(1000, 48), aligned_chunk(1000, 64));
    }
}
