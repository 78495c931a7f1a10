//! The kernel<->user ABI of memtrace, and nothing else.
//!
//! Both sides are built from this file, so the rules are strict: fixed-width integers and arrays only, padding spelled
//! out, no bool, enum, Option or usize, sizes asserted at compile time. Every record of the ring buffer opens with a
//! [`Header`] that names its kind and length; a reader counts a kind it does not know and goes on.
#![no_std]

use core::mem::offset_of;

/// Which ABI this is: FNV-1a of this file. Any change of it may change a layout, and a kernel side of another one would
/// be misread without a sign.
pub const ABI: u64 = fnv_1a(include_bytes!("lib.rs"));

/// The section of the BPF object that holds its [`ABI`], eight bytes, little-endian.
pub const ABI_SECTION: &str = "memtrace_abi";

const fn fnv_1a(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
}

/// Names of the maps, as the loader asks for them.
pub mod map_names {
    /// Ring buffer of records, each opening with a [`super::Header`].
    pub const EVENTS: &str = "EVENTS";
    /// Hash: process id (as memtrace sees it) -> its place in the tables below, a u32.
    pub const PROCESSES: &str = "PROCESSES";
    /// Array: place -> [`super::ProcessState`].
    pub const STATES: &str = "STATES";
    /// Array: place x shards + shard -> [`super::Counters`]. A CPU adds to the shard of its number modulo the shards;
    /// the sum over the shards counts.
    pub const COUNTERS: &str = "COUNTERS";
    /// Queue: places that no process has.
    pub const FREE_PLACES: &str = "FREE_PLACES";
    /// Hash: `tgid << 32 | tid` -> the thread's place in the next table, a u32.
    pub const THREADS: &str = "THREADS";
    /// Array: place -> [`super::ThreadState`].
    pub const THREAD_STATES: &str = "THREAD_STATES";
    /// Queue: places that no thread has.
    pub const FREE_THREADS: &str = "FREE_THREADS";
    /// Array: the last bits of a thread's id -> the place of the thread that was last seen with them, if any: a look-up in
    /// an array is part of the program, one in a hash is a call that takes a tenth of what a hit takes.
    pub const LAST_SEEN: &str = "LAST_SEEN";
}

/// Names of the constants that the loader sets before the programs are verified.
pub mod global_names {
    /// What is known of the running kernel: [`super::KernelFacts`].
    pub const KERNEL: &str = "KERNEL";
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

/// No process gets more in one piece: the kernel hands out addresses of 48 bits, unless higher ones are asked for. (glibc
/// itself draws the line at PTRDIFF_MAX.)
pub const MOST_BYTES: u64 = 1 << 48;

/// Which frees are looked at for being thread exit's own: it costs reading the return address.
pub mod exit_check {
    /// This libc makes none.
    pub const NEVER: u32 = 0;
    /// Those of a thread that has passed the probe on thread exit.
    pub const EXITING: u32 = 1;
    pub const ALWAYS: u32 = 2;
}

/// Whether a process is traced already.
pub mod active {
    /// Until the user side says go.
    pub const NOT_YET: u32 = 0;
    pub const NOW: u32 = 1;
}

/// How much of the allocator is watched, see [`ProcessState::depth`].
pub mod depth {
    /// Every call: each entry point has a probe.
    pub const CALLS: u32 = 0;
    /// The allocator's slow path, and the entry points that no thread cache serves.
    pub const SLOW_PATH: u32 = 1;
    /// No probe at all.
    pub const SYSCALLS: u32 = 2;
    /// No probe and no system call.
    pub const NOTHING: u32 = 3;
}

/// By which tracepoints memory system calls are seen, see [`ProcessState::source`].
pub mod source {
    /// By one at the entry and one at the exit of each kind: other calls pay next to nothing, but while any of these
    /// tracepoints is there, every system call takes the kernel's slow way, and taking them away takes the kernel long.
    pub const TRACEPOINTS: u32 = 0;
    /// By those that every system call passes, which go at once.
    pub const EVERY_CALL: u32 = 1;
    /// Not at all: a pause.
    pub const NONE: u32 = 2;
}

/// Up to glibc 2.33 a call of malloc, or of realloc, that finds its hook as the library came goes through it: the hook sets
/// the allocator up, takes itself away, and starts again at the function's entry. Hooks that may still be there:
pub mod untouched {
    pub const MALLOC: u32 = 1;
    pub const REALLOC: u32 = 2;
    pub const ALL: u32 = MALLOC | REALLOC;
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
    /// The slow path was entered soon after a memory system call: [`super::RequestRecord`].
    pub const REQUEST: u16 = 9;
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
    /// The frame may be on the stack: the stack pointer is deeper, and the slot holds the return address where that was
    /// kept. The user side follows the frames and decides.
    pub const DEEPER: u8 = 1;
    /// A frame was kept, but it is no longer on the stack.
    pub const STALE: u8 = 2;
    /// This kernel does not show the registers of a task in a tracepoint: the frame may or may not be there.
    pub const UNCHECKED: u8 = 3;
    /// The stack could not be read.
    pub const UNREADABLE: u8 = 4;
    /// A signal handler runs on top of the frame; what it does is its own.
    pub const IN_SIGNAL_HANDLER: u8 = 5;
    /// Not every allocator call is seen at this depth: the user side follows the stack to the call, if there is one.
    pub const FOLLOW: u8 = 6;
}

/// What has to be known for [`attribution::FOLLOW`].
pub mod following {
    /// A signal handler runs that has interrupted an allocator call.
    pub const IN_HANDLER: u8 = 1;
    /// The slow path has a probe, so that what was asked for becomes known.
    pub const REQUESTS_SEEN: u8 = 2;
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
    /// What the slot held at entry. On x86_64, where reading it costs more than all else, only kept for realloc, the
    /// memalign family and malloc_trim; else 0, and a record has what the slot holds at the system call.
    pub return_address: u64,
    /// Bytes asked for (0 for free; the pad for malloc_trim). calloc: count x size, saturated.
    pub request: u64,
    /// The pointer handed in (free, realloc), else the alignment (memalign family), else 0.
    pub argument: u64,
    /// Size field of the chunk behind `argument` with its flag bits, for free and realloc; 0 when not read.
    pub chunk: u64,
    /// Number of this call among the thread's, from 1: equal for all system calls of one call.
    pub call: u64,
    /// One of [`entry`].
    pub entry: u8,
    /// 1 once a second hit of this call has been ignored: each call has one at most.
    pub second_hit: u8,
    pub _pad: [u8; 2],
    /// The process's [`ProcessState::epoch`] when it was kept.
    pub epoch: u32,
}

impl Frame {
    pub const NONE: Self = Self {
        slot: 0,
        return_address: 0,
        request: 0,
        argument: 0,
        chunk: 0,
        call: 0,
        entry: 0,
        second_hit: 0,
        _pad: [0; 2],
        epoch: 0,
    };
}

/// A call of the slow path (glibc's `_int_malloc`), as kept at its entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowFrame {
    /// Address of the slot that holds the return address; 0 when none is kept.
    pub slot: u64,
    /// Into the function that called it.
    pub return_address: u64,
    /// Bytes asked for.
    pub request: u64,
    /// Number of this call among the thread's hits, from 1.
    pub call: u64,
    /// The process's [`ProcessState::epoch`] when it was kept.
    pub epoch: u32,
    pub _pad: u32,
}

impl SlowFrame {
    pub const NONE: Self = Self {
        slot: 0,
        return_address: 0,
        request: 0,
        call: 0,
        epoch: 0,
        _pad: 0,
    };
}

/// What the slow path was asked for, sent when a memory system call of the thread came before it: glibc sets up arenas
/// and thread caches before it gets there, and what grew by that grew for this request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestRecord {
    pub header: Header,
    /// Load address of the libc.
    pub libc_base: u64,
    pub frame: SlowFrame,
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

/// Words of the user stack that every system call record carries, from the stack pointer upwards.
pub const STACK_WORDS: usize = 8;

/// Words of the stack when an allocator call seems to be on it, so that the way back to it can be followed: most calls
/// that grow or trim a heap fit, and a program can make ten thousand of them in a second.
pub const MORE_STACK_WORDS: usize = 48;

/// Words of the stack when the allocator call is farther: glibc's deepest one, realloc in a new arena, takes some 100.
pub const MOST_STACK_WORDS: usize = 192;

/// A memory system call that has returned, with [`STACK_WORDS`], [`MORE_STACK_WORDS`] or [`MOST_STACK_WORDS`] of stack.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallRecord<const WORDS: usize = STACK_WORDS> {
    pub header: Header,
    /// When it was entered; the header has the time of its return.
    pub enter_ns: u64,
    pub args: [u64; 6],
    /// What it returned: a negative errno in -4095..0.
    pub result: i64,
    /// User registers at the system call, 0 when unknown: instruction pointer, stack pointer, frame pointer (rbp, x29)
    /// and link register (x30; 0 on x86_64).
    pub ip: u64,
    pub sp: u64,
    pub fp: u64,
    pub lr: u64,
    /// Load address of the libc that `frame` is of.
    pub libc_base: u64,
    /// The thread's last allocator call, whatever `attribution` says of it.
    pub frame: Frame,
    /// Its last call of the slow path, likewise; only at that depth.
    pub slow: SlowFrame,
    /// The thread's hits so far.
    pub hits: u64,
    pub heap: HeapState,
    pub snapshot: Snapshot,
    /// Resident pages of the process (anonymous + file + shared), as the kernel's counters say without a sum over
    /// CPUs; `u64::MAX` when unknown.
    pub resident_pages: u64,
    /// One of [`syscall`].
    pub syscall: u8,
    /// One of [`attribution`].
    pub attribution: u8,
    /// 1 when `heap` is of the main arena.
    pub main_arena: u8,
    /// Bits of [`following`].
    pub following: u8,
    /// How many words of the stack could be read; what `stack` has behind them means nothing.
    pub stack_words: u32,
    /// Words at the user stack pointer; the first [`STACK_WORDS`] are zeros where unreadable.
    pub stack: [u64; WORDS],
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
    /// FORK: 1 when the child is traced too. EXEC: 1 when another thread than the first made it, which the kernel's
    /// probes of one process do not outlive. PROCESS_EXIT: the wait status, [`STATUS_UNKNOWN`] when not known.
    pub detail: u32,
    pub snapshot: Snapshot,
}

/// No wait status has this value: only its low 16 bits are ever set.
pub const STATUS_UNKNOWN: u32 = u32::MAX;

/// Size classes of the histograms: class i counts sizes in [2^i, 2^(i+1)), class 0 also size 0.
pub const SIZE_CLASSES: usize = 48;

/// Exact totals of a process, kept by atomic additions in the kernel; what follows from others is not kept.
///
/// Calls at the interface: malloc, calloc and the memalign family `blocks + failed`; free `blocks + free_null`; realloc
/// `blocks + realloc_zero + realloc_resized + failed`; malloc_trim `trims`. Second hits and spurious frees are in
/// none of these.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Blocks asked for, by [`entry`] (realloc: only realloc(NULL, n)); for free, blocks freed. A call that fails for
    /// want of memory is counted here: its arguments do not show it.
    pub blocks: [u64; entry::COUNT],
    /// Bytes those blocks were asked for with; for free, chunk bytes.
    pub bytes: [u64; entry::COUNT],
    /// Calls that are certain to fail by their arguments alone (a request or an alignment above [`MOST_BYTES`], calloc
    /// overflow, an alignment that posix_memalign or aligned_alloc refuses): not among `blocks`.
    pub failed: [u64; entry::COUNT],
    pub free_null: u64,
    /// Freed chunks with IS_MMAPPED.
    pub freed_mapped_blocks: u64,
    pub freed_mapped_bytes: u64,
    /// Frees of thread arenas' chunks (NON_MAIN_ARENA).
    pub freed_non_main_blocks: u64,
    /// Frees whose chunk header could not be read: counted as blocks, not in bytes.
    pub free_unreadable: u64,
    /// realloc(NULL, n) and realloc(p, 0) reaching malloc and free, and first calls that pass their entry again: ignored.
    pub second_hits: u64,
    /// memalign family with a small alignment reaching malloc: ignored.
    pub second_hits_memalign: u64,
    /// Frees by libc itself when a thread ends (cached chunks, the cache's own struct).
    pub spurious_thread_exit: u64,
    /// The same free seen twice at a thread's first free (glibc 2.43 and later).
    pub spurious_first_free: u64,
    /// realloc(p, 0): frees, and their chunk bytes.
    pub realloc_zero: u64,
    pub realloc_zero_bytes: u64,
    /// realloc(p, n), with p and n not 0.
    pub realloc_resized: u64,
    /// Returns of realloc(p, n), by outcome: the same pointer, another one, NULL (those that `failed` has by their
    /// arguments left out).
    pub realloc_in_place: u64,
    pub realloc_moved: u64,
    pub realloc_failed: u64,
    /// All those returns (0 where no return probe could be used).
    pub realloc_returns: u64,
    /// Those whose chunk is larger than before, smaller than before, and a mapping of its own before and after.
    pub realloc_grown: u64,
    pub realloc_shrunk: u64,
    pub realloc_mapped: u64,
    /// Calls of malloc_trim.
    pub trims: u64,
    /// Hits that count no call at the depth of the moment: of the slow path, and of probes that are just being put in
    /// place or taken away.
    pub uncounted: u64,
    /// Memory system calls by [`syscall`], and how many of them failed.
    pub syscalls: [u64; syscall::COUNT],
    pub syscalls_failed: [u64; syscall::COUNT],
    /// Records lost since the ring buffer was full, or the kernel skipped one side of a system call.
    pub lost_records: u64,
    /// Hits and system calls of threads for which there was no room in the thread table: counted, without a frame.
    pub lost_threads: u64,
    /// System calls of every kind, while they are counted.
    pub all_syscalls: u64,
    /// Sizes asked for.
    pub request_sizes: [u64; SIZE_CLASSES],
    /// Chunk sizes freed.
    pub freed_sizes: [u64; SIZE_CLASSES],
}

impl LibcFacts {
    pub const NONE: Self = Self {
        site: [0; entry::COUNT],
        stack_moved: [0; entry::COUNT],
        text_start: 0,
        text_end: 0,
        main_arena: 0,
        mp: 0,
        top_offset: 0,
        first_free_twice: 0,
        exit_check: exit_check::NEVER,
        huge_page_offset: 0,
        hooks: [Hook::NONE; 2],
        first_argument: [0; entry::COUNT],
        slow_site: 0,
        slow_stack_moved: 0,
        spurious_free_returns: [0; SPURIOUS_SITES],
    };
}

impl Counters {
    pub const ZERO: Self = Self {
        blocks: [0; entry::COUNT],
        bytes: [0; entry::COUNT],
        failed: [0; entry::COUNT],
        free_null: 0,
        freed_mapped_blocks: 0,
        freed_mapped_bytes: 0,
        freed_non_main_blocks: 0,
        free_unreadable: 0,
        second_hits: 0,
        second_hits_memalign: 0,
        spurious_thread_exit: 0,
        spurious_first_free: 0,
        realloc_zero: 0,
        realloc_zero_bytes: 0,
        realloc_resized: 0,
        realloc_in_place: 0,
        realloc_moved: 0,
        realloc_failed: 0,
        realloc_returns: 0,
        realloc_grown: 0,
        realloc_shrunk: 0,
        realloc_mapped: 0,
        trims: 0,
        uncounted: 0,
        syscalls: [0; syscall::COUNT],
        syscalls_failed: [0; syscall::COUNT],
        lost_records: 0,
        lost_threads: 0,
        all_syscalls: 0,
        request_sizes: [0; SIZE_CLASSES],
        freed_sizes: [0; SIZE_CLASSES],
    };
}

/// Return addresses of libc's own calls to free that no program made.
pub const SPURIOUS_SITES: usize = 8;

/// A variable of an old glibc that holds a function to be called instead.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hook {
    /// Virtual address of the variable; 0 where there is none.
    pub variable: u64,
    /// Virtual address of the function that it holds at first.
    pub function: u64,
}

impl Hook {
    pub const NONE: Self = Self {
        variable: 0,
        function: 0,
    };
}

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
    /// One of [`exit_check`].
    pub exit_check: u32,
    /// Offset of `hp_pagesize` in malloc_par; 0 where it has none (before 2.35).
    pub huge_page_offset: u32,
    /// Those of malloc and of realloc (up to 2.33, see [`untouched`]).
    pub hooks: [Hook; 2],
    /// Which argument register holds the first argument at the site, by [`entry`]; other than 0 only where a function
    /// has one argument.
    pub first_argument: [u8; entry::COUNT],
    /// Virtual address of the probed instruction of the slow path, and by how much the stack pointer has moved there; 0
    /// where it has no probe.
    pub slow_site: u64,
    pub slow_stack_moved: u64,
    /// Return addresses of thread exit's calls to free; zeros at the end.
    pub spurious_free_returns: [u64; SPURIOUS_SITES],
}

/// A traced process. The user side writes it; the kernel side writes the load address, and for a child all of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessState {
    pub libc: LibcFacts,
    /// Load address of the libc, 0 before the first hit and after an exec.
    pub libc_base: u64,
    pub pid: u32,
    /// 1 to trace the children too.
    pub follow: u32,
    /// One of [`active`].
    pub active: u32,
    /// Bits of [`untouched`].
    pub untouched: u32,
    /// One of [`depth`].
    pub depth: u32,
    /// Counts the changes of what is watched: a frame kept before one says nothing of what came after it, since the calls
    /// in between were not seen.
    pub epoch: u32,
    /// One of [`source`].
    pub source: u32,
    /// Counts the changes of [`source`]: of a system call that was entered before one, or a handler that began, nothing is
    /// known after it.
    pub pause: u32,
}

/// Elements of [`map_names::LAST_SEEN`], a power of two.
pub const LAST_SEEN: u32 = 1 << 14;

/// A thread of a traced process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadState {
    pub frame: Frame,
    /// The frame a signal handler interrupted, given back at sigreturn.
    pub interrupted: Frame,
    /// The same of the slow path.
    pub slow: SlowFrame,
    pub interrupted_slow: SlowFrame,
    /// The memory system call the thread is in.
    pub pending_args: [u64; 6],
    pub pending_enter_ns: u64,
    /// munmap: the thread arena whose segment is about to go (it cannot be read afterwards), else 0.
    pub pending_arena: u64,
    /// Load address of the libc that `frame` is of.
    pub libc_base: u64,
    pub allocated_blocks: u64,
    pub allocated_bytes: u64,
    pub calls: u64,
    /// The entry point `again` is about to be passed once more by the call of this number; 0 by none.
    pub again_call: u64,
    /// Its slot then; 0: inside of that call.
    pub again_slot: u64,
    /// The stack pointer that the outermost signal handler has interrupted; 0 when not known.
    pub handler_sp: u64,
    /// Begin and end of the stack that this handler runs on; zeros when it is the interrupted one.
    pub handler_stack: [u64; 2],
    /// `tgid << 32 | tid`; 0 where the place is no thread's.
    pub key: u64,
    /// Its process's place in the tables.
    pub place: u32,
    /// Signal handlers on the stack.
    pub handlers: u32,
    /// The process's [`ProcessState::pause`] that what follows is of: `handlers`, `pending` and `entered`.
    pub pause: u32,
    pub _pad: u32,
    /// One of [`syscall`], plus one; 0 outside.
    pub pending: u8,
    /// The first free of this thread has been seen (glibc 2.43 and later pass it twice).
    pub freed: u8,
    /// libc has begun to free what it keeps for this thread.
    pub exiting: u8,
    /// One of [`entry`].
    pub again: u8,
    /// So many calls of the slow path are still to be told, see [`RequestRecord`].
    pub tell: u8,
    /// 1 when the entry of a memory system call has been seen, so that an exit without one tells of a skipped entry.
    pub entered: u8,
    /// Of the memory system call that has just returned: one of [`attribution`], and 1 when that is said of `interrupted`, not
    /// of `frame`. Kept here for a moment only, so that the verifier does not follow each of them through all that comes
    /// after.
    pub verdict: u8,
    pub verdict_of: u8,
}

impl ThreadState {
    /// What is at a place that no thread has.
    pub const NOBODY: Self = Self {
        frame: Frame::NONE,
        interrupted: Frame::NONE,
        slow: SlowFrame::NONE,
        interrupted_slow: SlowFrame::NONE,
        pending_args: [0; 6],
        pending_enter_ns: 0,
        pending_arena: 0,
        libc_base: 0,
        allocated_blocks: 0,
        allocated_bytes: 0,
        calls: 0,
        again_call: 0,
        again_slot: 0,
        handler_sp: 0,
        handler_stack: [0; 2],
        key: 0,
        place: 0,
        handlers: 0,
        pause: 0,
        _pad: 0,
        pending: 0,
        freed: 0,
        exiting: 0,
        again: 0,
        tell: 0,
        entered: 0,
        verdict: 0,
        verdict_of: 0,
    };
}

/// Where the kernel keeps what; found out by the user side, constant for the programs. Offsets are in bytes,
/// [`UNKNOWN_OFFSET`] where not known.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// Device and inode of memtrace's PID namespace; inode 0 in the initial one.
    pub namespace_device: u64,
    pub namespace_inode: u64,
    /// Possible CPUs; 0 when their parts of a counter cannot be read.
    pub cpus: u32,
    /// Shards of the counters: a power of two, at most [`MAX_SHARDS`].
    pub shards: u32,
    /// 1 when the registers of a task can be read in a tracepoint (bpf_task_pt_regs, 5.15 and later).
    pub frame_check: u32,
    pub task_pid: u32,
    pub task_tgid: u32,
    pub task_mm: u32,
    pub task_signal: u32,
    pub task_thread_pid: u32,
    pub task_exit_code: u32,
    /// task_struct.sas_ss_sp and sas_ss_size: the stack for signal handlers.
    pub task_signal_stack: u32,
    pub task_signal_stack_size: u32,
    /// signal_struct.live: threads of the process that have not yet begun to exit.
    pub signal_live: u32,
    /// struct pid: level, and numbers[] of struct upid.
    pub pid_level: u32,
    pub pid_numbers: u32,
    pub upid_size: u32,
    pub upid_nr: u32,
    pub upid_ns: u32,
    /// Inode number inside struct pid_namespace.
    pub namespace_inum: u32,
    /// mm_struct.rss_stat, its first counter.
    pub mm_rss: u32,
    /// Distance between two counters.
    pub rss_stride: u32,
    /// The value inside a counter.
    pub rss_count: u32,
    /// The pointer to the per-CPU parts inside a counter; unknown before Linux 6.2, which had none.
    pub rss_per_cpu: u32,
    /// The per-CPU base address of an array map's first element, inside struct bpf_array.
    pub array_per_cpu: u32,
    /// task_struct.rss_stat.count, ints: what a thread has not yet added to its process's counters; unknown from Linux
    /// 6.2 on, which has none.
    pub task_rss: u32,
}

/// More would cost more memory than it saves time.
pub const MAX_SHARDS: u32 = 32;

pub const UNKNOWN_OFFSET: u32 = u32::MAX;

impl KernelFacts {
    pub const UNKNOWN: Self = Self {
        namespace_device: 0,
        namespace_inode: 0,
        cpus: 0,
        shards: 1,
        frame_check: 0,
        task_pid: UNKNOWN_OFFSET,
        task_tgid: UNKNOWN_OFFSET,
        task_mm: UNKNOWN_OFFSET,
        task_signal: UNKNOWN_OFFSET,
        task_thread_pid: UNKNOWN_OFFSET,
        task_exit_code: UNKNOWN_OFFSET,
        task_signal_stack: UNKNOWN_OFFSET,
        task_signal_stack_size: UNKNOWN_OFFSET,
        signal_live: UNKNOWN_OFFSET,
        pid_level: UNKNOWN_OFFSET,
        pid_numbers: UNKNOWN_OFFSET,
        upid_size: 0,
        upid_nr: UNKNOWN_OFFSET,
        upid_ns: UNKNOWN_OFFSET,
        namespace_inum: UNKNOWN_OFFSET,
        mm_rss: UNKNOWN_OFFSET,
        rss_stride: 0,
        rss_count: UNKNOWN_OFFSET,
        rss_per_cpu: UNKNOWN_OFFSET,
        array_per_cpu: UNKNOWN_OFFSET,
        task_rss: UNKNOWN_OFFSET,
    };
}

const _: () = {
    // The offset basis and "a", as the algorithm's authors list them.
    assert!(fnv_1a(b"") == 0xcbf2_9ce4_8422_2325 && fnv_1a(b"a") == 0xaf63_dc4c_8601_ec8c);
    assert!(size_of::<KernelFacts>() == 16 + 24 * 4);
    assert!(size_of::<Header>() == 24);
    assert!(size_of::<Snapshot>() == 48);
    assert!(size_of::<Frame>() == 56);
    assert!(size_of::<HeapState>() == 48);
    assert!(size_of::<SyscallRecord>() == 24 + 8 + 48 + 8 + 32 + 8 + 56 + 40 + 8 + 48 + 48 + 8 + 8 + 64);
    assert!(
        size_of::<SyscallRecord<MOST_STACK_WORDS>>()
            == size_of::<SyscallRecord>() + 8 * (MOST_STACK_WORDS - STACK_WORDS)
    );
    assert!(size_of::<TrimRecord>() == 24 + 32 + 48 + 48);
    assert!(size_of::<LifeRecord>() == 24 + 8 + 48);
    assert!(size_of::<SlowFrame>() == 40);
    assert!(size_of::<RequestRecord>() == 24 + 8 + 40);
    assert!(size_of::<LibcFacts>() == 128 + 64 + 16 + 16 + 16 + 32 + 16 + 16 + 64);
    assert!(offset_of!(ThreadState, frame) == 0 && offset_of!(ThreadState, interrupted) == size_of::<Frame>());
    assert!(size_of::<ThreadState>() == 56 + 56 + 40 + 40 + 48 + 8 + 16 + 24 + 40 + 8 + 8 + 16);
    assert!(size_of::<ProcessState>() == size_of::<LibcFacts>() + 40);
};
