//! Counters that several CPUs add to.

use core::arch::asm;

use memtrace_common::{Counters, ProcessState, SIZE_CLASSES, Snapshot, ThreadState};

/// Adds to a counter, atomically.
///
/// `core` has no atomic addition for BPF; this is the instruction that every kernel knows (5.12 brought the ones that
/// also return the old value, which are not wanted here).
///
/// # Safety
/// `counter` must point into a map value.
#[inline(always)]
pub unsafe fn add(counter: *mut u64, amount: u64) {
    // SAFETY: the caller vouches for the pointer.
    unsafe {
        asm!("lock *(u64 *)({counter} + 0) += {amount}", counter = in(reg) counter, amount = in(reg) amount, options(nostack));
    }
}

/// Adds to a field of a process's counters: `bump!(process, hits)`, `bump!(process, bytes[entry], n)`.
macro_rules! bump {
    ($process:expr, $field:ident $([$index:expr])?) => {
        bump!($process, $field $([$index])?, 1)
    };
    ($process:expr, $field:ident $([$index:expr])?, $amount:expr) => {
        // SAFETY: `$process` points to a value of PROCESSES.
        unsafe { $crate::count::add(&raw mut (*$process).counters.$field $([$index])?, $amount) }
    };
}
pub(crate) use bump;

/// The class of a size: the place of its highest bit, the last class taking all that is larger.
#[inline(always)]
pub fn size_class(size: u64) -> usize {
    let mut class = 0usize;
    let mut rest = size;
    if rest >> 32 != 0 {
        class += 32;
        rest >>= 32;
    }
    if rest >> 16 != 0 {
        class += 16;
        rest >>= 16;
    }
    if rest >> 8 != 0 {
        class += 8;
        rest >>= 8;
    }
    if rest >> 4 != 0 {
        class += 4;
        rest >>= 4;
    }
    if rest >> 2 != 0 {
        class += 2;
        rest >>= 2;
    }
    if rest >> 1 != 0 {
        class += 1;
    }
    if class < SIZE_CLASSES { class } else { SIZE_CLASSES - 1 }
}

/// The totals now.
#[inline(always)]
pub fn snapshot(process: *const ProcessState, thread: Option<*const ThreadState>) -> Snapshot {
    // SAFETY: both point to map values; a torn read is not possible for aligned words.
    unsafe {
        let counters: *const Counters = &raw const (*process).counters;
        let (thread_allocated_blocks, thread_allocated_bytes) = match thread {
            Some(thread) => ((*thread).allocated_blocks, (*thread).allocated_bytes),
            None => (0, 0),
        };
        Snapshot {
            allocated_blocks: (*counters).allocated_blocks,
            allocated_bytes: (*counters).allocated_bytes,
            freed_blocks: (*counters).freed_blocks,
            freed_bytes: (*counters).freed_bytes,
            thread_allocated_blocks,
            thread_allocated_bytes,
        }
    }
}
