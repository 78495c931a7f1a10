//! What the analysis found of one process, as plain data; renderers turn it into text or JSON.
//!
//! Field names are the keys of the JSON document (version 1, docs/report.schema.json). Programs rely on them: add
//! fields freely, rename none.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::event::{Allocator, Capabilities, Depth, EndReason, Realloc};
use crate::glibc::summary::LookSummary;

pub const REPORT_VERSION: u32 = 1;

/// Steps kept of the begin of a trace, and as many of its end.
pub const MAX_STEPS: usize = 2000;

/// `Cause::entry` where no allocator call made the growth.
pub const DIRECT: &str = "direct";
/// `Cause::entry` where it is not known who did.
pub const UNKNOWN: &str = "unknown";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub report_version: u32,
    pub target: TargetSection,
    pub coverage: Coverage,
    /// Calls at the interface by entry point's name; every name is there. What counts calls is None where none were
    /// counted (`coverage.depths.calls_ns` is 0), and holds those of the time in which they were where that was a part.
    pub calls: Option<BTreeMap<String, u64>>,
    pub allocated: Option<Allocated>,
    pub freed: Option<Freed>,
    /// Blocks allocated during the trace and not freed: exact for a process seen from its birth, else at least so many
    /// (which of the freed ones came from before is not known). None unless every call was counted all the time.
    pub live_blocks: Option<u64>,
    pub threads: ThreadsSection,
    pub realloc: Option<Realloc>,
    pub syscalls: BTreeMap<String, SyscallCount>,
    pub growth: Growth,
    pub returned: Returned,
    pub trims: Vec<TrimReport>,
    /// Calls left out of `trims`.
    pub trims_omitted: u64,
    pub threshold: ThresholdSection,
    /// System calls that no allocation caused, by kind.
    pub direct: Vec<DirectGroup>,
    /// In plain words, with how sure.
    pub findings: Vec<Finding>,
    /// What malloc's own books said.
    #[serde(default)]
    pub looks: LooksSection,
    /// What the trace cost the process; None where that was not measured.
    #[serde(default)]
    pub cost: Option<CostSection>,
}

/// What the trace took from the process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostSection {
    /// Probes hit.
    pub hits: u64,
    /// What one hit of a cheap probe costs on this machine, measured before the trace; None where it could not be.
    pub hit_ns: Option<f64>,
    /// CPU time the hits have taken, estimated from the two.
    pub trace_ns: u64,
    /// CPU time the process has used meanwhile, what the hits took included.
    pub cpu_ns: u64,
    /// `trace_ns` as a part of `cpu_ns`; None before the process has used any.
    pub share: Option<f64>,
    /// The limit asked for.
    pub max_share: Option<f64>,
    /// Longest time that putting probes in place, and taking them away, took.
    pub attach_ns: u64,
    pub detach_ns: u64,
    /// Longest pause that a running thread saw by either, measured on memtrace's own child.
    pub pause_ns: Option<u64>,
    /// What each system call takes longer while it is traced, of whatever kind.
    #[serde(default)]
    pub syscall_ns: Option<f64>,
    /// CPU time that this has taken: by the number of calls where that was counted, now and then, else at most, by the process's
    /// system time. No part of `trace_ns`.
    #[serde(default)]
    pub syscalls_ns: Option<u64>,
}

/// For how long what was watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepthTimes {
    pub calls_ns: u64,
    pub slow_path_ns: u64,
    pub syscalls_ns: u64,
    /// Not even memory system calls were watched.
    #[serde(default)]
    pub nothing_ns: u64,
}

/// A total that is known of a part of the time only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    /// Standard error, from how much the windows differ; None with fewer than two.
    pub standard_error: Option<f64>,
}

/// What all calls come to, from those of the time in which they were counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimates {
    pub allocated_blocks: Estimate,
    pub allocated_bytes: Estimate,
    pub freed_blocks: Estimate,
    /// Counting slowed the process down so much in the windows that there was at least this.
    pub lower_bound: bool,
}

/// Looks at malloc's books, taken from outside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LooksSection {
    /// As the trace began. None for a program that began with the trace or has replaced another one since: its books
    /// were empty.
    pub begin: Option<TimedLook>,
    /// As the trace ended; None where the process had ended before.
    pub end: Option<TimedLook>,
    /// Why there is none of the end.
    pub no_end: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimedLook {
    pub time_ns: u64,
    pub look: LookSummary,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetSection {
    pub pid: u32,
    pub name: String,
    pub command: String,
    /// Threads at the end (or the most recent count known).
    pub threads: u32,
    pub from_birth: bool,
    /// The allocator that serves malloc; `libc.version` is its version where it is glibc.
    pub libc: Allocator,
    pub page_size: u64,
    pub resident_bytes_begin: Option<u64>,
    pub resident_bytes_end: Option<u64>,
    pub break_begin: Option<u64>,
    pub break_end: Option<u64>,
    /// Times the process replaced its program during the trace.
    pub execs: u32,
    pub exit_status: Option<i32>,
}

/// Threads and children that came and went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadsSection {
    pub started: u64,
    pub exited: u64,
    /// Most that were seen alive at a time.
    pub most_at_once: u32,
    /// Children made, and how many of them are traced too.
    pub forks: u64,
    pub forks_followed: u64,
}

/// How much of the truth this trace has seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    pub begin_ns: u64,
    pub end_ns: u64,
    pub duration_ns: u64,
    pub ended: Option<EndReason>,
    /// Records lost since the ring buffer was full, or the kernel skipped one side of a system call.
    pub lost_events: u64,
    /// Hits of threads without a slot.
    pub lost_threads: u64,
    /// Frees whose chunk header could not be read.
    pub unreadable: u64,
    /// Events that made no sense, by kind.
    pub oddities: BTreeMap<String, u64>,
    /// Second hits of one call, ignored.
    pub second_hits: u64,
    pub spurious_frees_thread_exit: u64,
    pub spurious_frees_first_free: u64,
    pub capabilities: Capabilities,
    /// What was watched as the trace ended.
    pub depth: Depth,
    /// memtrace has chosen the depth itself.
    pub depth_automatic: bool,
    pub depths: DepthTimes,
    /// Part of the time in which every call was counted, 0 to 1.
    pub calls_fraction: f64,
    /// Part of the time in which memory system calls were watched, 0 to 1.
    #[serde(default = "whole")]
    pub syscalls_fraction: f64,
    /// Stretches of time in which every call was counted.
    pub windows: u64,
    /// What was not counted, estimated; None where all or nothing was.
    pub estimates: Option<Estimates>,
    /// Whose a system call is could be told.
    pub owners_told: bool,
    /// What is not known, a sentence each.
    pub not_seen: Vec<String>,
}

/// Documents that do not say were made when there were no pauses.
const fn whole() -> f64 {
    1.0
}

/// For how much of the time every call was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    Always,
    /// In windows.
    Sometimes,
    Never,
}

impl Coverage {
    pub const fn calls_counted(&self) -> Counted {
        match self.depths {
            DepthTimes { calls_ns: 0, .. } if !matches!(self.depth, Depth::Calls) => Counted::Never,
            DepthTimes {
                slow_path_ns: 0,
                syscalls_ns: 0,
                nothing_ns: 0,
                ..
            } => Counted::Always,
            _ => Counted::Sometimes,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Allocated {
    pub blocks: u64,
    pub requested_bytes: u64,
    /// Calls that returned no block.
    pub failed: u64,
    /// Of these, calls told to have failed by their last memory system call being refused.
    pub failed_inferred: u64,
    /// Blocks and bytes by entry point's name (only those that occur).
    pub by_entry: BTreeMap<String, BlocksBytes>,
    /// Class i counts requests in [2^i, 2^(i+1)).
    pub sizes: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlocksBytes {
    pub blocks: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Freed {
    pub blocks: u64,
    pub chunk_bytes: u64,
    /// Blocks allocated before the trace: at least so many of `blocks`.
    pub from_before: u64,
    /// free(NULL)
    pub null: u64,
    /// Blocks that had a mapping of their own.
    pub mapped_blocks: u64,
    pub mapped_bytes: u64,
    pub sizes: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyscallCount {
    pub count: u64,
    pub failed: u64,
    /// In the course of an allocator call: proven, or likely (kernels that cannot show it).
    pub attributed: u64,
    pub direct: u64,
    /// Neither, for want of evidence.
    pub unknown: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    pub brk_steps_total: u64,
    pub brk_steps_matching: u64,
    /// Steps whose prediction could not be made (top unknown).
    pub brk_steps_unpredicted: u64,
    /// Steps that no allocator call made (the program's own sbrk): in the total, never matching.
    pub brk_steps_direct: u64,
    pub brk_bytes: u64,
    /// Mappings made for one block each, and how many are as long as predicted.
    pub mapped_blocks: u64,
    pub mapped_matching: u64,
    /// Bytes of such mappings, and by which they grew (mremap).
    pub mapped_bytes: u64,
    /// Pieces of the main arena that were mapped, the break being blocked.
    pub main_pieces: u64,
    pub main_piece_bytes: u64,
    /// Thread arenas' growth by mprotect.
    pub arena_steps_total: u64,
    pub arena_steps_matching: u64,
    pub arena_bytes: u64,
    /// By kind, the most frequent size first.
    pub histogram: Vec<StepBucket>,
    /// Steps of sizes beyond those in `histogram`.
    pub histogram_omitted: u64,
    /// In order of time; the first `MAX_STEPS` and the last ones are kept on long traces.
    pub steps: Vec<Step>,
    /// Steps left out of `steps`.
    pub steps_omitted: u64,
    pub arenas: Vec<ArenaGrowth>,
    /// Steps of arenas beyond those in `arenas`.
    pub arenas_omitted: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepBucket {
    pub kind: StepKind,
    pub bytes: u64,
    pub count: u64,
    pub matching: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// The main arena, by moving the break.
    Brk,
    /// A mapping for one block.
    Mmap,
    /// A thread arena, by mprotect in its segment.
    Arena,
    /// A new segment of a thread arena.
    ArenaSegment,
    /// A piece of the main arena, mapped since the break is blocked.
    MmapMain,
    /// A mapped block that grew.
    Mremap,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub time_ns: u64,
    pub tid: u32,
    pub kind: StepKind,
    pub from: u64,
    pub to: u64,
    pub bytes: u64,
    /// By glibc's rule; None where the top (or the request) is not known.
    pub predicted_bytes: Option<u64>,
    /// Why it does not match, where that is known.
    pub reason: Option<String>,
    /// Address of the thread arena (or of its segment, while the arena is not known); None for all else.
    pub arena: Option<u64>,
    pub cause: Cause,
    /// None where not every call was counted since the growth before.
    pub batch: Option<Batch>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    /// Entry point's name, or "direct".
    pub entry: String,
    pub request: u64,
    pub attribution: String,
    /// False where only the entry point is known, and `request` says nothing.
    #[serde(default = "yes")]
    pub request_known: bool,
}

const fn yes() -> bool {
    true
}

/// Blocks served since the growth before this one (of the same arena): the block that one was made for, up to the last
/// one before the block that this one is made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub blocks: u64,
    pub requested_bytes: u64,
    /// True for the first growth seen: what came before it is not known unless the trace saw the process's birth.
    pub first: bool,
    pub scope: BatchScope,
}

/// Whose allocations a batch counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchScope {
    /// The whole process's: it has one thread.
    #[default]
    Process,
    /// Those of the one thread that uses the arena.
    Thread,
    /// Those of all threads known to use the arena; what the others did since their last record goes into the next one.
    Threads,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArenaGrowth {
    pub arena: Option<u64>,
    pub main: bool,
    pub steps: u64,
    pub matching: u64,
    pub bytes: u64,
    pub returned_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returned {
    /// Frees that led to a munmap, to a lower break (or a thread arena's shrinking), to nothing; the last is None unless
    /// every call was counted all the time.
    pub frees_munmap: u64,
    pub frees_trim: u64,
    pub frees_nothing: Option<u64>,
    /// Chunk bytes of those frees; None where the chunk of one was not seen.
    pub frees_munmap_chunk_bytes: Option<u64>,
    pub frees_trim_chunk_bytes: Option<u64>,
    pub frees_nothing_chunk_bytes: Option<u64>,
    pub by_free_munmap_bytes: u64,
    /// The break lowered, or a thread arena shrunk, in the course of a free.
    pub by_free_trim_bytes: u64,
    /// By malloc_trim calls: break lowered and pages given back.
    pub by_trim_bytes: u64,
    /// By realloc: mappings let go of or made smaller, and trims in its course.
    pub by_realloc_bytes: u64,
    /// In the course of allocating calls (memalign gives back what it cut off).
    pub by_other_calls_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrimReport {
    pub time_ns: u64,
    /// When it returned; None when that was not seen.
    pub end_ns: Option<u64>,
    pub tid: u32,
    pub pad: u64,
    pub before: TrimSide,
    /// None when its return was not seen.
    pub after: Option<TrimSide>,
    /// Break lowered plus bytes handed back by madvise and munmap in its course (address space, resident or not).
    pub returned_bytes: u64,
    pub break_lowered_bytes: u64,
    pub madvised_bytes: u64,
    pub madvise_calls: u64,
    pub unmapped_bytes: u64,
    /// What glibc said (1: something was given back), not to be relied on.
    pub result: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrimSide {
    #[serde(rename = "break")]
    pub break_end: Option<u64>,
    pub resident_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThresholdSection {
    pub history: Vec<ThresholdChange>,
    /// Changes left out of `history`.
    pub history_omitted: u64,
    /// Large requests that went as the threshold then in force says, and those that did not.
    pub requests_as_predicted: u64,
    pub requests_otherwise: u64,
    /// Whether the inferred values equal those read from the process, where they were read.
    pub agrees_with_process: Option<bool>,
    /// False when a knob froze the rule.
    pub dynamic: Option<bool>,
    /// Bytes asked for beyond the need at each step of the break.
    pub top_pad: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThresholdChange {
    pub time_ns: u64,
    pub mmap_threshold: u64,
    pub trim_threshold: u64,
    /// In words: "at the start", "free of a mapped block of 2,101,248 bytes", "mallopt (read from the process)".
    pub cause: String,
    /// Read from the process, not only inferred.
    pub confirmed: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DirectGroup {
    pub kind: DirectKind,
    /// Module whose code made the calls, where known.
    pub module: Option<String>,
    pub syscalls: BTreeMap<String, u64>,
    /// Bytes mapped minus bytes unmapped.
    pub net_bytes: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectKind {
    /// Program start and dlopen.
    Loader,
    ThreadStack,
    /// The program's or a library's own mmap, munmap, mprotect, madvise.
    Program,
    /// The program's own brk or sbrk.
    ProgramBreak,
    /// libc itself outside malloc (stdio buffers it maps, locale files, ...).
    Libc,
    OtherAllocator,
    /// A runtime's collector or compiler.
    Runtime,
    SignalHandler,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// A stable name: "break_steps_confirmed", "kept_for_reuse", ...
    pub kind: String,
    /// One sentence for people.
    pub text: String,
    pub confidence: Confidence,
    /// What makes it uncertain.
    pub because: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    Proven,
    Likely,
    CannotTell,
}
