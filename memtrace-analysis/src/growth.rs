//! The book of growths: each step with its cause, its batch and the rule's word on it, and sums that stay small.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::batch::ArenaKey;
use crate::kept::Kept;
use crate::owner::Certainty;
use crate::report::{self, ArenaGrowth, Batch, Cause, MAX_STEPS, Step, StepBucket, StepKind};

/// Most sizes of steps, and most arenas, told apart.
const MAX_BUCKETS: usize = 512;
const MAX_ARENAS: usize = 4096;

/// A growth, ready to be entered.
#[derive(Clone, Debug)]
pub struct Entry {
    pub step: Step,
    pub arena: Option<ArenaKey>,
    pub matching: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    steps: u64,
    matching: u64,
    unpredicted: u64,
    bytes: u64,
}

impl Sum {
    const fn add(&mut self, bytes: u64, matching: bool, predicted: bool) {
        self.steps = self.steps.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        if matching {
            self.matching = self.matching.saturating_add(1);
        }
        if !predicted {
            self.unpredicted = self.unpredicted.saturating_add(1);
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct ArenaSum {
    grown: Sum,
    returned: u64,
}

#[derive(Clone, Debug)]
pub struct GrowthBook {
    steps: Kept<Step>,
    by_kind: BTreeMap<StepKind, Sum>,
    buckets: BTreeMap<(StepKind, u64), Sum>,
    other_buckets: Sum,
    arenas: BTreeMap<ArenaKey, ArenaSum>,
    other_arenas: ArenaSum,
    direct_break: Sum,
}

impl Default for GrowthBook {
    fn default() -> Self {
        Self {
            steps: Kept::new(MAX_STEPS),
            by_kind: BTreeMap::new(),
            buckets: BTreeMap::new(),
            other_buckets: Sum::default(),
            arenas: BTreeMap::new(),
            other_arenas: ArenaSum::default(),
            direct_break: Sum::default(),
        }
    }
}

impl GrowthBook {
    pub fn enter(&mut self, entry: Entry) {
        let Entry { step, arena, matching } = entry;
        let predicted = step.predicted_bytes.is_some();
        self.by_kind
            .entry(step.kind)
            .or_default()
            .add(step.bytes, matching, predicted);
        if step.cause.entry == report::DIRECT && step.kind == StepKind::Brk {
            self.direct_break.add(step.bytes, matching, predicted);
        }
        let bucket = (step.kind, step.bytes);
        if self.buckets.len() < MAX_BUCKETS || self.buckets.contains_key(&bucket) {
            self.buckets
                .entry(bucket)
                .or_default()
                .add(step.bytes, matching, predicted);
        } else {
            self.other_buckets.add(step.bytes, matching, predicted);
        }
        if let Some(arena) = arena {
            self.arena(arena).grown.add(step.bytes, matching, predicted);
        }
        self.steps.push(step);
    }

    fn arena(&mut self, key: ArenaKey) -> &mut ArenaSum {
        if self.arenas.len() >= MAX_ARENAS && !self.arenas.contains_key(&key) {
            return &mut self.other_arenas;
        }
        self.arenas.entry(key).or_default()
    }

    /// An arena gave bytes back.
    pub fn returned(&mut self, arena: ArenaKey, bytes: u64) {
        let arena = self.arena(arena);
        arena.returned = arena.returned.saturating_add(bytes);
    }

    /// A segment's arena became known: what was counted under the segment is the arena's.
    pub fn rename(&mut self, segment: ArenaKey, arena: ArenaKey) {
        if segment == arena {
            return;
        }
        let Some(sum) = self.arenas.remove(&segment) else {
            return;
        };
        let into = self.arena(arena);
        into.returned = into.returned.saturating_add(sum.returned);
        into.grown = Sum {
            steps: into.grown.steps.saturating_add(sum.grown.steps),
            matching: into.grown.matching.saturating_add(sum.grown.matching),
            unpredicted: into.grown.unpredicted.saturating_add(sum.grown.unpredicted),
            bytes: into.grown.bytes.saturating_add(sum.grown.bytes),
        };
    }

    fn kind(&self, kind: StepKind) -> Sum {
        self.by_kind.get(&kind).copied().unwrap_or_default()
    }

    /// Growths that are counted but not listed.
    pub const fn omitted(&self) -> u64 {
        self.steps.omitted()
    }

    /// Growths of all kinds.
    pub fn count(&self) -> u64 {
        self.by_kind
            .values()
            .fold(0, |sum, kind| sum.saturating_add(kind.steps))
    }

    /// Bytes of all growths.
    pub fn bytes(&self) -> u64 {
        self.by_kind
            .values()
            .fold(0, |sum, kind| sum.saturating_add(kind.bytes))
    }

    pub fn report(&self) -> report::Growth {
        let brk = self.kind(StepKind::Brk);
        let (mapped, remapped) = (self.kind(StepKind::Mmap), self.kind(StepKind::Mremap));
        let (arena, segment) = (self.kind(StepKind::Arena), self.kind(StepKind::ArenaSegment));
        let mut histogram: Vec<StepBucket> = self
            .buckets
            .iter()
            .map(|((kind, bytes), sum)| StepBucket {
                kind: *kind,
                bytes: *bytes,
                count: sum.steps,
                matching: sum.matching,
            })
            .collect();
        histogram.sort_by(|a, b| (a.kind, b.count, a.bytes).cmp(&(b.kind, a.count, b.bytes)));
        report::Growth {
            brk_steps_total: brk.steps,
            brk_steps_matching: brk.matching,
            brk_steps_unpredicted: brk.unpredicted,
            brk_steps_direct: self.direct_break.steps,
            brk_bytes: brk.bytes,
            mapped_blocks: mapped.steps,
            mapped_matching: mapped.matching,
            mapped_bytes: mapped.bytes.saturating_add(remapped.bytes),
            main_pieces: self.kind(StepKind::MmapMain).steps,
            main_piece_bytes: self.kind(StepKind::MmapMain).bytes,
            arena_steps_total: arena.steps.saturating_add(segment.steps),
            arena_steps_matching: arena.matching.saturating_add(segment.matching),
            arena_bytes: arena.bytes.saturating_add(segment.bytes),
            histogram,
            histogram_omitted: self.other_buckets.steps,
            steps: self.steps.iter().cloned().collect(),
            steps_omitted: self.steps.omitted(),
            arenas: self.arena_reports(),
            arenas_omitted: self.other_arenas.grown.steps,
        }
    }

    fn arena_reports(&self) -> Vec<ArenaGrowth> {
        let report = |(key, sum): (&ArenaKey, &ArenaSum)| ArenaGrowth {
            arena: match key {
                ArenaKey::Main => None,
                ArenaKey::Thread(address) => Some(*address),
            },
            main: *key == ArenaKey::Main,
            steps: sum.grown.steps,
            matching: sum.grown.matching,
            bytes: sum.grown.bytes,
            returned_bytes: sum.returned,
        };
        self.arenas.iter().map(report).collect()
    }
}

/// The cause of a step as the report shows it.
pub fn cause(entry: &str, request: u64, attribution: &str) -> Cause {
    Cause {
        entry: entry.to_string(),
        request,
        attribution: attribution.to_string(),
        request_known: attribution != Certainty::EntryOnly.name(),
    }
}

/// A step as the report shows it, before its kind's rule is asked.
pub fn step(growth: &crate::meaning::Growth, time_ns: u64, tid: u32, cause: Cause, batch: Option<Batch>) -> Step {
    Step {
        time_ns,
        tid,
        kind: growth.kind,
        from: growth.from,
        to: growth.to,
        bytes: growth.bytes(),
        predicted_bytes: None,
        reason: None::<String>,
        arena: None,
        cause,
        batch,
    }
}
