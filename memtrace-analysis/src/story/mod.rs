//! The story of one process: events applied in order, books kept.
//!
//! ```text
//! event -> apply -+- births, ends, totals, samples             (here)
//!                 +- system call -> owner -> meaning -+- growth   (grown)
//!                    (syscall)                        +- return   (gave_back)
//!                                                     +- outside the allocator (crate::outside)
//! ```

mod gave_back;
mod grown;
mod syscall;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::batch::Batches;
use crate::event::{AllocatorKind, Depth, EndReason, Event, EventKind, HeapState, Snapshot, Start, Totals, Watching};
use crate::growth::GrowthBook;
use crate::ledger::Ledger;
use crate::live::{Live, Rate};
use crate::looks::Looks;
use crate::outside::Outside;
use crate::regions::Regions;
use crate::report::{ThreadsSection, TrimReport};
use crate::returned::ReturnBook;
use crate::stream::News;
use crate::tally::Tally;
use crate::threads::Threads;
use crate::threshold::ThresholdBook;
use crate::trims::TrimBook;
use crate::version::Version;
use crate::watching::WatchBook;

/// Where the page size is not known.
const PAGE_SIZE: u64 = 4096;

#[derive(Clone, Debug, Default)]
pub struct Story {
    pub pid: Option<u32>,
    pub start: Option<Start>,
    pub version: Option<Version>,
    pub begin_ns: Option<u64>,
    pub end_ns: u64,
    pub ended: Option<EndReason>,
    pub execs: u32,
    pub exit_status: Option<i32>,
    pub thread_count: u32,
    pub life: ThreadsSection,
    pub resident_begin: Option<u64>,
    pub resident_end: Option<u64>,
    pub break_begin: Option<u64>,
    pub oddities: BTreeMap<String, u64>,
    pub ledger: Ledger,
    pub regions: Regions,
    pub threads: Threads,
    pub batches: Batches,
    pub growth: GrowthBook,
    pub threshold: ThresholdBook,
    pub returned: ReturnBook,
    pub trims: TrimBook,
    pub outside: Outside,
    pub tally: Tally,
    pub looks: Looks,
    pub watch: WatchBook,
    rate: Rate,
    tids: BTreeSet<u32>,
    /// Segment -> arena.
    segments: BTreeMap<u64, u64>,
    /// What is new since the last event; only kept when somebody asks.
    news: Option<Vec<News>>,
}

impl Story {
    pub fn apply(&mut self, event: &Event) {
        let Event {
            time_ns,
            pid,
            tid,
            kind,
        } = event;
        if *self.pid.get_or_insert(*pid) != *pid {
            self.odd("another process's event");
            return;
        }
        self.begin_ns.get_or_insert(*time_ns);
        self.end_ns = self.end_ns.max(*time_ns);
        match kind {
            EventKind::Start(start) => self.begin(*time_ns, start),
            EventKind::Syscall(syscall) => self.syscall(*time_ns, *tid, syscall),
            EventKind::TrimBegin(trim) => {
                self.snapshot(*tid, &trim.snapshot);
                self.resident(trim.resident_bytes);
                self.heap(*time_ns, trim.heap.as_ref(), &trim.snapshot);
                let earlier = self.trims.begin(*time_ns, *tid, trim, self.regions.break_end());
                self.tell_trim(earlier);
            }
            EventKind::TrimEnd(trim) => {
                self.snapshot(*tid, &trim.snapshot);
                self.resident(trim.resident_bytes);
                self.heap(*time_ns, trim.heap.as_ref(), &trim.snapshot);
                let done = self.trims.end(*time_ns, *tid, trim, self.regions.break_end());
                if done.is_none() {
                    self.odd("malloc_trim's return without its entry");
                }
                self.tell_trim(done);
            }
            EventKind::Fork { followed, .. } => {
                self.life.forks = self.life.forks.saturating_add(1);
                if *followed {
                    self.life.forks_followed = self.life.forks_followed.saturating_add(1);
                }
            }
            EventKind::Exec => self.exec(),
            EventKind::ThreadStart { .. } => {
                self.life.started = self.life.started.saturating_add(1);
                self.threads_alive(self.thread_count.saturating_add(1));
                self.batches.set_several_threads();
            }
            EventKind::ThreadExit => {
                self.life.exited = self.life.exited.saturating_add(1);
                self.thread_count = self.thread_count.saturating_sub(1).max(1);
                self.threads.exit(*tid);
                self.batches.exit(*tid);
                let trim = self.trims.close(*tid);
                self.tell_trim(trim);
            }
            EventKind::ProcessExit { status } => {
                self.exit_status = status.or(self.exit_status);
            }
            EventKind::Totals(totals) => self.totals(*time_ns, totals),
            EventKind::Sample(sample) => {
                self.resident(Some(sample.resident_bytes));
                self.threads_alive(sample.threads);
                if sample.threads > 1 {
                    self.batches.set_several_threads();
                }
                self.regions.suggest_break(sample.break_end);
            }
            EventKind::Modules(modules) => {
                self.outside.learn(modules, &self.regions);
            }
            EventKind::Tick => {}
            EventKind::End { reason } => self.ended = Some(*reason),
            EventKind::Look { moment, look } => self.looks.take(*time_ns, *moment, look),
            EventKind::Watching(watching) => self.watching(*time_ns, watching),
            EventKind::Cost(cost) => self.watch.cost(cost),
        }
    }

    pub fn odd(&mut self, what: &str) {
        let count = self.oddities.entry(what.to_string()).or_default();
        *count = count.saturating_add(1);
    }

    fn threads_alive(&mut self, count: u32) {
        self.thread_count = count;
        self.life.most_at_once = self.life.most_at_once.max(count);
    }

    fn begin(&mut self, time_ns: u64, start: &Start) {
        let glibc = matches!(start.allocator.kind, AllocatorKind::Glibc | AllocatorKind::GlibcStatic);
        self.version = start
            .allocator
            .version
            .as_deref()
            .filter(|_| glibc)
            .and_then(Version::parse);
        self.threshold
            .begin(time_ns, start.thresholds.as_ref(), glibc && start.from_birth);
        self.threads_alive(self.thread_count.max(start.threads));
        if start.threads > 1 {
            self.batches.set_several_threads();
        }
        self.resident(start.resident_bytes);
        self.regions.suggest_break(start.break_end);
        self.break_begin = self.break_begin.or(self.regions.break_end());
        match &mut self.start {
            // A second Start follows an exec: what was seen from its birth stays so.
            Some(known) => {
                *known = Start {
                    from_birth: known.from_birth,
                    ..start.clone()
                }
            }
            None => self.start = Some(start.clone()),
        }
    }

    fn exec(&mut self) {
        self.execs = self.execs.saturating_add(1);
        self.outside.new_program();
        self.regions.clear();
        self.threads.clear();
        self.trims.clear();
        self.batches.clear(self.ledger.latest());
        self.tids.clear();
        self.threshold.forget();
        self.segments.clear();
        self.looks.clear();
        self.thread_count = 1;
    }

    fn watching(&mut self, time_ns: u64, watching: &Watching) {
        let before = self.watch.now().map(|now| now.depth);
        self.watch.change(time_ns, *watching, self.ledger.latest());
        match (before, watching.depth) {
            (_, Depth::Nothing) if before != Some(Depth::Nothing) => self.lose_sight(),
            (Some(Depth::Nothing), after) if after != Depth::Nothing => {
                self.lose_sight();
                // The break as it was seen from outside meanwhile may be an old one.
                self.regions.forget_break();
            }
            _ => {}
        }
    }

    /// Memory system calls are not watched for a while: what they did before says nothing of what comes after.
    fn lose_sight(&mut self) {
        self.regions.lose_sight();
        self.segments.clear();
        self.threads.lose_sight();
        self.trims.clear();
    }

    fn totals(&mut self, time_ns: u64, totals: &Totals) {
        self.ledger.observe_totals(totals);
        if self.watch.counts_now() {
            self.rate.observe(time_ns, sum(&totals.calls));
        } else {
            self.rate = Rate::default();
        }
    }

    fn snapshot(&mut self, tid: u32, snapshot: &Snapshot) {
        self.ledger.observe(snapshot);
        self.batches.observe(tid, snapshot);
        if self.tids.len() < 2 && self.tids.insert(tid) && self.tids.len() == 2 {
            self.batches.set_several_threads();
        }
    }

    fn resident(&mut self, bytes: Option<u64>) {
        if bytes.is_some() {
            self.resident_begin = self.resident_begin.or(bytes);
            self.resident_end = bytes;
        }
    }

    /// Takes in what was read of glibc's books.
    fn heap(&mut self, time_ns: u64, heap: Option<&HeapState>, snapshot: &Snapshot) {
        let Some(thresholds) = heap.and_then(|heap| heap.thresholds) else {
            return;
        };
        let before = self.threshold.changes();
        self.threshold
            .read(time_ns, &thresholds, snapshot.allocated_blocks <= 1);
        self.tell_threshold(before);
    }

    /// Whose a system call is can be told: by probes, or by following the stack.
    pub fn tells_owners(&self) -> bool {
        let probed = self.start.as_ref().is_some_and(Start::watches_calls);
        self.watch.now().map_or(probed, |now| now.followed || probed)
    }

    pub fn page_size(&self) -> u64 {
        self.start
            .as_ref()
            .map(|start| start.page_size)
            .filter(|size| size.is_power_of_two())
            .unwrap_or(PAGE_SIZE)
    }

    pub fn listen(&mut self) {
        self.news.get_or_insert_default();
    }

    pub fn take_news(&mut self) -> Vec<News> {
        self.news.as_mut().map(core::mem::take).unwrap_or_default()
    }

    fn tell(&mut self, news: impl FnOnce() -> News) {
        if let Some(list) = &mut self.news {
            list.push(news());
        }
    }

    fn tell_trim(&mut self, trim: Option<TrimReport>) {
        if let Some(trim) = trim {
            self.tell(|| News::Trim(trim));
        }
    }

    fn tell_threshold(&mut self, before: u64) {
        if self.threshold.changes() > before
            && let Some(change) = self.threshold.last().cloned()
        {
            self.tell(|| News::Threshold(change));
        }
    }

    pub fn live(&self) -> Live {
        let totals = self.ledger.totals();
        Live {
            time_ns: self.end_ns,
            elapsed_ns: self.end_ns.saturating_sub(self.begin_ns.unwrap_or(self.end_ns)),
            calls: totals.map_or(0, |totals| sum(&totals.calls)),
            calls_per_second: self.rate.per_second(),
            live_blocks: self.ledger.live_blocks(self.threads.failures().blocks),
            break_end: self.regions.break_end(),
            resident_bytes: self.resident_end,
            growths: self.growth.count(),
            growth_bytes: self.growth.bytes(),
            returned_bytes: self.returned.bytes(),
            lost: totals.map_or(0, |totals| totals.lost_records),
            depth: self.watch.now().map(|now| now.depth),
            calls_fraction: self
                .watch
                .calls_fraction(self.begin_ns.unwrap_or(self.end_ns), self.end_ns),
            syscalls_fraction: self
                .watch
                .syscalls_fraction(self.begin_ns.unwrap_or(self.end_ns), self.end_ns),
            cost: self.watch.latest_cost().copied(),
        }
    }
}

fn sum(values: &[u64]) -> u64 {
    values.iter().fold(0, |sum, value| sum.saturating_add(*value))
}
