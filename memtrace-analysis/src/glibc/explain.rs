//! From a heap and its surroundings to a [`Look`]: amounts, reasons, predictions, a verdict.
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        reason = "sums of amounts that lie in the address space of one process, and differences of what was compared before"
    )
)]

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::account::{Surroundings, account};
use super::heap::{Arena, Heap, State};
use super::look::{
    ArenaView, Cgroup, Described, EXPLAIN_VERSION, HeapView, LiveSize, Look, Machine, Map, PinState, SizeClass, Taken,
    Target, ThresholdView,
};
use super::predict::{predict, wrong_knobs};
use super::tally::{ArenaTally, LiveSizes, count, tally};
use super::verdict::{DEFAULT_THRESHOLD, Evidence, judge};
use super::words::{bytes, counted};

/// Chunk sizes that are shown.
const SIZES: usize = 16;

/// Everything that a look rests on.
pub struct Inputs<'a> {
    pub target: Target,
    pub taken: Taken,
    pub around: Surroundings<'a>,
    /// The heap, or why there is none.
    pub heap: Result<&'a Heap, String>,
    /// Variables the process began with; empty where they could not be read.
    pub environment: &'a [(String, String)],
    pub machine: Option<Machine>,
    pub cgroup: Option<Cgroup>,
    pub not_seen: Vec<String>,
    /// The same did not fit together twice, or in a process that stood still.
    pub damaged: bool,
}

pub fn explain(inputs: Inputs<'_>) -> Look {
    let Inputs {
        target,
        mut taken,
        around,
        heap,
        environment,
        machine,
        cgroup,
        not_seen,
        damaged,
    } = inputs;
    let (heap, heap_unknown) = match heap {
        Ok(heap) => (Some(heap), None),
        Err(reason) => (None, Some(reason)),
    };
    let mut sizes = LiveSizes::new();
    let tallies: Vec<ArenaTally> = heap
        .map(|heap| {
            heap.arenas
                .iter()
                .map(|arena| tally(heap, arena, around.residency, &mut sizes))
                .collect()
        })
        .unwrap_or_default();
    let resident = account(&around, heap.map(|heap| (heap, &tallies[..])));
    let view = heap.map(|heap| heap_view(heap, &tallies, sizes));
    let torn = heap.is_some_and(Heap::is_torn);
    taken.ran_on |= heap.is_some_and(|heap| heap.ran_on);
    let problems: Vec<Described> = heap
        .map(|heap| heap.problems.iter().map(described).collect())
        .unwrap_or_default();
    let verdict = judge(&Evidence {
        target: &target,
        resident: &resident,
        heap: heap
            .zip(view.as_ref())
            .map(|(heap, view)| (view, &tallies[..], &heap.settings)),
        heap_unknown: heap_unknown.as_deref(),
        torn,
        damage: problems
            .first()
            .filter(|_| damaged)
            .map(|problem| problem.text.as_str()),
        cgroup: cgroup.as_ref(),
    });
    let predictions = match heap.zip(view.as_ref()) {
        Some((heap, view)) => predict(view, &tallies, &heap.settings, &resident),
        None => Vec::new(),
    };
    Look {
        explain_version: EXPLAIN_VERSION,
        target,
        taken,
        torn,
        damaged: torn && damaged,
        problems,
        trim_would_return_bytes: heap.map(|_| tallies.iter().map(|tally| tally.trim).sum()),
        resident,
        thresholds: heap.map(thresholds),
        knobs: heap
            .map(|heap| wrong_knobs(&heap.settings, environment))
            .unwrap_or_default(),
        heap: view,
        heap_unknown,
        predictions,
        verdict,
        machine,
        cgroup,
        not_seen,
    }
}

fn described(problem: &super::problem::Problem) -> Described {
    Described {
        problem: *problem,
        text: problem.to_string(),
    }
}

fn thresholds(heap: &Heap) -> ThresholdView {
    let settings = heap.settings;
    ThresholdView {
        mmap: settings.mmap_threshold,
        trim: settings.trim_threshold,
        top_pad: settings.top_pad,
        dynamic: settings.dynamic,
        settings,
    }
}

fn heap_view(heap: &Heap, tallies: &[ArenaTally], mut sizes: LiveSizes) -> HeapView {
    let mut view = HeapView {
        mapped_blocks: u64::from(heap.settings.mapped_blocks),
        mapped_bytes: heap.settings.mapped_bytes,
        thread_caches: heap.caches.len() as u64,
        ..HeapView::default()
    };
    for (arena, tally) in heap.arenas.iter().zip(tallies) {
        view.live_blocks += tally.live.blocks;
        view.live_bytes += tally.live.bytes;
        view.live_usable_bytes += tally.live.bytes - tally.live.blocks * 8;
        view.free_bytes += tally.top.bytes + tally.free.bytes + tally.fast.bytes;
        view.cached_bytes += tally.cached.bytes;
        view.cached_blocks += tally.cached.blocks;
        view.fastbin_bytes += tally.fast.bytes;
        view.fastbin_blocks += tally.fast.blocks;
        view.system_bytes += arena.books.system_bytes;
        view.arenas.push(arena_view(heap, arena, tally));
    }
    // Blocks with a mapping of their own: those that were found, and those that only the books tell of.
    let mut found = 0;
    for block in &heap.mapped {
        found += 1;
        match heap.mapped_state(block) {
            State::Own => {}
            State::Cached => {
                view.cached_blocks += 1;
                view.cached_bytes += block.chunk_bytes;
            }
            _ => {
                view.live_blocks += 1;
                view.live_bytes += block.chunk_bytes;
                view.live_usable_bytes += block.chunk_bytes.saturating_sub(16);
                count(&mut sizes, block.chunk_bytes, 1, block.chunk_bytes);
            }
        }
    }
    let unseen = view.mapped_blocks.saturating_sub(found);
    if unseen > 0 {
        let seen = heap.mapped.iter().map(|block| block.end - block.start).sum();
        let unseen_bytes = view.mapped_bytes.saturating_sub(seen);
        view.live_blocks += unseen;
        view.live_bytes += unseen_bytes;
        view.live_usable_bytes += unseen_bytes.saturating_sub(unseen * 16);
    }
    view.live_classes = classes(tallies, |tally| &tally.live_classes);
    view.free_classes = classes(tallies, |tally| &tally.free_classes);
    let mut live: Vec<LiveSize> = sizes
        .into_iter()
        .map(|(chunk_bytes, sum)| LiveSize {
            chunk_bytes,
            blocks: sum.blocks,
            bytes: sum.bytes,
        })
        .collect();
    live.sort_by_key(|size| core::cmp::Reverse((size.bytes, size.blocks)));
    live.truncate(SIZES);
    view.live_sizes = live;
    view
}

fn classes(
    tallies: &[ArenaTally],
    figure: impl Fn(&ArenaTally) -> &alloc::collections::BTreeMap<u32, super::look::SizeCount>,
) -> Vec<SizeClass> {
    let mut sum: alloc::collections::BTreeMap<u32, super::look::SizeCount> = Default::default();
    for (class, amount) in tallies.iter().flat_map(figure) {
        let entry = sum.entry(*class).or_default();
        entry.blocks += amount.blocks;
        entry.bytes += amount.bytes;
    }
    sum.into_iter()
        .map(|(class, amount)| SizeClass {
            from_bytes: 1 << class,
            blocks: amount.blocks,
            bytes: amount.bytes,
        })
        .collect()
}

fn arena_view(heap: &Heap, arena: &Arena, tally: &ArenaTally) -> ArenaView {
    let books = &arena.books;
    let retained = [tally.top, tally.free, tally.fast, tally.cached]
        .iter()
        .map(|amount| amount.resident_bytes)
        .sum();
    let mut view = ArenaView {
        kind: arena.kind().to_string(),
        address: books.address,
        system_bytes: books.system_bytes,
        max_system_bytes: books.max_system_bytes,
        top_bytes: tally.top.bytes,
        live_blocks: tally.live.blocks,
        live_bytes: tally.live.bytes,
        cached_bytes: tally.cached.bytes,
        fastbin_bytes: tally.fast.bytes,
        bin_bytes: tally.free.bytes,
        overhead_bytes: tally.overhead.bytes + tally.foreign.bytes,
        resident_bytes: retained + tally.live.resident_bytes + tally.overhead.resident_bytes,
        retained_resident_bytes: retained,
        retained_whole_bytes: tally.whole,
        trim_would_return_bytes: tally.trim,
        pin: tally.pin,
        live_pin: tally
            .live_pin
            .filter(|live| tally.pin.is_some_and(|pin| pin.address != live.address)),
        free_runs: tally.run_count,
        largest_free_runs: tally.runs.clone(),
        segments: books.segments.len() as u64,
        attached_threads: books.attached_threads,
        noncontiguous: books.noncontiguous,
        locked: books.locked,
        why: Vec::new(),
        map: Map {
            cell_bytes: tally.cell_bytes,
            cells: tally.cells.clone(),
        },
    };
    view.why = why(heap, &view, tally);
    view
}

/// Why an arena does not shrink, a sentence each; none where there is nothing to give back.
fn why(heap: &Heap, view: &ArenaView, tally: &ArenaTally) -> Vec<String> {
    /// Less than this is not worth a sentence.
    const WORTH: u64 = 64 << 10;
    let settings = &heap.settings;
    let mut why = Vec::new();
    if let Some(pin) = view
        .pin
        .filter(|pin| pin.free_below_bytes >= WORTH || tally.trim_below_top >= WORTH)
    {
        let who = match pin.state {
            PinState::Live => "a live block",
            PinState::Cached => "a freed block that sits in a thread cache",
            PinState::Fastbin => "a freed block that sits in a fastbin",
            PinState::ThreadCacheStructure => "a thread cache's own structure",
            PinState::Boundary => "a boundary that malloc left",
        };
        why.push(format!(
            "the top cannot grow downwards past {:#x}: {who} of {}, with {} of free pages below it",
            pin.address,
            counted(pin.bytes, "byte"),
            bytes(pin.free_below_bytes)
        ));
        if let Some(live) = view.live_pin.filter(|_| pin.state != PinState::Live) {
            why.push(format!(
                "the next live block below is at {:#x} ({})",
                live.address,
                counted(live.bytes, "byte")
            ));
        }
    }
    if tally.fast.resident_bytes >= WORTH {
        why.push(format!(
            "{} in fastbins do not merge with their neighbours ({})",
            counted(tally.fast.blocks, "chunk"),
            bytes(tally.fast.resident_bytes)
        ));
    }
    if view.kind == "main" {
        if tally.top_trim >= WORTH && view.top_bytes < settings.trim_threshold {
            let raised = match (settings.trim_threshold > DEFAULT_THRESHOLD, settings.dynamic) {
                (false, _) => "",
                (true, true) => ", which a free of a mapped block has raised",
                (true, false) => ", which a setting has raised",
            };
            why.push(format!(
                "the top itself is {}, less than the trim threshold of {}{raised}",
                bytes(view.top_bytes),
                bytes(settings.trim_threshold)
            ));
        }
        if view.noncontiguous {
            why.push(String::from(
                "the break was blocked once (by a mapping above it, or a limit), and the arena went on in mapped pieces: \
                 the break is never lowered again",
            ));
        }
    } else {
        if tally.top.resident_bytes >= WORTH {
            why.push(format!(
                "its top ({} resident) is given back only by a free that makes it reach the trim threshold of {}; \
                 malloc_trim leaves it alone",
                bytes(tally.top.resident_bytes),
                bytes(settings.trim_threshold)
            ));
        }
        if view.attached_threads == 0 && view.retained_resident_bytes >= WORTH {
            why.push(String::from(
                "its threads are gone; it waits for a new thread to use it",
            ));
        }
    }
    why
}
