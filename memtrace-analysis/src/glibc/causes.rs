//! The causes a look can show, each with the bytes it accounts for and its evidence.
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        reason = "sums of amounts that lie in the address space of one process, and differences of what was compared before"
    )
)]

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::books::Settings;
use super::look::{ArenaView, HeapView, PartKind, PinState, Resident};
use super::tally::ArenaTally;
use super::verdict::{Cause, CauseKind, DEFAULT_THRESHOLD, Evidence, LEAST_CAUSE, LEAST_LARGE, LEAST_VERDICT};
use super::words::{bytes, count, counted, percent};
use crate::report::Confidence;

/// Resident bytes below main's top by the reason they stay, and so on; adds up over the arenas.
pub(super) fn retention_causes(causes: &mut Vec<Cause>, heap: &HeapView, tallies: &[ArenaTally], settings: &Settings) {
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
pub(super) fn live_cause(heap: &HeapView, resident: &Resident, waste: u64) -> Option<(Cause, bool)> {
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

pub(super) fn not_malloc_cause(evidence: &Evidence<'_>) -> Option<Cause> {
    evidence.heap?;
    let resident = evidence.resident;
    let amount = (resident.other_anon + resident.stacks + resident.shared).saturating_sub(resident.heap_unknown);
    let largest = resident
        .parts
        .iter()
        .filter(|part| !matches!(part.kind, PartKind::CodeFile | PartKind::DataFile))
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

pub(super) fn page_cache_cause(evidence: &Evidence<'_>) -> Option<Cause> {
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
