//! Why a process is as large as it is: causes with their bytes, and one verdict.
//!
//! Causes claim resident bytes. Those without `overlaps` claim different bytes, and can be added up; a cause that
//! overlaps is another reason for bytes that a cause before it has claimed already.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::books::Settings;
use super::look::{ArenaView, Cgroup, HeapView, PinState, Resident, Target};
use super::tally::ArenaTally;
use super::words::{bytes, count, counted, percent};
use crate::report::Confidence;

/// Of all three thresholds at the start.
pub const DEFAULT_THRESHOLD: u64 = 128 << 10;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub kind: VerdictKind,
    /// One sentence.
    pub text: String,
    pub confidence: Confidence,
    /// Most bytes first, those that overlap behind what they overlap with.
    pub causes: Vec<Cause>,
    /// What would have to be known to say more, a sentence each.
    pub missing: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// Freed, and kept by malloc in whole pages.
    Retention,
    /// Live blocks grow: a leak, or a cache without a limit.
    Growth,
    /// Freed, but every page of it holds something live.
    Fragmentation,
    /// Memory that malloc never saw.
    NotMalloc,
    Healthy,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    pub kind: CauseKind,
    pub bytes: u64,
    /// Another reason for bytes that a cause before this one claims.
    pub overlaps: bool,
    pub confidence: Confidence,
    /// The evidence, in a sentence.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    /// A live block lies above what was freed.
    TopPinnedLive,
    /// A block in a thread cache lies above what was freed.
    TopPinnedCached,
    /// Fastbins never merge by themselves.
    Fastbins,
    /// The top is free, and kept since it is smaller than the trim threshold.
    TrimThresholdRaised,
    /// The top is free, and kept since M_TOP_PAD says so.
    TopPadRaised,
    /// Large blocks came from the heap, since the threshold for mappings of their own had risen.
    MmapThresholdRaised,
    /// In thread arenas, each with its own survivors.
    ThreadArenas,
    /// Held in thread caches.
    ThreadCaches,
    Fragmentation,
    LiveGrowth,
    NotMalloc,
    PageCache,
}

/// What the judgement rests on.
pub struct Evidence<'a> {
    pub target: &'a Target,
    pub resident: &'a Resident,
    pub heap: Option<(&'a HeapView, &'a [ArenaTally], &'a Settings)>,
    pub heap_unknown: Option<&'a str>,
    pub torn: bool,
    pub damaged: bool,
    pub cgroup: Option<&'a Cgroup>,
}

/// Less than this is not worth a cause, or a verdict.
const LEAST_CAUSE: u64 = 256 << 10;
const LEAST_VERDICT: u64 = 4 << 20;
const LEAST_LARGE: u64 = 16 << 20;

pub fn judge(evidence: &Evidence<'_>) -> Verdict {
    let resident = evidence.resident;
    let mut causes = Vec::new();
    if let Some((heap, tallies, settings)) = evidence.heap {
        retention_causes(&mut causes, heap, tallies, settings);
    }
    let waste = causes
        .iter()
        .filter(|cause| !cause.overlaps)
        .map(|cause| cause.bytes)
        .sum::<u64>();
    let scattered: u64 = causes
        .iter()
        .filter(|cause| cause.kind == CauseKind::Fragmentation)
        .map(|cause| cause.bytes)
        .sum();
    let held = waste - scattered;
    let growth = evidence.heap.and_then(|(heap, _, _)| live_cause(heap, resident, waste));
    let foreign = not_malloc_cause(evidence);
    let cache = page_cache_cause(evidence);
    order(&mut causes);

    let total = resident.total;
    let significant = |part: u64, least: u64, share: u64| part >= least && part >= total / 100 * share;
    let mut missing = Vec::new();
    let (kind, text, confidence) = if evidence.heap.is_none()
        && resident.heap_unknown + resident.other_anon >= total / 2
    {
        let why = evidence.heap_unknown.unwrap_or("malloc's books could not be read");
        missing.push(format!("malloc's books: {why}"));
        match &evidence.target.other_allocator {
            Some(other) => (
                VerdictKind::NotMalloc,
                format!(
                    "{} of {} resident are anonymous memory that is not glibc's; this process maps another \
                     allocator, {other}, whose books this tool does not read",
                    bytes(resident.other_anon),
                    bytes(total)
                ),
                Confidence::Likely,
            ),
            None => (
                VerdictKind::Unknown,
                format!(
                    "cannot tell: {} of {} resident are anonymous memory, and how much of it malloc holds is not known",
                    bytes(resident.other_anon),
                    bytes(total)
                ),
                Confidence::CannotTell,
            ),
        }
    } else if significant(waste, LEAST_VERDICT, 10) && held >= scattered {
        (
            VerdictKind::Retention,
            retention_text(resident, &causes, held, total),
            Confidence::Proven,
        )
    } else if significant(waste, LEAST_VERDICT, 10) {
        let text = format!(
            "fragmentation: {} ({} of {} resident) were freed, but lie between live blocks on the same pages, where \
             nothing can give them back",
            bytes(scattered),
            percent(scattered, total),
            bytes(total)
        );
        (VerdictKind::Fragmentation, text, Confidence::Proven)
    } else if let Some(foreign) = foreign
        .as_ref()
        .filter(|cause| significant(cause.bytes, LEAST_LARGE, 50))
    {
        let text = format!(
            "not malloc's memory: {} of {} resident were never handed out by malloc",
            bytes(foreign.bytes),
            bytes(total)
        );
        (VerdictKind::NotMalloc, text, Confidence::Proven)
    } else if let Some((cause, suspicious)) = growth
        .as_ref()
        .filter(|(cause, _)| significant(cause.bytes, LEAST_VERDICT, 50))
    {
        missing.push(String::from(
            "whether it grows, and how fast: look again later (--watch 10s, or --diff with a stored look)",
        ));
        if *suspicious {
            let text = format!(
                "live blocks: {} of {} resident are in blocks that the program holds, most of them of one size, and the \
                 heap is at its largest ever: a leak, or a cache without a limit",
                bytes(resident.live),
                bytes(total)
            );
            (VerdictKind::Growth, text, cause.confidence)
        } else {
            let text = format!(
                "the memory is in use: {} of {} resident are in blocks that the program holds; whether they become \
                 more, one look cannot tell",
                bytes(resident.live),
                bytes(total)
            );
            (VerdictKind::Unknown, text, Confidence::CannotTell)
        }
    } else {
        let text = match &cache {
            Some(cache) => format!(
                "healthy: {} are file pages, which the kernel takes back when it needs them; malloc keeps only {} that \
                 the program has freed",
                bytes(cache.bytes),
                bytes(resident.retained)
            ),
            None => format!(
                "healthy: of {} resident, malloc keeps {} that the program has freed, which is not worth a measure",
                bytes(total),
                bytes(resident.retained)
            ),
        };
        (VerdictKind::Healthy, text, Confidence::Proven)
    };
    let growth = growth.map(|(cause, _)| cause).filter(|cause| {
        kind == VerdictKind::Growth || kind == VerdictKind::Unknown || significant(cause.bytes, LEAST_VERDICT, 30)
    });
    let foreign = foreign.filter(|cause| significant(cause.bytes, LEAST_LARGE, 20));
    causes.extend(growth.into_iter().chain(foreign).chain(cache));
    let confidence = if evidence.torn && confidence == Confidence::Proven {
        Confidence::Likely
    } else {
        confidence
    };
    if evidence.torn {
        missing.push(String::from(
            "a look that fits together: the heap moved or is damaged, see the problems",
        ));
    }
    Verdict {
        kind,
        text,
        confidence,
        causes,
        missing,
    }
}

fn retention_text(resident: &Resident, causes: &[Cause], held: u64, total: u64) -> String {
    let first = causes
        .iter()
        .find(|cause| !cause.overlaps && cause.kind != CauseKind::Fragmentation);
    let why = match first.map(|cause| cause.kind) {
        Some(CauseKind::TopPinnedLive) => "a live block above them keeps the heap from shrinking",
        Some(CauseKind::TopPinnedCached) => "a thread cache lies above them and keeps the heap from shrinking",
        Some(CauseKind::Fastbins) => {
            "they sit in fastbins, which merge with nothing until malloc_trim or a large request"
        }
        Some(CauseKind::TrimThresholdRaised) => {
            "they are the top of the heap, which is kept as long as it is smaller than the raised trim threshold"
        }
        Some(CauseKind::TopPadRaised) => "M_TOP_PAD keeps that much at the top of the heap",
        Some(CauseKind::MmapThresholdRaised) => {
            "they were large blocks, taken from the heap since the mmap threshold had risen"
        }
        Some(CauseKind::ThreadArenas) => "they lie in thread arenas, which give little back by themselves",
        Some(CauseKind::ThreadCaches) => "they sit in thread caches",
        _ => "malloc keeps them",
    };
    let back = resident.retained_parts.trimmable;
    format!(
        "retention: {} ({} of {} resident) were freed by the program and not given back: {why}; malloc_trim(0) would \
         return {}",
        bytes(held),
        percent(held, total),
        bytes(total),
        bytes(back)
    )
}

/// Largest first, each followed by those that overlap with it.
fn order(causes: &mut Vec<Cause>) {
    let mut groups: Vec<Vec<Cause>> = Vec::new();
    for cause in causes.drain(..) {
        match groups.last_mut() {
            Some(group) if cause.overlaps => group.push(cause),
            _ => groups.push(vec![cause]),
        }
    }
    groups.retain(|group| group[0].bytes >= LEAST_CAUSE);
    groups.sort_by_key(|group| core::cmp::Reverse(group[0].bytes));
    causes.extend(groups.into_iter().flatten());
}

/// Resident bytes below main's top by the reason they stay, and so on; adds up over the arenas.
fn retention_causes(causes: &mut Vec<Cause>, heap: &HeapView, tallies: &[ArenaTally], settings: &Settings) {
    let raised = settings.mmap_threshold > DEFAULT_THRESHOLD;
    let (mut fastbins, mut scattered, mut thread_arenas, mut thread_pins) = (0, 0, 0, 0);
    let mut thread_count = 0;
    for (view, tally) in heap.arenas.iter().zip(tallies) {
        let merging = tally
            .trim
            .saturating_sub(tally.trim_unmerged)
            .max(tally.fast.resident_bytes);
        fastbins += merging.min(tally.fast.resident_bytes + tally.free.resident_bytes + tally.top.resident_bytes);
        let retained = tally.fast.resident_bytes
            + tally.free.resident_bytes
            + tally.cached.resident_bytes
            + tally.top.resident_bytes;
        let holes = tally.trim_below_top.saturating_sub(merging);
        let partial = retained
            .saturating_sub(tally.whole)
            .saturating_sub(tally.fast.resident_bytes);
        let settled = scattered_holes(view, holes);
        scattered += partial + if view.kind == "main" { settled } else { 0 };
        if view.kind == "main" {
            main_holes(causes, view, tally, settings, raised, holes - settled);
            main_top(causes, tally, settings);
        } else {
            let whole = tally.whole.saturating_sub(merging);
            thread_arenas += whole;
            thread_count += 1;
            if view.pin.is_some() {
                thread_pins += holes;
            }
        }
    }
    if thread_arenas > 0 {
        let gone = heap
            .arenas
            .iter()
            .filter(|arena| arena.kind == "thread" && arena.attached_threads == 0)
            .count();
        let idle = match gone {
            0 => String::new(),
            1 => String::from("; the threads of one of them are gone"),
            gone => format!("; the threads of {gone} of them are gone"),
        };
        causes.push(Cause {
            kind: CauseKind::ThreadArenas,
            bytes: thread_arenas,
            overlaps: false,
            confidence: Confidence::Proven,
            text: format!(
                "{} hold {} in free pages; a thread arena shrinks only from its end, and malloc_trim leaves its top \
                 alone{idle}",
                counted(thread_count, "thread arena"),
                bytes(thread_arenas)
            ),
        });
        if thread_pins >= LEAST_CAUSE {
            causes.push(thread_pin_cause(heap, thread_pins));
        }
    }
    causes.push(Cause {
        kind: CauseKind::Fastbins,
        bytes: fastbins,
        overlaps: false,
        confidence: Confidence::Proven,
        text: format!(
            "{} of up to 176 bytes in fastbins hold {}: they count as in use for their neighbours, and merge only in \
             malloc_trim, or when a large request or a large free cleans up",
            counted(heap.fastbin_blocks, "chunk"),
            bytes(heap.fastbin_bytes)
        ),
    });
    causes.push(Cause {
        kind: CauseKind::Fragmentation,
        bytes: scattered,
        overlaps: false,
        confidence: Confidence::Proven,
        text: format!(
            "{} lie free between {} that are live: hardly a page is free as a whole",
            bytes(scattered),
            counted(heap.live_blocks, "block")
        ),
    });
    // What is cached in whole pages; cached parts of a page are among the scattered.
    let cached = tallies.iter().map(|tally| tally.cached.resident_bytes).sum::<u64>();
    if cached >= LEAST_VERDICT {
        causes.push(Cause {
            kind: CauseKind::ThreadCaches,
            bytes: cached,
            overlaps: true,
            confidence: Confidence::Proven,
            text: format!(
                "{} hold {} in {}, out of reach for other threads and for malloc_trim",
                counted(heap.thread_caches, "thread cache"),
                bytes(heap.cached_bytes),
                counted(heap.cached_blocks, "block")
            ),
        });
    }
}

/// Of free pages below the top, those that are scattered over so many runs that no single block is to blame.
fn scattered_holes(view: &ArenaView, holes: u64) -> u64 {
    let in_large: u64 = view.largest_free_runs.iter().map(|run| run.resident_bytes).sum();
    if in_large >= holes / 2 { 0 } else { holes }
}

/// Free pages below the main arena's top.
fn main_holes(
    causes: &mut Vec<Cause>,
    view: &ArenaView,
    tally: &ArenaTally,
    settings: &Settings,
    raised: bool,
    holes: u64,
) {
    let large = if raised { tally.large_runs.min(holes) } else { 0 };
    let rest = holes - large;
    if large >= LEAST_CAUSE {
        let who = if settings.dynamic {
            "the free of a mapped block has raised it"
        } else {
            "a setting (M_MMAP_THRESHOLD) has raised it"
        };
        causes.push(Cause {
            kind: CauseKind::MmapThresholdRaised,
            bytes: large,
            overlaps: false,
            confidence: Confidence::Likely,
            text: format!(
                "{} lie in free runs of 128 KiB and more; blocks of that size would have had mappings of their own, \
                 returned by their free, if the mmap threshold were not {}: {who}",
                bytes(large),
                bytes(settings.mmap_threshold)
            ),
        });
        causes.extend(pin_cause(view, tally, large, true));
    }
    if rest > 0 {
        causes.extend(pin_cause(view, tally, rest, false));
    }
}

fn pin_cause(view: &ArenaView, tally: &ArenaTally, held: u64, overlaps: bool) -> Option<Cause> {
    let pin = view.pin?;
    // Are thread caches alone in the way, or is there a live block right behind them?
    let cached = pin.state != PinState::Live && tally.top_gain_uncached >= held / 2;
    let (kind, who) = match pin.state {
        PinState::Live => (CauseKind::TopPinnedLive, "a live block"),
        PinState::ThreadCacheStructure if cached => (CauseKind::TopPinnedCached, "a thread cache's own structure"),
        PinState::Cached if cached => (CauseKind::TopPinnedCached, "a freed block in a thread cache"),
        PinState::Fastbin if cached => (CauseKind::Fastbins, "a freed block in a fastbin"),
        _ => (CauseKind::TopPinnedLive, "a live block"),
    };
    let pin = if kind == CauseKind::TopPinnedLive {
        view.live_pin.unwrap_or(pin)
    } else {
        pin
    };
    Some(Cause {
        kind,
        bytes: held,
        overlaps,
        confidence: Confidence::Proven,
        text: format!(
            "{who} of {} at {:#x} is the highest one; {} lie in free pages below it, and the break cannot fall below it",
            counted(pin.bytes, "byte"),
            pin.address,
            bytes(held)
        ),
    })
}

fn thread_pin_cause(heap: &HeapView, held: u64) -> Cause {
    let pinned = heap.arenas.iter().filter(|arena| arena.kind == "thread");
    let pins = pinned.filter_map(|arena| arena.pin);
    let live = pins.clone().filter(|pin| pin.state == PinState::Live).count();
    let others = pins.count() - live;
    let (kind, who) = if live >= others {
        (
            CauseKind::TopPinnedLive,
            format!("a live block lies above the free pages in {live} of them"),
        )
    } else {
        (
            CauseKind::TopPinnedCached,
            format!("cached blocks lie above the free pages in {others} of them"),
        )
    };
    Cause {
        kind,
        bytes: held,
        overlaps: true,
        confidence: Confidence::Proven,
        text: who,
    }
}

/// The main arena's top itself.
fn main_top(causes: &mut Vec<Cause>, tally: &ArenaTally, settings: &Settings) {
    let padding = settings.top_pad.min(tally.top.bytes);
    let kept = tally.top.resident_bytes;
    if settings.top_pad > DEFAULT_THRESHOLD && padding >= LEAST_CAUSE {
        causes.push(Cause {
            kind: CauseKind::TopPadRaised,
            bytes: kept.min(padding),
            overlaps: false,
            confidence: Confidence::Proven,
            text: format!(
                "the top is {}, and M_TOP_PAD keeps {} of it",
                bytes(tally.top.bytes),
                bytes(settings.top_pad)
            ),
        });
        return;
    }
    let (bytes_kept, threshold) = (tally.top_trim, settings.trim_threshold);
    if bytes_kept < LEAST_CAUSE {
        return;
    }
    let (confidence, text) = if tally.top.bytes < threshold {
        let who = if settings.dynamic {
            format!(
                "the free of a mapped block of about {} has raised it to twice that size",
                bytes(settings.mmap_threshold)
            )
        } else {
            String::from("a setting has put it there")
        };
        let text = format!(
            "the top of the heap is {}, entirely free, and below the trim threshold of {}: {who}",
            bytes(tally.top.bytes),
            bytes(threshold)
        );
        (Confidence::Proven, text)
    } else {
        let text = format!(
            "the top of the heap is {}, above the trim threshold of {}: the next free that leaves a run of 64 KiB gives \
             it back",
            bytes(tally.top.bytes),
            bytes(threshold)
        );
        (Confidence::Likely, text)
    };
    causes.push(Cause {
        kind: CauseKind::TrimThresholdRaised,
        bytes: bytes_kept,
        overlaps: false,
        confidence,
        text,
    });
}

/// What is live, and whether it looks like growth: most of it of one size, in a heap at its largest.
fn live_cause(heap: &HeapView, resident: &Resident, waste: u64) -> Option<(Cause, bool)> {
    let first = heap.live_sizes.first()?;
    let largest_ever = heap
        .arenas
        .iter()
        .all(|arena| arena.system_bytes >= arena.max_system_bytes);
    let uniform = first.bytes >= heap.live_bytes / 2 && first.blocks >= 1000;
    let full = waste < heap.live_bytes / 5;
    let suspicious = largest_ever && uniform && full;
    let text = format!(
        "{} live blocks hold {}; {} of {} bytes make up {} of it{}",
        count(heap.live_blocks),
        bytes(heap.live_bytes),
        counted(first.blocks, "chunk"),
        count(first.chunk_bytes),
        percent(first.bytes, heap.live_bytes),
        if largest_ever {
            "; the heap is at its largest ever"
        } else {
            ""
        }
    );
    let confidence = if suspicious {
        Confidence::Likely
    } else {
        Confidence::CannotTell
    };
    Some((
        Cause {
            kind: CauseKind::LiveGrowth,
            bytes: resident.live,
            overlaps: false,
            confidence,
            text,
        },
        suspicious,
    ))
}

fn not_malloc_cause(evidence: &Evidence<'_>) -> Option<Cause> {
    evidence.heap?;
    let resident = evidence.resident;
    let amount = (resident.other_anon + resident.stacks + resident.shared).saturating_sub(resident.heap_unknown);
    let largest = resident
        .parts
        .iter()
        .filter(|part| {
            !matches!(
                part.kind,
                super::look::PartKind::CodeFile | super::look::PartKind::DataFile
            )
        })
        .take(3)
        .map(|part| {
            let name = part.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
            format!("{}{name} {}", part.kind.words(), bytes(part.bytes))
        })
        .collect::<Vec<_>>()
        .join(", ");
    (amount > 0).then(|| Cause {
        kind: CauseKind::NotMalloc,
        bytes: amount,
        overlaps: false,
        confidence: Confidence::Proven,
        text: format!("{} are not malloc's: {largest}", bytes(amount)),
    })
}

fn page_cache_cause(evidence: &Evidence<'_>) -> Option<Cause> {
    let file = evidence.resident.file;
    if file >= LEAST_LARGE && file >= evidence.resident.total / 2 {
        return Some(Cause {
            kind: CauseKind::PageCache,
            bytes: file,
            overlaps: false,
            confidence: Confidence::Proven,
            text: format!(
                "{} are pages of mapped files: page cache, which the kernel can take back",
                bytes(file)
            ),
        });
    }
    // A group that comes near its limit looks as if it ran out of memory, where it is the page cache that fills it.
    let group = evidence.cgroup?;
    let near = group.limit_current? >= group.limit? / 10 * 7;
    let cached = group.file.saturating_sub(group.shared);
    (near && cached >= LEAST_LARGE && cached >= group.current / 2).then(|| Cause {
        kind: CauseKind::PageCache,
        bytes: cached,
        overlaps: true,
        confidence: Confidence::Proven,
        text: format!(
            "of {} that the control group is charged for, {} are page cache, which the kernel takes back before it kills",
            bytes(group.current),
            bytes(cached)
        ),
    })
}
