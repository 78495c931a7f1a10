//! Counters that several CPUs add to.

use core::arch::asm;

use memtrace_common::{MAX_SHARDS, SIZE_CLASSES, Snapshot, ThreadState, entry};

use crate::filter::Process;
use crate::maps::{COUNTERS, kernel};

/// Adds to a counter, atomically.
///
/// `core` has no atomic addition for BPF; this is the instruction that every kernel knows (5.12 brought the ones that
/// also return the old value, which are not wanted here).
///
/// # Safety
/// `counter` must point into a value of COUNTERS.
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
        // SAFETY: a process's counters are a value of COUNTERS.
        unsafe { $crate::count::add(&raw mut (*$process.counters).$field $([$index])?, $amount) }
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

/// Entry points that give blocks.
const GIVING: [u8; 8] = [
    entry::MALLOC,
    entry::CALLOC,
    entry::REALLOC,
    entry::MEMALIGN,
    entry::ALIGNED_ALLOC,
    entry::POSIX_MEMALIGN,
    entry::VALLOC,
    entry::PVALLOC,
];

/// The totals now, over all shards.
#[inline(always)]
pub fn snapshot(process: Process, thread: Option<*const ThreadState>) -> Snapshot {
    let mut totals = Snapshot::default();
    if let Some(thread) = thread {
        // SAFETY: a value of THREAD_STATES.
        unsafe {
            totals.thread_allocated_blocks = (*thread).allocated_blocks;
            totals.thread_allocated_bytes = (*thread).allocated_bytes;
        }
    }
    let shards = kernel!(shards);
    for shard in 0..MAX_SHARDS {
        if shard >= shards {
            break;
        }
        let Some(counters) = COUNTERS.get_ptr(process.place * shards + shard) else {
            break;
        };
        // SAFETY: a value of COUNTERS; aligned words are not torn.
        unsafe {
            for entry in GIVING {
                totals.allocated_blocks += (*counters).blocks[entry as usize];
                totals.allocated_bytes += (*counters).bytes[entry as usize];
            }
            totals.freed_blocks += (*counters).blocks[entry::FREE as usize] + (*counters).realloc_zero;
            totals.freed_bytes += (*counters).bytes[entry::FREE as usize] + (*counters).realloc_zero_bytes;
        }
    }
    totals
}
