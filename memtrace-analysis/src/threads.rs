//! Each thread's allocator call in progress, as far as system calls show it.
//!
//! A call is known by its number in the thread; it is over when the thread makes a system call in the course of another
//! one. A call whose last attempt to get memory was refused returned NULL: glibc tries each way it has and fails with
//! the last.

use alloc::collections::BTreeMap;

use crate::event::{Entry, Frame};

/// Most threads followed at a time.
const MAX_THREADS: usize = 16_384;

/// What one allocator call has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    pub number: u64,
    pub entry: Option<Entry>,
    pub request: u64,
    /// The totals count a block for it.
    pub makes_block: bool,
    /// The totals count it as failed already.
    pub asks_too_much: bool,
    /// The break was asked for and refused.
    pub break_refused: bool,
    /// A mapping was asked for and refused.
    pub map_refused: bool,
    /// Address space for a segment was asked for and refused.
    pub segment_refused: bool,
    /// The last attempt to get memory was refused.
    pub starved: bool,
    /// Growths of the break so far.
    pub break_steps: u32,
    /// Address space reserved for a segment: start and end, before its trimming.
    pub reserved: Option<(u64, u64)>,
    /// It has led to a munmap of a block.
    pub unmapped: bool,
    /// It has lowered the break or shrunk a thread arena.
    pub trimmed: bool,
}

impl Call {
    const fn of(frame: &Frame) -> Self {
        Self {
            number: frame.call,
            entry: Some(frame.entry),
            request: frame.request,
            makes_block: frame.makes_block(),
            asks_too_much: frame.asks_too_much(),
            break_refused: false,
            map_refused: false,
            segment_refused: false,
            starved: false,
            break_steps: 0,
            reserved: None,
            unmapped: false,
            trimmed: false,
        }
    }
}

/// Calls that failed for want of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Calls that were counted as blocks, and the bytes they asked for.
    pub blocks: u64,
    pub bytes: u64,
    /// Calls of realloc: the block lives on as it was.
    pub reallocs: u64,
}

impl Failures {
    fn add(&mut self, call: &Call) {
        if !call.starved || call.asks_too_much {
            return;
        }
        if call.makes_block {
            self.blocks = self.blocks.saturating_add(1);
            self.bytes = self.bytes.saturating_add(call.request);
        } else if call.entry == Some(Entry::Realloc) {
            self.reallocs = self.reallocs.saturating_add(1);
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Threads {
    calls: BTreeMap<u32, Call>,
    failed: Failures,
    /// Where threads beyond the limit do their work: nothing is remembered of it.
    overflow: Call,
    not_followed: u64,
}

impl Threads {
    /// The call that a system call of thread `tid` belongs to.
    pub fn enter(&mut self, tid: u32, frame: &Frame) -> &mut Call {
        let fresh = Call::of(frame);
        if self.calls.len() >= MAX_THREADS && !self.calls.contains_key(&tid) {
            self.not_followed = self.not_followed.saturating_add(1);
            self.overflow = fresh;
            return &mut self.overflow;
        }
        let call = self.calls.entry(tid).or_insert(fresh);
        if call.number != frame.call || call.entry != Some(frame.entry) {
            self.failed.add(call);
            *call = fresh;
        }
        call
    }

    /// The call in progress, if `frame` is of it.
    pub fn current(&self, tid: u32, frame: &Frame) -> Call {
        match self.calls.get(&tid) {
            Some(call) if call.number == frame.call && call.entry == Some(frame.entry) => *call,
            _ => Call::of(frame),
        }
    }

    pub fn exit(&mut self, tid: u32) {
        if let Some(call) = self.calls.remove(&tid) {
            self.failed.add(&call);
        }
    }

    /// Calls that got no memory, those still open counted by how they stand.
    pub fn failures(&self) -> Failures {
        let mut failures = self.failed;
        self.calls.values().for_each(|call| failures.add(call));
        failures
    }

    /// System calls of threads beyond the limit.
    pub const fn not_followed(&self) -> u64 {
        self.not_followed
    }

    /// What has become of the calls in progress will not be known; of those that were refused memory, least of all.
    pub fn lose_sight(&mut self) {
        self.calls.clear();
    }

    /// A new program: no call of the old one goes on.
    pub fn clear(&mut self) {
        self.failed = self.failures();
        self.calls.clear();
    }
}
