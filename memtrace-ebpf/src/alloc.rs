//! The allocator's entry points: each call is counted once, and kept as the thread's frame. Those of malloc_trim are in
//! a room of their own.

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memtrace_common::{MOST_BYTES, entry};

use crate::count::bump;
use crate::filter::{self, current_ids};
use crate::hit::{FLAGS, Hit, argument, chunk_of, moved_argument};
use crate::stack;

/// malloc, calloc and the memalign family, once it is known that they are calls of their own.
#[inline(always)]
fn allocate(hit: &Hit, request: u64, alignment: u64, refused: bool) {
    hit.keep(request, alignment, 0);
    if !hit.counts {
        return;
    }
    if refused || request > MOST_BYTES || alignment > MOST_BYTES {
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
    if hit.entered_again(request, 0) {
        return 0;
    }
    let starts_again = hit.starts_again();
    if !hit.second_hit_of_malloc(request) {
        allocate(&hit, request, 0, false);
    }
    if starts_again {
        hit.expect(entry::MALLOC, hit.slot());
    }
    0
}

#[uprobe]
pub fn on_calloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::CALLOC) else {
        return 0;
    };
    let (request, overflow) = product(argument(&ctx, 0), argument(&ctx, 1));
    let through_hook = !overflow && hit.starts_again();
    allocate(&hit, request, 0, overflow);
    if through_hook {
        // It calls malloc's hook, which goes on in malloc.
        hit.expect(entry::MALLOC, 0);
    }
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

#[inline(always)]
fn is_power_of_two(number: u64) -> bool {
    number != 0 && number & (number - 1) == 0
}

#[uprobe]
pub fn on_aligned_alloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::ALIGNED_ALLOC) else {
        return 0;
    };
    let (alignment, request) = (argument(&ctx, 0), argument(&ctx, 1));
    // It has an entry of its own from 2.38 on, and minds the alignment since.
    allocate(&hit, request, alignment, !is_power_of_two(alignment));
    0
}

#[uprobe]
pub fn on_posix_memalign(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::POSIX_MEMALIGN) else {
        return 0;
    };
    let (alignment, request) = (argument(&ctx, 1), argument(&ctx, 2));
    // EINVAL unless it is a power of two times the size of a pointer.
    let refused = alignment < 8 || !is_power_of_two(alignment);
    allocate(&hit, request, alignment, refused);
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
    if hit.counts && hit.entered_again(request, pointer) {
        return 0;
    }
    let starts_again = hit.starts_again();
    let chunk = if pointer != 0 { chunk_of(pointer) } else { 0 };
    hit.keep(request, pointer, chunk);
    if !hit.counts {
        return 0;
    }
    if pointer != 0 && request == 0 {
        bump!(hit.process, realloc_zero);
        bump!(hit.process, realloc_zero_bytes, chunk & !FLAGS);
        hit.freed(chunk);
    } else if request > MOST_BYTES {
        bump!(hit.process, failed[entry::REALLOC as usize]);
    } else if pointer == 0 {
        hit.block(request);
    } else {
        bump!(hit.process, realloc_resized);
    }
    if starts_again {
        hit.expect(entry::REALLOC, hit.slot());
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
pub fn on_thread_exit(ctx: ProbeContext) -> u32 {
    stack::keep_own(&ctx);
    let Some(ids) = current_ids() else { return 0 };
    let Some((_, Some(thread))) = filter::active_thread(ids) else {
        return 0;
    };
    // SAFETY: a value of THREAD_STATES, written to by its own thread alone.
    unsafe { (*thread).exiting = 1 };
    0
}
