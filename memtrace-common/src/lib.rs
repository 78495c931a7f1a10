//! The kernel<->user ABI of memtrace, and nothing else.
//!
//! Both sides are built from this file, so the rules are strict: fixed-width integers and arrays only, padding spelled
//! out, no bool, enum, Option or usize, sizes asserted at compile time. Every record of the ring buffer opens with a
//! [`Header`] that names its kind and length; a reader counts a kind it does not know and goes on.
#![no_std]

/// Names of the maps, as the loader asks for them.
pub mod map_names {
    /// Ring buffer of records, each opening with a [`super::Header`].
    pub const EVENTS: &str = "EVENTS";
    /// Hash: process id (as memtrace sees it) -> [`super::ProcessState`].
    pub const PROCESSES: &str = "PROCESSES";
    /// Hash: `tgid << 32 | tid` -> [`super::ThreadState`].
    pub const THREADS: &str = "THREADS";
}

/// Allocator entry points, as indices of every per-entry table.
pub mod entry {
    pub const NONE: u8 = 0;
    pub const MALLOC: u8 = 1;
    pub const CALLOC: u8 = 2;
    pub const REALLOC: u8 = 3;
    pub const MEMALIGN: u8 = 4;
    pub const ALIGNED_ALLOC: u8 = 5;
    pub const POSIX_MEMALIGN: u8 = 6;
    pub const VALLOC: u8 = 7;
    pub const PVALLOC: u8 = 8;
    pub const FREE: u8 = 9;
    pub const MALLOC_TRIM: u8 = 10;
    /// Size of every per-entry table.
    pub const COUNT: usize = 16;
}

/// Kinds of ring buffer records.
pub mod record {
    /// A memory system call that has returned: [`super::SyscallRecord`].
    pub const SYSCALL: u16 = 1;
    /// Entry of malloc_trim: [`super::TrimRecord`].
    pub const TRIM_BEGIN: u16 = 2;
    /// Return of malloc_trim: [`super::TrimRecord`].
    pub const TRIM_END: u16 = 3;
    /// fork, vfork or clone of a new process: [`super::LifeRecord`], `other` is the child.
    pub const FORK: u16 = 4;
    /// The process replaced its program: [`super::LifeRecord`].
    pub const EXEC: u16 = 5;
    /// A thread ended: [`super::LifeRecord`].
    pub const THREAD_EXIT: u16 = 6;
    /// The last thread of a process ended: [`super::LifeRecord`].
    pub const PROCESS_EXIT: u16 = 7;
    /// A thread was born: [`super::LifeRecord`], `other` is its id.
    pub const THREAD_START: u16 = 8;
}

/// Memory system calls.
pub mod syscall {
    pub const BRK: u8 = 0;
    pub const MMAP: u8 = 1;
    pub const MUNMAP: u8 = 2;
    pub const MREMAP: u8 = 3;
    pub const MPROTECT: u8 = 4;
    pub const MADVISE: u8 = 5;
    pub const COUNT: usize = 6;
}

/// How a system call relates to the allocator frame last kept for its thread.
pub mod attribution {
    /// No allocator call of this thread has been seen, or its frame was left for good.
    pub const NONE: u8 = 0;
    /// The frame is on the stack: the stack pointer is deeper and the return address slot still holds its address.
    pub const PROVEN: u8 = 1;
    /// A frame was kept, but it is no longer on the stack.
    pub const STALE: u8 = 2;
    /// This kernel does not show the registers of a task in a tracepoint: the frame may or may not be there.
    pub const UNCHECKED: u8 = 3;
    /// The stack could not be read.
    pub const UNREADABLE: u8 = 4;
    /// A signal handler runs on top of the frame; what it does is its own.
    pub const IN_SIGNAL_HANDLER: u8 = 5;
}

/// Opens every record of the ring buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// One of [`record`].
    pub kind: u16,
    /// Length of the whole record in bytes, this header included.
    pub length: u16,
    /// The CPU it was written on.
    pub cpu: u32,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    pub pid: u32,
    pub tid: u32,
}

/// Running totals of a process (and of the thread a record is about) at the moment of a record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Blocks asked for, by all threads.
    pub allocated_blocks: u64,
    /// Bytes asked for, by all threads.
    pub allocated_bytes: u64,
    /// Blocks freed, by all threads (free(NULL) and spurious frees left out).
    pub freed_blocks: u64,
    /// Their chunk sizes, added up.
    pub freed_bytes: u64,
    /// Blocks asked for by this thread.
    pub thread_allocated_blocks: u64,
    /// Bytes asked for by this thread.
    pub thread_allocated_bytes: u64,
}

/// The allocator call a thread is in, as kept at its entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Address of the slot that holds the return address; 0 when no frame is kept.
    pub slot: u64,
    /// What the slot held at entry.
    pub return_address: u64,
    /// Bytes asked for (0 for free; the pad for malloc_trim). calloc: count x size, saturated.
    pub request: u64,
    /// The pointer handed in (free, realloc), else the alignment (memalign family), else 0.
    pub argument: u64,
    /// Size field of the chunk behind `argument` with its flag bits, for free and realloc; 0 when not read.
    pub chunk: u64,
    /// Time of entry, nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Number of this call among the thread's, from 1: equal for all system calls of one call.
    pub call: u64,
    /// One of [`entry`].
    pub entry: u8,
    pub _pad: [u8; 7],
}

/// glibc's own books at the moment of a system call; zeros where they could not be read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapState {
    /// Address of the malloc_state the figures are of.
    pub arena: u64,
    /// Address of the arena's top chunk.
    pub top: u64,
    /// Size field of the top chunk, flag bits included.
    pub top_size: u64,
    /// mp_.trim_threshold
    pub trim_threshold: u64,
    /// mp_.top_pad
    pub top_pad: u64,
    /// mp_.mmap_threshold
    pub mmap_threshold: u64,
}

/// Words of the user stack that a system call record carries, from the stack pointer upwards.
pub const STACK_WORDS: usize = 8;

/// A memory system call that has returned.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyscallRecord {
    pub header: Header,
    /// When it was entered; the header has the time of its return.
    pub enter_ns: u64,
    pub args: [u64; 6],
    /// What it returned: a negative errno in -4095..0.
    pub result: i64,
    /// User instruction pointer, 0 when unknown.
    pub ip: u64,
    /// User stack pointer, 0 when unknown.
    pub sp: u64,
    /// Words at the user stack pointer, zeros where unreadable.
    pub stack: [u64; STACK_WORDS],
    /// The thread's last allocator call, whatever `attribution` says of it.
    pub frame: Frame,
    pub heap: HeapState,
    pub snapshot: Snapshot,
    /// Resident pages of the process (anonymous + file + shared), as the kernel's counters say without a sum over
    /// CPUs; `u64::MAX` when unknown.
    pub resident_pages: u64,
    /// One of [`syscall`].
    pub syscall: u8,
    /// One of [`attribution`].
    pub attribution: u8,
    pub _pad: [u8; 6],
}

/// Entry or return of malloc_trim.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimRecord {
    pub header: Header,
    /// The pad asked for (entry).
    pub pad: u64,
    /// What it returned (return).
    pub result: u64,
    /// Number of this call among the thread's (see [`Frame::call`]).
    pub call: u64,
    pub resident_pages: u64,
    pub heap: HeapState,
    pub snapshot: Snapshot,
}

/// A process or thread that came, changed or went.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifeRecord {
    pub header: Header,
    /// The child (FORK) or the new thread (THREAD_START), else 0.
    pub other: u32,
    /// FORK: 1 when the child is traced too. PROCESS_EXIT: the wait status, when known.
    pub detail: u32,
    pub snapshot: Snapshot,
}

/// Size classes of the histograms: class i counts sizes in [2^i, 2^(i+1)), class 0 also size 0.
pub const SIZE_CLASSES: usize = 48;

/// Exact totals of a process, kept by atomic additions in the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Calls at the interface, by [`entry`]: second hits and spurious frees left out, free(NULL) counted.
    pub calls: [u64; entry::COUNT],
    /// Blocks those calls asked for or (free, realloc(p, 0)) freed. A failed call is counted until `failed` says so.
    pub blocks: [u64; entry::COUNT],
    /// Bytes asked for by entry; for free, chunk bytes.
    pub bytes: [u64; entry::COUNT],
    /// Calls that are certain to fail by their arguments alone (a request above PTRDIFF_MAX, calloc overflow).
    pub failed: [u64; entry::COUNT],
    pub allocated_blocks: u64,
    pub allocated_bytes: u64,
    pub freed_blocks: u64,
    pub freed_bytes: u64,
    pub free_null: u64,
    /// Freed chunks with IS_MMAPPED.
    pub freed_mapped_blocks: u64,
    pub freed_mapped_bytes: u64,
    /// Frees of thread arenas' chunks (NON_MAIN_ARENA).
    pub freed_non_main_blocks: u64,
    /// Frees whose chunk header could not be read: counted in `freed_blocks`, not in `freed_bytes`.
    pub free_unreadable: u64,
    /// realloc(NULL, n) and realloc(p, 0) reaching malloc and free: ignored.
    pub second_hits: u64,
    /// memalign family with a small alignment reaching malloc: ignored.
    pub second_hits_memalign: u64,
    /// Frees by libc itself when a thread ends (cached chunks, the cache's own struct).
    pub spurious_thread_exit: u64,
    /// The same free seen twice at a thread's first free (glibc 2.43 and later).
    pub spurious_first_free: u64,
    /// realloc: same pointer; other pointer; NULL returned; same size class as before, ...
    pub realloc_in_place: u64,
    pub realloc_moved: u64,
    pub realloc_failed: u64,
    /// Returns of realloc whose outcome is known (0 where no return probe could be used).
    pub realloc_returns: u64,
    pub realloc_grown: u64,
    pub realloc_shrunk: u64,
    pub realloc_mapped: u64,
    /// Blocks of realloc(NULL, n): new blocks.
    pub realloc_null: u64,
    /// realloc(p, 0): frees.
    pub realloc_zero: u64,
    /// Memory system calls by [`syscall`], and how many of them failed.
    pub syscalls: [u64; syscall::COUNT],
    pub syscalls_failed: [u64; syscall::COUNT],
    /// Records lost since the ring buffer was full.
    pub lost_records: u64,
    /// Hits of threads for which there was no room in the thread table: counted, without a frame.
    pub lost_threads: u64,
    /// All hits of allocator probes, ignored ones included: what the trace cost.
    pub hits: u64,
    /// Sizes asked for.
    pub request_sizes: [u64; SIZE_CLASSES],
    /// Chunk sizes freed.
    pub freed_sizes: [u64; SIZE_CLASSES],
}

impl Counters {
    pub const ZERO: Self = Self {
        calls: [0; entry::COUNT],
        blocks: [0; entry::COUNT],
        bytes: [0; entry::COUNT],
        failed: [0; entry::COUNT],
        allocated_blocks: 0,
        allocated_bytes: 0,
        freed_blocks: 0,
        freed_bytes: 0,
        free_null: 0,
        freed_mapped_blocks: 0,
        freed_mapped_bytes: 0,
        freed_non_main_blocks: 0,
        free_unreadable: 0,
        second_hits: 0,
        second_hits_memalign: 0,
        spurious_thread_exit: 0,
        spurious_first_free: 0,
        realloc_in_place: 0,
        realloc_moved: 0,
        realloc_failed: 0,
        realloc_returns: 0,
        realloc_grown: 0,
        realloc_shrunk: 0,
        realloc_mapped: 0,
        realloc_null: 0,
        realloc_zero: 0,
        syscalls: [0; syscall::COUNT],
        syscalls_failed: [0; syscall::COUNT],
        lost_records: 0,
        lost_threads: 0,
        hits: 0,
        request_sizes: [0; SIZE_CLASSES],
        freed_sizes: [0; SIZE_CLASSES],
    };
}

/// Return addresses of libc's own calls to free that no program made.
pub const SPURIOUS_SITES: usize = 8;

/// What the user side tells the kernel side of a process's libc. Addresses are ELF virtual addresses of the library;
/// the load address is learnt at the first hit (instruction pointer - `site`), so that an exec needs no help from outside.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibcFacts {
    /// Virtual address of the probed instruction, by [`entry`]; 0 where there is no probe.
    pub site: [u64; entry::COUNT],
    /// Bytes by which the stack pointer has moved between the function's first instruction and the site.
    pub stack_moved: [u32; entry::COUNT],
    /// The library's executable segment.
    pub text_start: u64,
    pub text_end: u64,
    /// Virtual address of main_arena; 0 when not found.
    pub main_arena: u64,
    /// Virtual address of mp_; 0 when not found.
    pub mp: u64,
    /// Offset of `top` in malloc_state.
    pub top_offset: u32,
    /// 1 when a thread's first free passes the entry twice (2.43 and later).
    pub first_free_twice: u32,
    /// Return addresses of thread exit's calls to free; zeros at the end.
    pub spurious_free_returns: [u64; SPURIOUS_SITES],
}

/// A traced process: what the user side configured, then what the kernel side keeps.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessState {
    pub libc: LibcFacts,
    /// Load address of the libc, 0 before the first hit and after an exec.
    pub libc_base: u64,
    /// 1 to trace the children too.
    pub follow: u32,
    /// 0 until the user side says go (a program that is being started counts from its exec).
    pub active: u32,
    pub counters: Counters,
}

/// A thread of a traced process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadState {
    pub frame: Frame,
    /// The frame a signal handler interrupted, given back at sigreturn.
    pub interrupted: Frame,
    /// The memory system call the thread is in.
    pub pending_args: [u64; 6],
    pub pending_enter_ns: u64,
    pub allocated_blocks: u64,
    pub allocated_bytes: u64,
    pub calls: u64,
    /// Signal handlers on the stack.
    pub handlers: u32,
    /// One of [`syscall`], plus one; 0 outside.
    pub pending: u8,
    /// The first free of this thread has been seen (glibc 2.43 and later pass it twice).
    pub freed: u8,
    pub _pad: [u8; 2],
}

const _: () = {
    assert!(size_of::<Header>() == 24);
    assert!(size_of::<Snapshot>() == 48);
    assert!(size_of::<Frame>() == 64);
    assert!(size_of::<HeapState>() == 48);
    assert!(size_of::<SyscallRecord>() == 24 + 8 + 48 + 8 + 16 + 64 + 64 + 48 + 48 + 8 + 8);
    assert!(size_of::<TrimRecord>() == 24 + 32 + 48 + 48);
    assert!(size_of::<LifeRecord>() == 24 + 8 + 48);
    assert!(size_of::<LibcFacts>() == 128 + 64 + 16 + 16 + 8 + 64);
    assert!(size_of::<ThreadState>() == 64 + 64 + 48 + 8 + 24 + 8);
};
