//! What is kept between two hits, all of it bounded; and the constants that the loader sets.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, PerCpuArray, ProgramArray, Queue, RingBuf};
use memtrace_common::{Counters, KernelFacts, ProcessState, ThreadState};

// The loader sets the sizes.

/// Records for the user side.
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(8 << 20, 0);

/// Traced processes: their places in the tables.
#[map]
pub static PROCESSES: HashMap<u32, u32> = HashMap::with_max_entries(256, 0);

/// By place.
#[map]
pub static STATES: Array<ProcessState> = Array::with_max_entries(256, 0);

/// By place and shard.
#[map]
pub static COUNTERS: Array<Counters> = Array::with_max_entries(256, 0);

/// Places for children; their counters are zero.
#[map]
pub static FREE_PLACES: Queue<u32> = Queue::with_max_entries(256, 0);

/// Their threads' places in the table below, by `tgid << 32 | tid`. Who takes a thread out of here gives its place back.
#[map]
pub static THREADS: HashMap<u64, u32> = HashMap::with_max_entries(16384, 0);

/// By place.
#[map]
pub static THREAD_STATES: Array<ThreadState> = Array::with_max_entries(16384, 0);

/// Places for threads.
#[map]
pub static FREE_THREADS: Queue<u32> = Queue::with_max_entries(16384, 0);

/// The place of a thread that was seen with these last bits of its id; the key at that place tells whether it is the one.
#[map]
pub static LAST_SEEN: Array<u32> = Array::with_max_entries(memtrace_common::LAST_SEEN, 0);

/// Holds nothing: its per-CPU copies tell how far apart the CPUs' memories are.
#[map]
pub static MEASURE: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Empty, for tail calls that are never made.
#[map]
pub static NO_PROGRAMS: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Set by the loader and frozen, so that the verifier drops the branches that this kernel cannot run.
#[unsafe(no_mangle)]
static KERNEL: KernelFacts = KernelFacts::UNKNOWN;

/// Reads one fact of the running kernel.
macro_rules! kernel {
    ($field:ident) => {
        // SAFETY: a static that lives as long as the program; volatile, since the loader sets it after compilation.
        unsafe { core::ptr::read_volatile(&raw const (*$crate::maps::kernel_facts()).$field) }
    };
}
pub(crate) use kernel;

#[inline(always)]
pub fn kernel_facts() -> *const KernelFacts {
    &raw const KERNEL
}
