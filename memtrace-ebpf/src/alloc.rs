//! The allocator's entry points: each call is counted once, and kept as the thread's frame. Those of malloc_trim are in
//! a room of their own.

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memtrace_common::entry;

use crate::count::bump;
use crate::filter::{self, current_ids};
use crate::hit::{FLAGS, Hit, PTRDIFF_MAX, argument, chunk_of, moved_argument};

/// malloc, calloc and the memalign family, once it is known that they are calls of their own.
#[inline(always)]
fn allocate(hit: &Hit, request: u64, alignment: u64, refused: bool) {
    hit.keep(request, alignment, 0);
    if refused || request > PTRDIFF_MAX {
        bump!(hit.process, failed[hit.entry as usize]);
    } else {
        hit.block(request);
    }
}

#[uprobe]
pub fn on_malloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::MALLOC) else {
        return 0;
    };
    let request = moved_argument(&ctx, &hit);
    if !hit.first_call_again(request, 0) && !hit.second_hit_of_malloc(request) {
        allocate(&hit, request, 0, false);
    }
    0
}

#[uprobe]
pub fn on_calloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::CALLOC) else {
        return 0;
    };
    let (request, overflow) = product(argument(&ctx, 0), argument(&ctx, 1));
    allocate(&hit, request, 0, overflow);
    0
}

/// `a * b`, saturated, and whether it was. By halves: BPF has no 128-bit product, and the compiler makes one of what
/// it recognises as an overflow check.
#[inline(always)]
fn product(a: u64, b: u64) -> (u64, bool) {
    const LOW: u64 = u32::MAX as u64;
    if (a | b) >> 32 == 0 {
        return (a * b, false);
    }
    if a >> 32 != 0 && b >> 32 != 0 {
        return (u64::MAX, true);
    }
    // One of the two upper halves is 0, so one of these products is.
    let upper = (a >> 32) * (b & LOW) + (a & LOW) * (b >> 32);
    let lower = (a & LOW) * (b & LOW);
    let sum = upper.wrapping_add(lower >> 32);
    if upper >> 32 != 0 || sum >> 32 != 0 {
        return (u64::MAX, true);
    }
    (sum << 32 | lower & LOW, false)
}

#[uprobe]
pub fn on_memalign(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::MEMALIGN) else {
        return 0;
    };
    allocate(&hit, argument(&ctx, 1), argument(&ctx, 0), false);
    0
}

#[uprobe]
pub fn on_aligned_alloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::ALIGNED_ALLOC) else {
        return 0;
    };
    allocate(&hit, argument(&ctx, 1), argument(&ctx, 0), false);
    0
}

#[uprobe]
pub fn on_posix_memalign(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::POSIX_MEMALIGN) else {
        return 0;
    };
    let alignment = argument(&ctx, 1);
    // EINVAL unless it is a power of two times the size of a pointer.
    let refused = alignment < 8 || alignment & alignment.wrapping_sub(1) != 0;
    allocate(&hit, argument(&ctx, 2), alignment, refused);
    0
}

#[uprobe]
pub fn on_valloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::VALLOC) else {
        return 0;
    };
    allocate(&hit, moved_argument(&ctx, &hit), 0, false);
    0
}

#[uprobe]
pub fn on_pvalloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::PVALLOC) else {
        return 0;
    };
    allocate(&hit, moved_argument(&ctx, &hit), 0, false);
    0
}

#[uprobe]
pub fn on_realloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::REALLOC) else {
        return 0;
    };
    let (pointer, request) = (argument(&ctx, 0), argument(&ctx, 1));
    if hit.first_call_again(request, pointer) {
        return 0;
    }
    let chunk = if pointer != 0 { chunk_of(pointer) } else { 0 };
    hit.keep(request, pointer, chunk);
    if pointer != 0 && request == 0 {
        bump!(hit.process, realloc_zero);
        bump!(hit.process, realloc_zero_bytes, chunk & !FLAGS);
        hit.freed(chunk);
    } else if request > PTRDIFF_MAX {
        bump!(hit.process, failed[entry::REALLOC as usize]);
    } else if pointer == 0 {
        hit.block(request);
    } else {
        bump!(hit.process, realloc_resized);
    }
    0
}

#[uprobe]
pub fn on_free(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::FREE) else {
        return 0;
    };
    let pointer = moved_argument(&ctx, &hit);
    if pointer == 0 {
        bump!(hit.process, free_null);
        return 0;
    }
    if hit.second_hit_of_free(pointer) {
        return 0;
    }
    if hit.first_free_again(pointer) {
        bump!(hit.process, spurious_first_free);
        return 0;
    }
    let chunk = chunk_of(pointer);
    if hit.freed_by_thread_exit() {
        // Not the program's; but what the system is given back in its course is due to it.
        bump!(hit.process, spurious_thread_exit);
        hit.keep(0, pointer, chunk);
        return 0;
    }
    hit.keep(0, pointer, chunk);
    bump!(hit.process, blocks[entry::FREE as usize]);
    bump!(hit.process, bytes[entry::FREE as usize], chunk & !FLAGS);
    hit.freed(chunk);
    0
}

/// libc begins to free what it keeps for a thread that ends.
#[uprobe]
pub fn on_thread_exit(_ctx: ProbeContext) -> u32 {
    let Some(ids) = current_ids() else { return 0 };
    let Some((_, Some(thread))) = filter::active_thread(ids) else {
        return 0;
    };
    // SAFETY: a value of THREADS, written to by its own thread alone.
    unsafe { (*thread).exiting = 1 };
    0
}
