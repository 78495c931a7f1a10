//! What one look at a process found, as plain data.
//!
//! Field names are the keys of `explain`'s JSON document (version 1, docs/explain.schema.json). Programs rely on them:
//! add fields freely, rename none. Sizes are bytes, addresses numbers.
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        reason = "sums of amounts that lie in the address space of one process, and differences of what was compared before"
    )
)]

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

pub use super::books::Settings;
use super::heap::State;
use super::problem::Problem;
pub use super::verdict::{Cause, CauseKind, Verdict, VerdictKind};

pub const EXPLAIN_VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    pub explain_version: u32,
    pub target: Target,
    pub taken: Taken,
    /// What was read does not fit together or moved meanwhile; the figures are not exact.
    pub torn: bool,
    /// Torn, and not since the process moved: the heap contradicts itself.
    pub damaged: bool,
    /// What did not fit together.
    pub problems: Vec<Described>,
    pub resident: Resident,
    /// None where malloc's books could not be read; `heap_unknown` says why.
    pub heap: Option<HeapView>,
    pub heap_unknown: Option<String>,
    pub thresholds: Option<ThresholdView>,
    /// What malloc_trim(0) would give back now.
    pub trim_would_return_bytes: Option<u64>,
    pub predictions: Vec<Prediction>,
    /// Settings that do something else than was probably meant.
    pub knobs: Vec<Knob>,
    pub verdict: Verdict,
    pub machine: Option<Machine>,
    pub cgroup: Option<Cgroup>,
    /// What could not be found out, a sentence each.
    pub not_seen: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Target {
    pub pid: u32,
    pub name: String,
    pub command: String,
    pub threads: u32,
    /// Release of the glibc that serves it, e.g. "2.36".
    pub glibc: Option<String>,
    pub library: Option<String>,
    /// Another allocator's library that it maps.
    pub other_allocator: Option<String>,
}

/// When and how the look was taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Taken {
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// Since the process started, nanoseconds; tells whether two looks are of one process.
    pub process_age_ns: u64,
    /// The process stood still.
    pub stopped: bool,
    /// How long it stood still, nanoseconds.
    pub stopped_ns: u64,
    /// Looks that were thrown away, since the process had moved under them.
    pub retries: u32,
    /// Something in the arenas changed during the look, if nothing that would make the figures wrong.
    pub ran_on: bool,
    pub duration_ns: u64,
    pub page_size: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Described {
    #[serde(flatten)]
    pub problem: Problem,
    pub text: String,
}

/// Every resident byte of the process once. The parts `live` to `other_anon` add up to `total`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resident {
    pub total: u64,
    /// In blocks that the program holds, mapped ones included.
    pub live: u64,
    /// Freed by the program, kept by malloc: top, bins, fastbins, thread caches.
    pub retained: u64,
    /// Chunk headers, thread caches' structures, arenas, fenceposts.
    pub allocator_overhead: u64,
    /// Pages of files: page cache, which the kernel can take back.
    pub file: u64,
    /// Shared memory (memfd, /dev/shm, System V, shared anonymous).
    pub shared: u64,
    pub stacks: u64,
    /// Anonymous memory that malloc never saw.
    pub other_anon: u64,

    pub retained_parts: Retained,
    /// Of `live`, in blocks with a mapping of their own.
    pub live_mapped: u64,
    /// What `file`, `shared`, `stacks` and `other_anon` consist of; largest first.
    pub parts: Vec<Part>,
    /// Of `other_anon`: of the heap, but not understood.
    pub heap_unknown: u64,
    /// Not resident: in swap.
    pub swapped: u64,
    /// Resident, but given to the kernel to take when it wants (MADV_FREE).
    pub lazily_freed: u64,
    /// Resident in transparent huge pages.
    pub huge: u64,
    /// In hugetlbfs pages, which no figure of residency includes.
    pub hugetlb: u64,
}

impl Resident {
    /// Of the parts that make up `total`.
    pub const fn sum(&self) -> u64 {
        self.live + self.retained + self.allocator_overhead + self.file + self.shared + self.stacks + self.other_anon
    }
}

/// Retained bytes by where they are, and by what it would take to get them back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retained {
    pub top: u64,
    pub bins: u64,
    pub fastbins: u64,
    pub thread_caches: u64,
    /// In pages that malloc_trim(0) gives back.
    pub trimmable: u64,
    /// In pages of which a part is live.
    pub pinned: u64,
    /// In pages without anything live that malloc_trim leaves alone: thread arenas' tops, thread caches.
    pub kept: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub kind: PartKind,
    /// File or name of the mapping, where it has one.
    pub name: Option<String>,
    pub bytes: u64,
    pub mappings: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// Pages of the program's and the libraries' files.
    CodeFile,
    /// Pages of other mapped files.
    DataFile,
    Shared,
    MainStack,
    ThreadStack,
    /// Variables of the program and its libraries: written pages of files, and the zeroed memory behind them.
    StaticData,
    /// In the break's range, but not malloc's.
    Break,
    /// In the heap, where malloc's books could not be followed.
    UnreadHeap,
    /// The program's (or a library's, or a runtime's) own anonymous mappings.
    OwnMapping,
    /// vdso and the like.
    Kernel,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    pub blocks: u64,
    pub bytes: u64,
    pub resident_bytes: u64,
}

impl Amount {
    pub fn add(&mut self, bytes: u64, resident: u64) {
        self.blocks += 1;
        self.bytes += bytes;
        self.resident_bytes += resident;
    }

    pub fn merge(&mut self, other: Amount) {
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.resident_bytes += other.resident_bytes;
    }
}

/// Chunk sizes throughout, as in glibc's own statistics: a block's request plus 8 bytes, rounded up to 16.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeapView {
    pub live_blocks: u64,
    pub live_bytes: u64,
    /// Bytes a program could use of its live blocks (malloc_usable_size).
    pub live_usable_bytes: u64,
    /// Top, bins and fastbins (mallinfo2's fordblks).
    pub free_bytes: u64,
    /// In thread caches (which mallinfo2 counts among uordblks).
    pub cached_bytes: u64,
    pub cached_blocks: u64,
    pub fastbin_bytes: u64,
    pub fastbin_blocks: u64,
    /// Taken from the system for arenas, resident or not.
    pub system_bytes: u64,
    pub mapped_blocks: u64,
    /// Bytes of mapped blocks' mappings, by malloc's books.
    pub mapped_bytes: u64,
    pub thread_caches: u64,
    pub arenas: Vec<ArenaView>,
    /// Live and free chunks by size class: class i counts sizes in [2^i, 2^(i+1)).
    pub live_classes: Vec<SizeClass>,
    pub free_classes: Vec<SizeClass>,
    /// The chunk sizes that hold most live bytes.
    pub live_sizes: Vec<LiveSize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArenaView {
    /// "main" or "thread".
    pub kind: String,
    pub address: u64,
    pub system_bytes: u64,
    pub max_system_bytes: u64,
    pub top_bytes: u64,
    pub live_blocks: u64,
    pub live_bytes: u64,
    pub cached_bytes: u64,
    pub fastbin_bytes: u64,
    /// In bins: the top and fastbins left out.
    pub bin_bytes: u64,
    /// Thread caches' structures, fenceposts, headers of segments, the arena itself, memory of others in its range: what
    /// mallinfo2 counts as in use besides live and cached blocks.
    pub overhead_bytes: u64,
    pub resident_bytes: u64,
    pub retained_resident_bytes: u64,
    /// Of these, in pages without anything live.
    pub retained_whole_bytes: u64,
    pub trim_would_return_bytes: u64,
    /// The chunk that keeps the top from growing downwards, where free pages lie below it.
    pub pin: Option<Pin>,
    /// The highest chunk in the program's hands, where that is another one.
    pub live_pin: Option<Pin>,
    /// Free runs of a page and more below the top.
    pub free_runs: u64,
    pub largest_free_runs: Vec<Run>,
    pub segments: u64,
    /// Threads that use it; 0 where they are gone.
    pub attached_threads: u64,
    pub noncontiguous: bool,
    pub locked: bool,
    /// Why it cannot shrink, a sentence each.
    pub why: Vec<String>,
    pub map: Map,
}

/// A chunk that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// Of the block, as the program sees it.
    pub address: u64,
    /// Chunk size.
    pub bytes: u64,
    pub state: PinState,
    /// Resident bytes in free pages below it.
    pub free_below_bytes: u64,
    /// The cell of the map that it lies in.
    pub cell: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PinState {
    Live,
    /// In a thread cache.
    Cached,
    Fastbin,
    /// A thread cache's own structure.
    ThreadCacheStructure,
    /// A fencepost, or memory that is not malloc's.
    Boundary,
}

impl PinState {
    pub(super) fn of(state: State) -> PinState {
        match state {
            State::Live | State::Free => PinState::Live,
            State::Own => PinState::ThreadCacheStructure,
            State::Cached => PinState::Cached,
            State::Fast => PinState::Fastbin,
            State::Fence | State::Foreign => PinState::Boundary,
        }
    }
}

/// Adjacent free chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub address: u64,
    pub bytes: u64,
    /// In pages that a trim gives back.
    pub resident_bytes: u64,
    /// The block that ends it, its chunk size and state.
    pub held_by: u64,
    pub held_by_bytes: u64,
    pub held_by_state: PinState,
}

/// An arena from its lowest address to its top's end, in cells of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Map {
    pub cell_bytes: u64,
    pub cells: Vec<Cell>,
}

/// Bytes of each kind in one cell of a map; kinds that do not occur are left out of the document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cell {
    #[serde(skip_serializing_if = "is_zero")]
    pub live: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub free: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub cached: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub fast: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub top: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub foreign: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub resident: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl Cell {
    pub fn merge(&mut self, other: &Cell) {
        let Cell {
            live,
            free,
            cached,
            fast,
            top,
            foreign,
            resident,
        } = other;
        self.live += live;
        self.free += free;
        self.cached += cached;
        self.fast += fast;
        self.top += top;
        self.foreign += foreign;
        self.resident += resident;
    }

    /// Bytes of all kinds.
    pub fn bytes(&self) -> u64 {
        self.live + self.free + self.cached + self.fast + self.top + self.foreign
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeCount {
    pub blocks: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeClass {
    /// Smallest size of the class; the next one begins at twice of it.
    pub from_bytes: u64,
    pub blocks: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveSize {
    pub chunk_bytes: u64,
    pub blocks: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThresholdView {
    pub mmap: u64,
    pub trim: u64,
    pub top_pad: u64,
    /// The dynamic rule is in force.
    pub dynamic: bool,
    /// Everything else mp_ says.
    pub settings: Settings,
}

/// What one measure would give back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    pub action: Action,
    pub bytes: u64,
    /// `bytes` is exact for the moment of the look, or the most it can be.
    pub bound: Bound,
    /// What to do, as one would type it.
    pub how: String,
    pub evidence: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    MallocTrim,
    LowerTrimThreshold,
    FixedMmapThreshold,
    FewerArenas,
    ThreadCacheOff,
    OtherAllocator,
    /// It is live.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    Exact,
    AtMost,
}

/// A setting that is probably wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knob {
    /// "M_MMAP_MAX", "M_TRIM_THRESHOLD", ...
    pub name: String,
    pub text: String,
}

/// /proc/meminfo
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub total: u64,
    pub free: u64,
    pub available: u64,
    pub page_cache: u64,
    pub swap_total: u64,
    pub swap_free: u64,
}

/// The control group that accounts for the process's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cgroup {
    /// As /proc/PID/cgroup names it.
    pub path: String,
    /// 1 or 2.
    pub version: u32,
    pub current: u64,
    pub anonymous: u64,
    pub file: u64,
    pub inactive_file: u64,
    pub active_file: u64,
    pub shared: u64,
    pub slab_reclaimable: u64,
    /// `current` minus inactive file pages: what Kubernetes looks at.
    pub working_set: u64,
    /// The tightest limit on the way up; None for no limit.
    pub limit: Option<u64>,
    pub limit_path: Option<String>,
    /// What the group of that limit uses now.
    pub limit_current: Option<u64>,
    /// What of the limit's group the kernel can take back at once: clean file pages and slab.
    pub limit_reclaimable: Option<u64>,
    /// Bytes until only killing helps: the limit minus what is used and cannot be reclaimed.
    pub until_oom: Option<u64>,
    pub oom_kills: Option<u64>,
}

impl PartKind {
    /// As people call it.
    pub fn words(self) -> &'static str {
        match self {
            PartKind::CodeFile => "program and library files",
            PartKind::DataFile => "mapped files",
            PartKind::Shared => "shared memory",
            PartKind::MainStack => "main stack",
            PartKind::ThreadStack => "thread stacks",
            PartKind::StaticData => "static variables",
            PartKind::Break => "the program's own part of the break",
            PartKind::UnreadHeap => "heap that could not be read",
            PartKind::OwnMapping => "own mappings",
            PartKind::Kernel => "the kernel's pages",
        }
    }
}
