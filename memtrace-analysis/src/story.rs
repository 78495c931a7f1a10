//! The story of one process: events applied in order, books kept.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::batch::{ArenaKey, Batches};
use crate::chunk::{self, SizeField};
use crate::direct::{self, DirectBook, Origins};
use crate::event::{
    AllocatorKind, EndReason, Entry, Event, EventKind, Frame, HeapState, Start, Syscall, SyscallKind, Thresholds,
    Totals,
};
use crate::growth::{self, GrowthBook};
use crate::ledger::Ledger;
use crate::live::{Live, Rate};
use crate::meaning::{self, Growth, Meaning, Return, ReturnWay, Surroundings};
use crate::modules::Modules;
use crate::owner::{self, Certainty, Owner, mman};
use crate::predict::{self, Known};
use crate::regions::{RegionKind, Regions};
use crate::report::{self, Cause, DirectKind, StepKind, ThreadsSection};
use crate::returned::ReturnBook;
use crate::rule::{self, HEAP_MAX};
use crate::stream::{News, ReturnEvent};
use crate::tally::Tally;
use crate::threads::Threads;
use crate::threshold::ThresholdBook;
use crate::trims::TrimBook;
use crate::version::Version;

/// Direct calls that wait for the first list of modules.
const MAX_UNPLACED: usize = 1024;
/// Segments whose arena is remembered.
const MAX_SEGMENTS: usize = 16_384;
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
    pub exited: bool,
    pub thread_count: u32,
    pub life: ThreadsSection,
    pub resident_begin: Option<u64>,
    pub resident_end: Option<u64>,
    pub break_begin: Option<u64>,
    pub oddities: BTreeMap<String, u64>,
    pub ledger: Ledger,
    pub regions: Regions,
    pub modules: Modules,
    pub threads: Threads,
    pub batches: Batches,
    pub growth: GrowthBook,
    pub threshold: ThresholdBook,
    pub returned: ReturnBook,
    pub trims: TrimBook,
    pub direct: DirectBook,
    pub tally: Tally,
    pub unplaced: VecDeque<(Syscall, bool, i64)>,
    origins: Origins,
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
                self.exited = true;
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
                self.modules.learn(modules);
                self.place();
            }
            EventKind::Tick => {}
            EventKind::End { reason } => self.ended = Some(*reason),
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
        self.place_rest();
        self.origins = Origins::default();
        self.regions.clear();
        self.modules.clear();
        self.threads.clear();
        self.trims.clear();
        self.batches.clear(self.ledger.latest());
        self.tids.clear();
        self.threshold.forget();
        self.segments.clear();
        self.thread_count = 1;
    }

    fn totals(&mut self, time_ns: u64, totals: &Totals) {
        self.ledger.observe_totals(totals);
        self.rate.observe(time_ns, sum(&totals.calls));
    }

    fn snapshot(&mut self, tid: u32, snapshot: &crate::event::Snapshot) {
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
    fn heap(&mut self, time_ns: u64, heap: Option<&HeapState>, snapshot: &crate::event::Snapshot) {
        let Some(thresholds) = heap.and_then(|heap| heap.thresholds) else {
            return;
        };
        let before = self.threshold.changes();
        self.threshold
            .read(time_ns, &thresholds, snapshot.allocated_blocks <= 1);
        self.tell_threshold(before);
    }

    pub fn page_size(&self) -> u64 {
        self.start
            .as_ref()
            .map(|start| start.page_size)
            .filter(|size| size.is_power_of_two())
            .unwrap_or(PAGE_SIZE)
    }

    fn syscall(&mut self, time_ns: u64, tid: u32, syscall: &Syscall) {
        self.snapshot(tid, &syscall.snapshot);
        self.resident(syscall.resident_bytes);
        let whose = owner::owner(syscall, &self.regions);
        self.tally.count(syscall, whose);
        let frame = match whose {
            Owner::Call { frame, .. } => Some(frame),
            Owner::Direct { .. } | Owner::Unknown => None,
        };
        match whose {
            Owner::Call { frame, certainty } => {
                self.threads.enter(tid, frame);
                if certainty == Certainty::Proven {
                    self.origins.allocator_call(syscall);
                }
            }
            Owner::Direct { .. } => self.origins.direct_call(syscall),
            Owner::Unknown => {}
        }
        self.freed_mapped(time_ns, syscall, frame);
        self.heap(time_ns, syscall.heap.as_ref(), &syscall.snapshot);
        let around = Surroundings {
            regions: &self.regions,
            call: frame.map(|frame| self.threads.current(tid, frame)).unwrap_or_default(),
            mmap_threshold: thresholds(syscall)
                .map(|read| read.mmap_threshold)
                .or(self.threshold.mmap_threshold()),
            page_size: self.page_size(),
            version: self.version,
        };
        let meaning = meaning::read(syscall, whose, &around);
        if syscall.kind == SyscallKind::Brk {
            self.regions.set_break(syscall.result.cast_unsigned());
            self.break_begin = self.break_begin.or(self.regions.break_end());
        }
        match meaning {
            Meaning::Growth(growth) => self.grown(time_ns, tid, syscall, whose, &growth),
            Meaning::Return(returned) => self.gave_back(time_ns, tid, syscall, frame, &returned),
            Meaning::Refused => {
                if let Some(frame) = frame {
                    let call = self.threads.enter(tid, frame);
                    call.starved = true;
                    call.break_refused |= syscall.kind == SyscallKind::Brk;
                    call.map_refused |= syscall.kind == SyscallKind::Mmap;
                    call.segment_refused |= syscall.kind == SyscallKind::Mmap && syscall.args[2] == mman::PROT_NONE;
                }
            }
            Meaning::Reserved { start, bytes } => {
                self.regions.insert(start, bytes, RegionKind::Reservation);
                if let Some(frame) = frame {
                    let call = self.threads.enter(tid, frame);
                    call.reserved = Some((start, start.saturating_add(bytes)));
                    call.starved = false;
                }
            }
            Meaning::ReservationTrimmed => {
                self.regions.remove(syscall.args[0], syscall.args[1]);
            }
            Meaning::BreakAsked { .. } | Meaning::Nothing | Meaning::Direct => {}
        }
        if let Owner::Direct { in_handler } = whose {
            self.direct_call(syscall, in_handler, &meaning);
        }
    }

    /// free of a mapped chunk: the thresholds follow, before its munmap.
    fn freed_mapped(&mut self, time_ns: u64, syscall: &Syscall, frame: Option<&Frame>) {
        let Some(Frame {
            entry: Entry::Free,
            chunk: Some(field),
            ..
        }) = frame
        else {
            return;
        };
        if syscall.kind != SyscallKind::Munmap || !SizeField(*field).mapped() {
            return;
        }
        let before = self.threshold.changes();
        self.threshold
            .mapped_chunk_freed(time_ns, SizeField(*field).bytes(), thresholds(syscall).as_ref());
        self.tell_threshold(before);
    }

    fn grown(&mut self, time_ns: u64, tid: u32, syscall: &Syscall, whose: Owner, growth: &Growth) {
        let arena = self.arena_of(growth, syscall.heap.as_ref());
        let (frame, cause) = self.cause(syscall, whose);
        let batch = match frame {
            Some(frame) => self.batches.close(tid, arena, Some(frame), &syscall.snapshot),
            // What others take closes nobody's batch.
            None => report::Batch::default(),
        };
        let mut step = growth::step(growth, time_ns, tid, cause, batch);
        step.arena = match arena {
            Some(ArenaKey::Thread(address)) => Some(address),
            Some(ArenaKey::Main) | None => None,
        };
        if let Some(frame) = frame {
            let call = self.threads.current(tid, frame);
            let prediction = predict::predict(
                growth,
                &Known {
                    frame,
                    heap: syscall.heap.as_ref(),
                    top_pad: thresholds(syscall)
                        .map(|read| read.top_pad)
                        .or(self.threshold.top_pad()),
                    page_size: self.page_size(),
                    version: self.version,
                    break_steps: call.break_steps,
                },
            );
            let served = prediction.chunk.or(chunk::asked_of_arena(frame, self.page_size()));
            step.predicted_bytes = prediction.bytes;
            step.reason = prediction.reason;
            if let Some(chunk) = served.filter(|_| growth.kind != StepKind::Mremap) {
                let own_mapping = growth.kind == StepKind::Mmap;
                let in_force = thresholds(syscall).map(|read| read.mmap_threshold);
                self.threshold
                    .large_request(chunk, own_mapping, call.map_refused, in_force);
            }
        } else {
            step.reason = Some(match whose {
                Owner::Unknown => "whose step it is could not be told".to_string(),
                _ => "moved outside the allocator (sbrk or brk of the program's own)".to_string(),
            });
        }
        let matching = frame.is_some() && step.predicted_bytes == Some(step.bytes);
        self.remember_growth(tid, frame, growth);
        self.tell(|| News::Growth(step.clone()));
        self.growth.enter(growth::Entry { step, arena, matching });
    }

    fn cause<'a>(&self, syscall: &'a Syscall, whose: Owner<'a>) -> (Option<&'a Frame>, Cause) {
        match whose {
            Owner::Call { frame, certainty } => (
                Some(frame),
                growth::cause(frame.entry.name(), frame.request, certainty.name()),
            ),
            Owner::Direct { .. } => (None, growth::cause(report::DIRECT, 0, report::DIRECT)),
            Owner::Unknown => {
                let request = syscall.args[0];
                (None, growth::cause(report::UNKNOWN, request, report::UNKNOWN))
            }
        }
    }

    /// The arena a growth is one of; None for mapped blocks.
    fn arena_of(&mut self, growth: &Growth, heap: Option<&HeapState>) -> Option<ArenaKey> {
        match growth.kind {
            StepKind::Brk | StepKind::MmapMain => Some(ArenaKey::Main),
            StepKind::Mmap | StepKind::Mremap => None,
            StepKind::Arena | StepKind::ArenaSegment => {
                let segment = self
                    .regions
                    .find(growth.from)
                    .map_or(growth.from, |region| region.start);
                let read = heap.filter(|heap| !heap.main).and_then(|heap| heap.arena);
                Some(ArenaKey::Thread(self.arena_of_segment(segment, read)))
            }
        }
    }

    /// A segment's arena: as read, as read before, else the segment's own address stands for it.
    fn arena_of_segment(&mut self, segment: u64, read: Option<u64>) -> u64 {
        let known = self.segments.get(&segment).copied();
        let Some(arena) = read.or(known) else { return segment };
        if known.is_none() && self.segments.len() < MAX_SEGMENTS {
            self.segments.insert(segment, arena);
            self.growth.rename(ArenaKey::Thread(segment), ArenaKey::Thread(arena));
        }
        arena
    }

    fn remember_growth(&mut self, tid: u32, frame: Option<&Frame>, growth: &Growth) {
        if let Some(frame) = frame {
            let call = self.threads.enter(tid, frame);
            call.starved = false;
            // What was refused has been made up for; the call may need memory once more.
            (call.break_refused, call.map_refused, call.segment_refused) = (false, false, false);
            if growth.kind == StepKind::Brk {
                call.break_steps = call.break_steps.saturating_add(1);
            }
        }
        let bytes = growth.bytes();
        match growth.kind {
            StepKind::Brk => {}
            StepKind::Mmap => self.regions.insert(growth.from, bytes, RegionKind::MappedBlock),
            StepKind::MmapMain => {
                self.regions.insert(growth.from, bytes, RegionKind::MainPiece);
            }
            StepKind::Mremap => {
                if let Some((start, old)) = growth.replaced {
                    self.regions.remove(start, old);
                    self.regions.insert(
                        growth.from.saturating_sub(old),
                        bytes.saturating_add(old),
                        RegionKind::MappedBlock,
                    );
                }
            }
            StepKind::ArenaSegment => {
                let reserved = self
                    .regions
                    .find(growth.from)
                    .map_or(HEAP_MAX, |region| region.end.saturating_sub(growth.from));
                self.regions.insert(growth.from, reserved, RegionKind::ArenaHeap);
                if let Some(region) = self.regions.at_mut(growth.from) {
                    region.usable = bytes;
                }
            }
            StepKind::Arena => {
                let start = self.regions.find(growth.from).map(|region| region.start);
                if let Some(region) = start.and_then(|start| self.regions.at_mut(start)) {
                    region.usable = growth.to.saturating_sub(region.start);
                }
            }
        }
    }

    fn gave_back(&mut self, time_ns: u64, tid: u32, syscall: &Syscall, frame: Option<&Frame>, returned: &Return) {
        let arena = match returned.way {
            ReturnWay::BreakDown => Some(ArenaKey::Main),
            ReturnWay::ArenaShrunk | ReturnWay::SegmentUnmapped => {
                let segment = self.regions.find(returned.start).map(|region| region.start);
                let read = syscall.heap.filter(|heap| !heap.main).and_then(|heap| heap.arena);
                segment.map(|segment| ArenaKey::Thread(self.arena_of_segment(segment, read)))
            }
            ReturnWay::Munmap | ReturnWay::PagesAdvised | ReturnWay::Remapped => None,
        };
        if let Some(arena) = arena {
            self.growth.returned(arena, returned.bytes);
        }
        match returned.way {
            ReturnWay::Munmap | ReturnWay::SegmentUnmapped => {
                self.regions.remove(syscall.args[0], syscall.args[1]);
                self.segments.remove(&returned.start);
            }
            ReturnWay::Remapped => {
                self.regions.remove(syscall.args[0], syscall.args[1]);
                if let Some((start, bytes)) = returned.remains {
                    self.regions.insert(start, bytes, RegionKind::MappedBlock);
                }
            }
            ReturnWay::BreakDown | ReturnWay::ArenaShrunk | ReturnWay::PagesAdvised => {}
        }
        let Some(frame) = frame else { return };
        if frame.entry == Entry::MallocTrim {
            let earlier = self.trims.returned(time_ns, tid, frame.call, frame.request, returned);
            self.tell_trim(earlier);
        }
        let call = self.threads.enter(tid, frame);
        self.returned.enter(returned, frame, call);
        let predicted_bytes = self.predict_trim(syscall, frame, returned);
        self.tell(|| {
            News::Returned(ReturnEvent {
                time_ns,
                tid,
                way: way_name(returned.way).to_string(),
                start: returned.start,
                bytes: returned.bytes,
                entry: frame.entry.name().to_string(),
                pointer: matches!(frame.entry, Entry::Free | Entry::Realloc).then_some(frame.argument),
                predicted_bytes,
            })
        });
    }

    fn predict_trim(&self, syscall: &Syscall, frame: &Frame, returned: &Return) -> Option<u64> {
        if returned.way != ReturnWay::BreakDown {
            return None;
        }
        let heap = syscall.heap.as_ref().filter(|heap| heap.main)?;
        let pad = match frame.entry {
            Entry::MallocTrim => frame.request,
            _ => heap.thresholds.map(|read| read.top_pad).or(self.threshold.top_pad())?,
        };
        rule::break_trim(heap.top_size, pad, self.page_size())
    }

    fn direct_call(&mut self, syscall: &Syscall, in_handler: bool, meaning: &Meaning) {
        let net = net_bytes(syscall, meaning);
        let verdict = direct::classify(syscall, in_handler, &self.modules, &self.regions);
        let kind = verdict.as_ref().map_or(DirectKind::Unknown, |verdict| verdict.kind);
        self.note_direct_range(syscall, kind);
        match verdict {
            Some(verdict) => self.direct.enter(&verdict, syscall.kind, net),
            None => {
                if self.unplaced.len() >= MAX_UNPLACED {
                    self.place_oldest();
                }
                self.unplaced.push_back((syscall.clone(), in_handler, net));
            }
        }
    }

    fn note_direct_range(&mut self, syscall: &Syscall, kind: DirectKind) {
        let [start, bytes, new_bytes, ..] = syscall.args;
        if crate::tally::failed(syscall) {
            return;
        }
        let region = if kind == DirectKind::ThreadStack {
            RegionKind::ThreadStack
        } else {
            RegionKind::Direct(kind)
        };
        let at = syscall.result.cast_unsigned();
        match syscall.kind {
            SyscallKind::Mmap => self.regions.insert(at, bytes, region),
            SyscallKind::Munmap => {
                self.regions.remove(start, bytes);
            }
            SyscallKind::Mremap => {
                self.regions.remove(start, bytes);
                self.regions.insert(at, new_bytes, region);
            }
            SyscallKind::Brk | SyscallKind::Mprotect | SyscallKind::Madvise => {}
        }
    }

    /// Modules have become known: what waited for them finds its place.
    fn place(&mut self) {
        for (syscall, in_handler, net) in core::mem::take(&mut self.unplaced) {
            match direct::classify(&syscall, in_handler, &self.modules, &self.regions) {
                Some(verdict) => self.direct.enter(&verdict, syscall.kind, net),
                None => self.unplaced.push_back((syscall, in_handler, net)),
            }
        }
    }

    fn place_oldest(&mut self) {
        if let Some((syscall, in_handler, net)) = self.unplaced.pop_front() {
            self.direct
                .enter(&self.origins.guess(&syscall, in_handler), syscall.kind, net);
        }
    }

    /// What still waits will not be told any more.
    pub fn place_rest(&mut self) {
        while !self.unplaced.is_empty() {
            self.place_oldest();
        }
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

    fn tell_trim(&mut self, trim: Option<report::TrimReport>) {
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
        }
    }
}

fn thresholds(syscall: &Syscall) -> Option<Thresholds> {
    syscall.heap.and_then(|heap| heap.thresholds)
}

fn sum(values: &[u64]) -> u64 {
    values.iter().fold(0, |sum, value| sum.saturating_add(*value))
}

const fn way_name(way: ReturnWay) -> &'static str {
    match way {
        ReturnWay::Munmap => "munmap",
        ReturnWay::BreakDown => "break",
        ReturnWay::ArenaShrunk => "arena",
        ReturnWay::SegmentUnmapped => "segment",
        ReturnWay::PagesAdvised => "pages",
        ReturnWay::Remapped => "mremap",
    }
}

/// What a direct call added to the process's address space.
fn net_bytes(syscall: &Syscall, meaning: &Meaning) -> i64 {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let [_, bytes, new_bytes, ..] = syscall.args;
    if crate::tally::failed(syscall) {
        return 0;
    }
    match (syscall.kind, meaning) {
        (SyscallKind::Brk, Meaning::Growth(growth)) => signed(growth.bytes()),
        (SyscallKind::Brk, Meaning::Return(returned)) => signed(returned.bytes).saturating_neg(),
        (SyscallKind::Mmap, _) => signed(bytes),
        (SyscallKind::Munmap, _) => signed(bytes).saturating_neg(),
        (SyscallKind::Mremap, _) => signed(new_bytes).saturating_sub(signed(bytes)),
        (SyscallKind::Brk | SyscallKind::Mprotect | SyscallKind::Madvise, _) => 0,
    }
}
