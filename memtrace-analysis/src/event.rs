//! What happened, as plain values: the only input of the analysis.
//!
//! Times are nanoseconds of CLOCK_MONOTONIC, sizes bytes, addresses those of the traced process. `None` means that it
//! is not known; a zero is a zero.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::glibc::summary::LookSummary;

/// Something that happened in, or became known of, a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub time_ns: u64,
    pub pid: u32,
    /// The thread concerned; the process id where no thread is meant.
    pub tid: u32,
    pub kind: EventKind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum EventKind {
    /// The trace of this process begins; also after an exec, as soon as the new program's libc is known.
    Start(Box<Start>),
    /// A memory system call has returned.
    Syscall(Box<Syscall>),
    /// malloc_trim was entered.
    TrimBegin(Trim),
    /// malloc_trim has returned.
    TrimEnd(Trim),
    /// A new process was made by `tid`.
    Fork {
        child: u32,
        followed: bool,
    },
    /// The process replaced its program: the address space is new. Snapshots go on counting.
    Exec,
    ThreadStart {
        child: u32,
    },
    ThreadExit,
    /// The last thread ended; the wait status where known.
    ProcessExit {
        status: Option<i32>,
    },
    /// Exact totals since the begin, read from the kernel side: periodically and once at the end.
    Totals(Box<Totals>),
    /// A look from outside.
    Sample(Sample),
    /// What is mapped executable, so that code addresses get names; sent at the start, and when a new one shows up.
    Modules(Vec<Module>),
    /// Time passes (for a live view and for the end of the trace): all records of before then have been read.
    Tick,
    /// The trace ends here.
    End {
        reason: EndReason,
    },
    /// What malloc's own books say, read from outside while the process ran on: as its trace begins, and as it ends.
    Look {
        moment: LookMoment,
        look: Box<LookSummary>,
    },
    /// What is watched from here on; without it, every call where entry points are probed.
    Watching(Watching),
    /// What the trace has cost the process so far.
    Cost(Box<Cost>),
}

/// How much of the allocator is watched, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// Not even memory system calls: a pause, for a process whose system calls are too many to have each made longer.
    Nothing,
    /// Memory system calls alone.
    Syscalls,
    /// And the allocator's slow path.
    SlowPath,
    /// And every call.
    Calls,
}

impl Depth {
    /// As the command line and JSON have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Syscalls => "syscalls",
            Self::SlowPath => "slow_path",
            Self::Calls => "calls",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watching {
    pub depth: Depth,
    /// A system call is tied to its allocator call by following the stack, also where no probe saw the call.
    pub followed: bool,
    /// memtrace has chosen the depth, and may choose another one.
    pub automatic: bool,
}

/// What the trace has cost, all of it since its begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Probes hit.
    pub hits: u64,
    /// What one hit of a cheap probe costs here, measured; None where it could not be.
    pub hit_ns: Option<f64>,
    /// CPU time the hits have taken from the process, estimated.
    pub trace_ns: u64,
    /// CPU time the process has used, what the hits took included.
    pub cpu_ns: u64,
    /// The share of `cpu_ns` that `trace_ns` may be; None where no limit was asked for.
    pub max_share: Option<f64>,
    /// Longest time that putting probes in place, and taking them away, has taken.
    pub attach_ns: u64,
    pub detach_ns: u64,
    /// Longest pause that a thread saw while probes were put in place or taken away, measured on memtrace's own child.
    pub pause_ns: Option<u64>,
    /// What each system call takes longer while it is traced, of whatever kind; measured on the same child.
    pub syscall_ns: Option<f64>,
    /// CPU time that this has taken from the process: by the number of its calls where that was counted, now and then, else at
    /// most, by its system time.
    pub syscalls_ns: Option<u64>,
}

/// Which end of a trace a look belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookMoment {
    Begin,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// `--for` is over.
    TimeUp,
    /// Ctrl-C or a termination signal.
    Interrupted,
    /// The process ended.
    ProcessExited,
    /// Memory, disk or a lost connection to the kernel side.
    Failed,
}

/// What is known of a process when its trace begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub name: String,
    /// Command line, arguments joined by blanks.
    pub command: String,
    pub threads: u32,
    /// The process was started by memtrace: everything since its exec is seen.
    pub from_birth: bool,
    pub allocator: Allocator,
    /// The break, page size, resident bytes now.
    pub break_end: Option<u64>,
    pub page_size: u64,
    pub resident_bytes: Option<u64>,
    /// mp_ as read from the process now.
    pub thresholds: Option<Thresholds>,
    pub capabilities: Capabilities,
}

impl Start {
    /// Allocator calls are seen, not only system calls.
    pub const fn watches_calls(&self) -> bool {
        !self.capabilities.probed.is_empty()
    }
}

/// Who serves malloc.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Allocator {
    pub kind: AllocatorKind,
    /// e.g. "2.36", where known.
    pub version: Option<String>,
    /// The file as the process names it.
    pub path: Option<String>,
    pub build_id: Option<String>,
    /// How it was told, in words ("maps libc.so.6 and no other allocator").
    pub evidence: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocatorKind {
    Glibc,
    GlibcStatic,
    Musl,
    Jemalloc,
    Tcmalloc,
    Mimalloc,
    Unknown,
}

/// Which parts of the truth this trace can see.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Entry points with a probe, by name.
    pub probed: Vec<Entry>,
    /// Frames are checked against the registers at system calls (kernel 5.15 and later).
    pub frame_check: bool,
    /// realloc's result is seen.
    pub realloc_returns: bool,
    /// malloc_trim's return is seen.
    pub trim_returns: bool,
    /// Arenas and thresholds are read at each system call.
    pub heap_state: bool,
    /// Resident pages are read at each system call.
    pub resident: bool,
    /// What else cannot be seen and why, a sentence each.
    pub limits: Vec<String>,
}

/// Entry points of the allocator, in the order of every table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    Malloc,
    Calloc,
    Realloc,
    Memalign,
    AlignedAlloc,
    PosixMemalign,
    Valloc,
    Pvalloc,
    Free,
    MallocTrim,
}

impl Entry {
    pub const ALL: [Self; 10] = [
        Self::Malloc,
        Self::Calloc,
        Self::Realloc,
        Self::Memalign,
        Self::AlignedAlloc,
        Self::PosixMemalign,
        Self::Valloc,
        Self::Pvalloc,
        Self::Free,
        Self::MallocTrim,
    ];

    /// The C function's name, also the key in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::Calloc => "calloc",
            Self::Realloc => "realloc",
            Self::Memalign => "memalign",
            Self::AlignedAlloc => "aligned_alloc",
            Self::PosixMemalign => "posix_memalign",
            Self::Valloc => "valloc",
            Self::Pvalloc => "pvalloc",
            Self::Free => "free",
            Self::MallocTrim => "malloc_trim",
        }
    }
}

/// Memory system calls, in the order of every table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyscallKind {
    Brk,
    Mmap,
    Munmap,
    Mremap,
    Mprotect,
    Madvise,
}

impl SyscallKind {
    pub const ALL: [Self; 6] = [
        Self::Brk,
        Self::Mmap,
        Self::Munmap,
        Self::Mremap,
        Self::Mprotect,
        Self::Madvise,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Brk => "brk",
            Self::Mmap => "mmap",
            Self::Munmap => "munmap",
            Self::Mremap => "mremap",
            Self::Mprotect => "mprotect",
            Self::Madvise => "madvise",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Syscall {
    pub kind: SyscallKind,
    pub args: [u64; 6],
    /// The return value; a negative errno in -4095..0. brk never fails so: it returns the break as it is.
    pub result: i64,
    pub enter_ns: u64,
    pub attribution: Attribution,
    /// The thread's last allocator call, whatever `attribution` says of it.
    pub frame: Option<Frame>,
    /// User instruction pointer and the words at its stack pointer (the first is mostly the caller's address).
    pub ip: Option<u64>,
    pub stack: [u64; 8],
    pub heap: Option<HeapState>,
    pub snapshot: Snapshot,
    pub resident_bytes: Option<u64>,
}

/// How a system call relates to the allocator call last seen in its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attribution {
    /// No allocator call of this thread has been seen.
    None,
    /// The call's frame is on the stack.
    Proven,
    /// The call has returned.
    Stale,
    /// The kernel shows no registers: likely, not proven.
    Unchecked,
    /// The stack could not be read.
    Unreadable,
    /// A signal handler interrupted the call; the system call is the handler's.
    InSignalHandler,
    /// The stack shows which entry point was called; what it was called with is not known. Of the frame only `entry`,
    /// `call` and `return_address` say something.
    EntryOnly,
}

/// An allocator call as seen at its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    pub entry: Entry,
    /// Bytes asked for; 0 for free.
    pub request: u64,
    /// The pointer handed in (free, realloc), else the alignment (memalign family), else 0.
    pub argument: u64,
    /// Size field of the chunk behind `argument`, flag bits included.
    pub chunk: Option<u64>,
    /// Number of this call among the thread's: equal for all system calls of one call.
    pub call: u64,
    pub return_address: u64,
}

/// No process gets more in one piece: the kernel hands out addresses of 48 bits, unless higher ones are asked for.
const MOST_BYTES: u64 = 1 << 48;

impl Frame {
    /// The totals count a new block for this call. realloc of a block is not one: its block lives on. Nor is what is
    /// certain to fail.
    pub const fn makes_block(&self) -> bool {
        let new = match self.entry {
            Entry::Free | Entry::MallocTrim => false,
            Entry::Realloc => self.argument == 0,
            _ => true,
        };
        new && !self.asks_too_much()
    }

    /// More than any process gets: the totals count the call as failed by its arguments.
    pub const fn asks_too_much(&self) -> bool {
        let alignment = match self.entry {
            Entry::Memalign | Entry::AlignedAlloc | Entry::PosixMemalign => self.argument,
            _ => 0,
        };
        self.request > MOST_BYTES || alignment > MOST_BYTES
    }
}

/// glibc's own books at the moment of a system call (before what it is about to record of it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapState {
    /// Address of the arena, None where none could be told.
    pub arena: Option<u64>,
    /// True for main_arena.
    pub main: bool,
    pub top: u64,
    /// Bytes of the top chunk, flag bits removed.
    pub top_size: u64,
    pub thresholds: Option<Thresholds>,
}

impl HeapState {
    /// Where the main arena's top ends; None where the books are another arena's or were not read.
    pub fn main_top(&self) -> Option<u64> {
        let read = self.main && self.arena.is_some() && self.top != 0;
        read.then(|| self.top.saturating_add(self.top_size))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thresholds {
    pub mmap_threshold: u64,
    pub trim_threshold: u64,
    pub top_pad: u64,
    /// False when a knob froze the dynamic rule; None where it was not read.
    pub dynamic: Option<bool>,
}

/// Running totals at the moment of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub allocated_blocks: u64,
    pub allocated_bytes: u64,
    pub freed_blocks: u64,
    pub freed_bytes: u64,
    /// Of the event's thread alone.
    pub thread_allocated_blocks: u64,
    pub thread_allocated_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trim {
    /// Bytes asked to be kept at the top.
    pub pad: u64,
    /// 1 when glibc says that it gave something back (its word is not to be relied on); only at the end.
    pub result: Option<i32>,
    pub call: u64,
    pub resident_bytes: Option<u64>,
    pub heap: Option<HeapState>,
    pub snapshot: Snapshot,
}

/// Exact totals since the begin of the trace; tables are indexed by [`Entry::ALL`] and [`SyscallKind::ALL`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    pub calls: [u64; 10],
    pub blocks: [u64; 10],
    pub bytes: [u64; 10],
    /// Calls whose arguments alone made them fail.
    pub failed: [u64; 10],
    pub allocated_blocks: u64,
    pub allocated_bytes: u64,
    pub freed_blocks: u64,
    pub freed_bytes: u64,
    pub free_null: u64,
    pub freed_mapped_blocks: u64,
    pub freed_mapped_bytes: u64,
    pub freed_non_main_blocks: u64,
    pub free_unreadable: u64,
    pub second_hits: u64,
    pub second_hits_memalign: u64,
    pub spurious_thread_exit: u64,
    pub spurious_first_free: u64,
    pub realloc: Realloc,
    pub syscalls: [u64; 6],
    pub syscalls_failed: [u64; 6],
    pub lost_records: u64,
    pub lost_threads: u64,
    pub hits: u64,
    /// Class i counts sizes in [2^i, 2^(i+1)).
    pub request_sizes: Vec<u64>,
    pub freed_sizes: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Realloc {
    /// realloc(NULL, n) and realloc(p, 0).
    pub null: u64,
    pub zero: u64,
    /// Returns whose outcome is known; the rest are of these.
    pub returns: u64,
    pub in_place: u64,
    pub moved: u64,
    /// In the totals, for want of memory only; in the report, for whatever reason.
    pub failed: u64,
    pub grown: u64,
    pub shrunk: u64,
    pub mapped: u64,
}

/// /proc/PID/statm and the heap's mapping, read from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    pub resident_bytes: u64,
    pub threads: u32,
    pub break_end: Option<u64>,
    /// CPU time the process has used, nanoseconds.
    pub cpu_ns: u64,
}

/// A file's mapping with execute permission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    pub start: u64,
    pub end: u64,
    pub path: String,
    pub role: ModuleRole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleRole {
    Program,
    Loader,
    Libc,
    /// An allocator other than glibc's.
    Allocator,
    /// A language runtime with a collector or compiler of its own (JVM, Go, V8, ...).
    Runtime,
    Library,
    /// Executable memory without a file: generated code.
    Anonymous,
}
