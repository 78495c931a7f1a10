//! A simulated program: calls of malloc and free in, events and the truth out.
//!
//! The model is a plain allocator that follows glibc where glibc meets the system: when the break moves and by how
//! much, which blocks are mapped, how thread arenas grow, what a free gives back, how the thresholds change. Between
//! the system calls it is simpler than glibc (first fit, free chunks merge at once, no thread cache but its struct).
//! It reckons with addresses, not with the rules of [`crate::rule`], so that the two can be held against each other.

mod arena;
mod calls;
mod system;
mod thread_arena;

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::event::{
    Allocator, AllocatorKind, Capabilities, EndReason, Entry, Event, EventKind, Frame, Snapshot, Start, Thresholds,
    Totals,
};
use crate::report::StepKind;
use arena::Arena;

/// How the simulated process is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    pub pid: u32,
    /// glibc's release, e.g. "2.36".
    pub version: String,
    pub page_size: u64,
    pub top_pad: u64,
    pub mmap_threshold: u64,
    pub trim_threshold: u64,
    /// False when a knob froze the thresholds.
    pub dynamic: bool,
    /// Where the heap begins.
    pub heap_start: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pid: 4242,
            version: "2.36".to_string(),
            page_size: 4096,
            top_pad: 128 << 10,
            mmap_threshold: 128 << 10,
            trim_threshold: 128 << 10,
            dynamic: true,
            heap_start: 0x5555_5555_9000,
        }
    }
}

/// A growth as the model made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrueStep {
    pub kind: StepKind,
    pub bytes: u64,
    /// Made by an allocator call, not by the program itself.
    pub by_allocator: bool,
}

/// What really happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    pub steps: Vec<TrueStep>,
    pub blocks: u64,
    pub requested_bytes: u64,
    pub failed: u64,
    pub freed_blocks: u64,
    pub freed_bytes: u64,
    pub freed_by_munmap_bytes: u64,
    pub freed_by_trim_bytes: u64,
    pub trimmed_bytes: u64,
    /// mmap_threshold after each change.
    pub thresholds: Vec<u64>,
}

/// A block of the program.
#[derive(Clone, Copy, Debug)]
struct Block {
    chunk: u64,
    size: u64,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Main,
    /// Arena of this thread.
    Thread(u32),
    Mapped,
}

#[derive(Clone, Debug, Default)]
struct Thread {
    calls: u64,
    blocks: u64,
    bytes: u64,
    has_cache: bool,
}

/// The process.
#[derive(Clone, Debug)]
pub struct Program {
    settings: Settings,
    clock_ns: u64,
    events: Vec<Event>,
    truth: Truth,
    totals: Totals,
    threads: BTreeMap<u32, Thread>,
    main: Arena,
    arenas: BTreeMap<u32, Arena>,
    break_end: u64,
    next_mapping: u64,
    mmap_threshold: u64,
    trim_threshold: u64,
    blocks: BTreeMap<usize, Block>,
    next_block: usize,
    /// The call each thread is in.
    frame: Option<Frame>,
    refuse_break: bool,
    refuse_mappings: bool,
}

impl Program {
    /// A process seen from its birth.
    pub fn new(settings: Settings) -> Self {
        let mut program = Self {
            clock_ns: 1_000_000_000,
            events: Vec::new(),
            truth: Truth::default(),
            totals: Totals::default(),
            threads: BTreeMap::new(),
            main: Arena::default(),
            arenas: BTreeMap::new(),
            break_end: settings.heap_start,
            next_mapping: 0x7f00_0000_0000,
            mmap_threshold: settings.mmap_threshold,
            trim_threshold: settings.trim_threshold,
            blocks: BTreeMap::new(),
            next_block: 0,
            frame: None,
            refuse_break: false,
            refuse_mappings: false,
            settings,
        };
        let start = program.start();
        program.emit(program.settings.pid, EventKind::Start(alloc::boxed::Box::new(start)));
        program
    }

    fn start(&self) -> Start {
        Start {
            name: "simulated".to_string(),
            command: "simulated".to_string(),
            threads: 1,
            from_birth: true,
            allocator: Allocator {
                kind: AllocatorKind::Glibc,
                version: Some(self.settings.version.clone()),
                path: None,
                build_id: None,
                evidence: "simulated".to_string(),
            },
            break_end: Some(self.break_end),
            page_size: self.settings.page_size,
            resident_bytes: None,
            thresholds: Some(self.thresholds()),
            capabilities: Capabilities {
                probed: Entry::ALL.to_vec(),
                frame_check: true,
                realloc_returns: false,
                trim_returns: true,
                heap_state: true,
                resident: false,
                limits: Vec::new(),
            },
        }
    }

    fn thresholds(&self) -> Thresholds {
        Thresholds {
            mmap_threshold: self.mmap_threshold,
            trim_threshold: self.trim_threshold,
            top_pad: self.settings.top_pad,
            dynamic: Some(self.settings.dynamic),
        }
    }

    /// brk is refused from now on, as when something is mapped above the heap.
    pub const fn refuse_break(&mut self, refuse: bool) {
        self.refuse_break = refuse;
    }

    /// mmap is refused from now on, as under a limit of address space.
    pub const fn refuse_mappings(&mut self, refuse: bool) {
        self.refuse_mappings = refuse;
    }

    /// Blocks that can be freed, oldest first.
    pub fn live(&self) -> impl Iterator<Item = usize> {
        self.blocks.keys().copied()
    }

    /// The process ends: its events, and the truth.
    pub fn end(mut self) -> (Vec<Event>, Truth) {
        let totals = self.totals.clone();
        self.emit(self.settings.pid, EventKind::Totals(alloc::boxed::Box::new(totals)));
        self.emit(self.settings.pid, EventKind::ProcessExit { status: Some(0) });
        self.emit(
            self.settings.pid,
            EventKind::End {
                reason: EndReason::ProcessExited,
            },
        );
        (self.events, self.truth)
    }

    fn emit(&mut self, tid: u32, kind: EventKind) {
        self.clock_ns = self.clock_ns.saturating_add(1000);
        self.events.push(Event {
            time_ns: self.clock_ns,
            pid: self.settings.pid,
            tid,
            kind,
        });
    }

    fn snapshot(&self, tid: u32) -> Snapshot {
        let thread = self.threads.get(&tid).cloned().unwrap_or_default();
        Snapshot {
            allocated_blocks: self.totals.allocated_blocks,
            allocated_bytes: self.totals.allocated_bytes,
            freed_blocks: self.totals.freed_blocks,
            freed_bytes: self.totals.freed_bytes,
            thread_allocated_blocks: thread.blocks,
            thread_allocated_bytes: thread.bytes,
        }
    }
}

const fn add(sum: &mut u64, value: u64) {
    *sum = sum.saturating_add(value);
}
