//! glibc's own books, read from the memory of the current process. All reads may fail; zeros say so.

use memtrace_common::{Frame, HeapState, entry, syscall};

use crate::arch::word_or_zero as word;
use crate::filter::Process;

/// A thread arena's segment starts at a multiple of this (HEAP_MAX_SIZE), or with glibc.malloc.hugetlb=2 of so many huge
/// pages (from 2.35 to 2.41 at least, and in 2.43 no longer).
const HEAP_MAX: u64 = 64 << 20;
const HEAP_MAX_HUGE_PAGES: u64 = 4;

/// Offsets in malloc_par, the same in every glibc from 2.26 on.
const TRIM_THRESHOLD: u64 = 0;
const TOP_PAD: u64 = 8;
const MMAP_THRESHOLD: u64 = 16;

/// The arena of the thread segment that `address` lies in; 0 when it lies in none.
#[inline(always)]
pub fn thread_arena(process: Process, base: u64, address: u64) -> u64 {
    let huge = huge_page(process, base);
    if huge != 0 {
        let arena = arena_of_segment(address, huge.wrapping_mul(HEAP_MAX_HUGE_PAGES));
        if arena != 0 {
            return arena;
        }
    }
    arena_of_segment(address, HEAP_MAX)
}

/// A segment opens with a pointer to its arena, which lies just behind the heap_info (32 or 48 bytes) of the arena's
/// first segment, and that segment points to the arena too. What passes both tests is an arena.
#[inline(always)]
fn arena_of_segment(address: u64, size: u64) -> u64 {
    let within = size.wrapping_sub(1);
    let segment = address & !within;
    let arena = word(segment);
    let behind = arena & within;
    if behind != 32 && behind != 48 {
        return 0;
    }
    if word(arena & !within) != arena {
        return 0;
    }
    arena
}

/// mp_.hp_pagesize: 0 where no huge pages are configured.
#[inline(always)]
fn huge_page(process: Process, base: u64) -> u64 {
    // SAFETY: a value of STATES.
    let (mp, offset) = unsafe { ((*process.state).libc.mp, (*process.state).libc.huge_page_offset) };
    if mp == 0 || offset == 0 {
        return 0;
    }
    word(base.wrapping_add(mp).wrapping_add(u64::from(offset)))
}

/// The arena that a system call is about: its own segment's, else the main one.
///
/// A new segment is not linked yet when it is mapped: for mmap the block that is freed or resized tells, if any.
#[inline(always)]
pub fn arena_of_call(
    process: Process,
    base: u64,
    call: u8,
    address: u64,
    pending_arena: u64,
    frame: *const Frame,
) -> u64 {
    if pending_arena != 0 {
        return pending_arena;
    }
    if call == syscall::MPROTECT || call == syscall::MADVISE || call == syscall::MUNMAP {
        return thread_arena(process, base, address);
    }
    // SAFETY: a frame inside a value of THREAD_STATES.
    let (entry, argument) = unsafe { ((*frame).entry, (*frame).argument) };
    if call == syscall::MMAP && (entry == entry::FREE || entry == entry::REALLOC) && argument != 0 {
        return thread_arena(process, base, argument);
    }
    0
}

/// The books of `arena` (0: the main one) and the thresholds. `base` is known when a call of this thread has been seen;
/// of a static program at a fixed address it is 0.
#[inline(always)]
pub fn read(process: Process, base: u64, arena: u64) -> HeapState {
    let mut state = HeapState::default();
    // SAFETY: a value of STATES.
    let (main_arena, mp, top_offset) = unsafe {
        (
            (*process.state).libc.main_arena,
            (*process.state).libc.mp,
            (*process.state).libc.top_offset,
        )
    };
    let arena = if arena != 0 {
        arena
    } else if main_arena != 0 {
        base.wrapping_add(main_arena)
    } else {
        0
    };
    if arena != 0 && top_offset != 0 {
        state.arena = arena;
        state.top = word(arena.wrapping_add(u64::from(top_offset)));
        if state.top != 0 {
            state.top_size = word(state.top.wrapping_add(8));
        }
    }
    if mp != 0 {
        let mp = base.wrapping_add(mp);
        state.trim_threshold = word(mp.wrapping_add(TRIM_THRESHOLD));
        state.top_pad = word(mp.wrapping_add(TOP_PAD));
        state.mmap_threshold = word(mp.wrapping_add(MMAP_THRESHOLD));
    }
    state
}
