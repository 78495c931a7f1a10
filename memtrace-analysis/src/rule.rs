//! glibc's rules for how much an arena takes from and gives back to the system (glibc's sysmalloc, systrim, new_heap).
//!
//! Each rule is a pure function of what was in force at that moment; None means that the figures lead to no step or to
//! one that does not fit into 64 bits. `chunk` is the chunk size of the request (glibc calls it nb).

use crate::chunk::{MIN_CHUNK, round_down, round_up};

/// Least size of a piece that the main arena maps when the break cannot be moved.
pub const MAIN_PIECE: u64 = 1 << 20;
/// Size, and alignment, of a thread arena's segment unless huge pages are configured.
pub const HEAP_MAX: u64 = 64 << 20;
/// Largest mapped chunk whose free raises the thresholds.
pub const MMAP_THRESHOLD_MAX: u64 = 32 << 20;
/// mmap_threshold, trim_threshold and top_pad of a process that nobody has tuned.
pub const DEFAULT_THRESHOLD: u64 = 128 << 10;
/// Huge page of amd64, and of arm64 with 4 KiB pages.
pub const HUGE_PAGE: u64 = 2 << 20;

/// By how much the break moves when the top has `top_size` bytes left.
pub fn break_step(chunk: u64, top_pad: u64, top_size: u64, page_size: u64) -> Option<u64> {
    let needed = chunk.checked_add(top_pad)?.checked_add(MIN_CHUNK)?;
    round_up(needed.checked_sub(top_size)?, page_size).filter(|step| *step > 0)
}

/// As [`break_step`], with the new break on a multiple of `huge_page` (transparent huge pages asked for).
pub fn break_step_huge(chunk: u64, top_pad: u64, top_size: u64, from: u64, huge_page: u64) -> Option<u64> {
    let needed = chunk
        .checked_add(top_pad)?
        .checked_add(MIN_CHUNK)?
        .checked_sub(top_size)?;
    round_up(from.checked_add(needed)?, huge_page)?
        .checked_sub(from)
        .filter(|step| *step > 0)
}

/// What the break is lowered by when the top is trimmed down to `pad` bytes.
pub fn break_trim(top_size: u64, pad: u64, page_size: u64) -> Option<u64> {
    let spare = top_size.checked_sub(MIN_CHUNK)?.checked_sub(1)?.checked_sub(pad)?;
    round_down(spare, page_size).filter(|bytes| *bytes > 0)
}

/// By how much a thread arena grows within its segment: without top_pad.
pub fn arena_step(chunk: u64, top_size: u64, page_size: u64) -> Option<u64> {
    round_up(chunk.checked_add(MIN_CHUNK)?.checked_sub(top_size)?, page_size).filter(|step| *step > 0)
}

/// Least size of what is made usable of a new segment.
const HEAP_MIN: u64 = 32 << 10;

/// Bytes made usable at the begin of a new segment that has to hold `content` bytes.
pub fn segment_commit(content: u64, top_pad: u64, page_size: u64) -> Option<u64> {
    let padded = content.checked_add(top_pad)?;
    let size = if padded < HEAP_MIN {
        HEAP_MIN
    } else if padded <= HEAP_MAX {
        padded
    } else if content <= HEAP_MAX {
        HEAP_MAX
    } else {
        return None;
    };
    round_up(size, page_size)
}

/// A mapping for one block: no successor lends it a field, so the chunk is `overhead` bytes longer.
pub fn mapped_block(chunk: u64, overhead: u64, page_size: u64) -> Option<u64> {
    round_up(chunk.checked_add(overhead)?, page_size)
}

/// A piece of the main arena that is mapped since the break could not be moved. `contiguous_top`: what the top has left
/// the first time, the arena being contiguous until then; it is first taken off the step and then added to the mapping.
pub fn main_piece(chunk: u64, top_pad: u64, contiguous_top: u64, page_size: u64) -> Option<u64> {
    let step = break_step(chunk, top_pad, contiguous_top, page_size)?;
    Some(round_up(step.checked_add(contiguous_top)?, page_size)?.max(MAIN_PIECE))
}

/// As [`main_piece`], in glibc 2.35 to 2.40: 1 MiB is what the first piece is rounded up to, and later ones are not (two
/// arguments change places on their way into sysmalloc_mmap_fallback; seen in 2.36, gone in 2.41).
pub fn main_piece_of_2_35(chunk: u64, top_pad: u64, contiguous_top: Option<u64>, page_size: u64) -> Option<u64> {
    match contiguous_top {
        Some(top) => round_up(
            break_step(chunk, top_pad, top, page_size)?.checked_add(top)?,
            MAIN_PIECE,
        ),
        None => break_step(chunk, top_pad, 0, page_size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn small_blocks_make_steps_of_132_kib() {
        assert_eq!(break_step(80, 131_072, 0, PAGE), Some(0x21000));
        assert_eq!(break_step(80, 131_072, 96, PAGE), Some(0x21000));
        // A top that is large enough makes no step.
        assert_eq!(break_step(80, 0, 112, PAGE), None);
    }

    #[test]
    fn large_blocks_make_the_steps_that_were_measured() {
        // 60,000-byte blocks: 180,224; 130,000-byte blocks: 258,048 or 262,144.
        assert_eq!(break_step(60_016, 131_072, 12_000, PAGE), Some(180_224));
        assert_eq!(break_step(130_016, 131_072, 5_000, PAGE), Some(258_048));
        assert_eq!(break_step(130_016, 131_072, 100, PAGE), Some(262_144));
    }

    #[test]
    fn pages_of_64_kib_round_every_step_up_to_them() {
        const LARGE: u64 = 64 << 10;
        // 80 + 128 KiB + 32 bytes are a little more than two pages.
        assert_eq!(break_step(80, 131_072, 0, LARGE), Some(192 << 10));
        // What is left at the top pays for what is over the second page.
        assert_eq!(break_step(80, 131_072, 112, LARGE), Some(128 << 10));
        assert_eq!(break_trim(131_072 * 2, 131_072, LARGE), Some(64 << 10));
        assert_eq!(arena_step(80, 0, LARGE), Some(64 << 10));
        assert_eq!(mapped_block(131_088, 8, LARGE), Some(192 << 10));
    }

    #[test]
    fn huge_steps_end_on_huge_pages() {
        assert_eq!(
            break_step_huge(80, 131_072, 0, 0x55_5555_5000, HUGE_PAGE),
            Some(0x55_5560_0000 - 0x55_5555_5000)
        );
    }

    #[test]
    fn a_trim_leaves_the_pad() {
        assert_eq!(break_trim(131_072 * 2, 131_072, PAGE), Some(126_976));
        assert_eq!(break_trim(131_000, 131_072, PAGE), None);
    }

    #[test]
    fn a_new_segment_starts_with_132_kib() {
        assert_eq!(segment_commit(48 + 2200 + 16 + 640, 131_072, PAGE), Some(0x21000));
        assert_eq!(segment_commit(HEAP_MAX + 1, 0, PAGE), None);
    }

    #[test]
    fn a_mapped_block_of_2_mib_takes_2052_kib() {
        assert_eq!(mapped_block(2_097_168, 8, PAGE), Some(2052 << 10));
    }
}
