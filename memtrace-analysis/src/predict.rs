//! A growth held against glibc's rule: what was to be expected, and why it was something else.
//!
//! The rule is tried with what the call asked for, then in the ways in which glibc is known to come by another figure.
//! The first that fits gives the reason. Where none fits the plain expectation stands, and the step does not match.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::chunk;
use crate::event::{Entry, Frame, HeapState};
use crate::meaning::Growth;
use crate::report::StepKind;
use crate::rule;
use crate::version::{self, Version};

/// What is known around a growth.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    pub frame: &'a Frame,
    /// Books of the arena before it takes note of the growth.
    pub heap: Option<&'a HeapState>,
    pub top_pad: Option<u64>,
    pub page_size: u64,
    pub version: Option<Version>,
    /// Growths of the break in the same call before this one.
    pub break_steps: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    pub bytes: Option<u64>,
    /// What made it another figure than the plain rule's, or why there is none.
    pub reason: Option<String>,
    /// Bytes of the chunk that the growth was made for, where the prediction fits.
    pub chunk: Option<u64>,
}

/// A way to come by a figure.
struct Way {
    bytes: Option<u64>,
    chunk: Option<u64>,
    reason: Option<String>,
}

/// Holds `growth` against the rule of its kind.
pub fn predict(growth: &Growth, known: &Known) -> Prediction {
    let ways = match growth.kind {
        StepKind::Brk => break_step(growth, known),
        StepKind::Mmap => Ok(mapped_block(known)),
        StepKind::Arena => arena_step(growth, known),
        StepKind::ArenaSegment => segment(known),
        StepKind::MmapMain => main_piece(known),
        StepKind::Mremap => Ok(remapped(growth, known)),
    };
    match ways {
        Ok(ways) => choose(growth.bytes(), ways),
        Err(reason) => Prediction {
            reason: Some(reason.to_string()),
            ..Prediction::default()
        },
    }
}

/// The first way that gives `bytes`, else what the first one expects.
fn choose(bytes: u64, ways: Vec<Way>) -> Prediction {
    let expected = ways.iter().find_map(|way| way.bytes);
    match ways.into_iter().find(|way| way.bytes == Some(bytes)) {
        Some(Way { bytes, chunk, reason }) => Prediction { bytes, reason, chunk },
        None => Prediction {
            bytes: expected,
            ..Prediction::default()
        },
    }
}

/// A chunk that may have been asked for, and why it was if it is not the request's.
struct Asked {
    chunk: Option<u64>,
    reason: Option<String>,
}

/// The request's chunk, and the thread cache's own, which a thread's first call allocates.
fn asked(known: &Known) -> [Asked; 2] {
    let cache = known
        .version
        .and_then(version::thread_cache_request)
        .and_then(chunk::chunk_size);
    let reason =
        cache.map(|bytes| format!("made for the thread cache's own structure ({bytes} bytes), which comes first"));
    [
        Asked {
            chunk: chunk::asked_of_arena(known.frame, known.page_size),
            reason: None,
        },
        Asked { chunk: cache, reason },
    ]
}

fn join(reason: Option<String>, more: Option<&str>) -> Option<String> {
    match (reason, more) {
        (Some(reason), Some(more)) => Some(format!("{reason}; {more}")),
        (reason, more) => reason.or_else(|| more.map(ToString::to_string)),
    }
}

/// The ways that a rule gives for each chunk that may have been asked for.
fn ways(known: &Known, reason: Option<&str>, rule: impl Fn(u64) -> Option<u64>) -> Vec<Way> {
    asked(known)
        .into_iter()
        .map(|asked| Way {
            bytes: asked.chunk.and_then(&rule),
            chunk: asked.chunk,
            reason: join(asked.reason, reason),
        })
        .collect()
}

const HUGE: &str = "the break ends on a 2 MiB boundary (transparent huge pages)";
const HUGE_FIRST: &str = "the first step is rounded up to 2 MiB, wherever the break stands (transparent huge pages)";
const ROUNDED_HUGE: &str = "rounded up to huge pages";
const NO_TOP_PAD: &str = "top_pad could not be read";

fn break_step(growth: &Growth, known: &Known) -> Result<Vec<Way>, &'static str> {
    let heap = known
        .heap
        .filter(|heap| heap.main)
        .ok_or("the main arena's top could not be read")?;
    let top_pad = known.top_pad.ok_or(NO_TOP_PAD)?;
    let page = known.page_size;
    let step = |top| move |chunk| rule::break_step(chunk, top_pad, top, page);
    let huge = |top| move |chunk| rule::break_step_huge(chunk, top_pad, top, growth.from, rule::HUGE_PAGE);
    let mut all = ways(known, None, step(heap.top_size));
    if known.break_steps > 0 {
        let once_more = |unit, reason: String| Way {
            bytes: once_more(growth.from, heap.top_size, unit),
            chunk: None,
            reason: Some(reason),
        };
        let reason = "the second half of a growth: somebody else had moved the break, so the new memory does not join \
                      the old top";
        all.insert(0, once_more(page, reason.to_string()));
        all.push(once_more(rule::HUGE_PAGE, format!("{reason}; {HUGE}")));
    }
    all.extend(ways(known, Some(HUGE), huge(heap.top_size)));
    if heap.top_size == 0 {
        // sbrk has not been called yet, and glibc's own copy of the break, which it rounds up from, is still 0.
        let first = |chunk| rule::break_step_huge(chunk, top_pad, 0, 0, rule::HUGE_PAGE);
        all.extend(ways(known, Some(HUGE_FIRST), first));
    }
    let apart = "the main arena is not contiguous any more, so the rest of its top does not count";
    all.extend(ways(known, Some(apart), step(0)));
    all.extend(ways(known, Some(&format!("{apart}; {HUGE}")), huge(0)));
    Ok(all)
}

/// Where the arena cannot merge with its old top, it fetches that top's bytes (and what aligns the new one) once more,
/// up to the end of a page.
fn once_more(from: u64, top_size: u64, unit: u64) -> Option<u64> {
    let misaligned = from.checked_rem(chunk::ALIGNMENT)?;
    let lead = if misaligned == 0 {
        0
    } else {
        chunk::ALIGNMENT.checked_sub(misaligned)?
    };
    let end = from.checked_add(top_size)?.checked_add(lead)?;
    chunk::round_up(end, unit)?.checked_sub(from).filter(|step| *step > 0)
}

fn mapped_block(known: &Known) -> Vec<Way> {
    let mapping = |unit| move |chunk| rule::mapped_block(chunk, version::mapping_overhead(known.version), unit);
    let mut all = ways(known, None, mapping(known.page_size));
    all.extend(ways(known, Some(ROUNDED_HUGE), mapping(rule::HUGE_PAGE)));
    all
}

/// Growth within a segment ends where the rule says; it begins where the usable part ended, which is behind the top's
/// end when the segment had been larger before.
fn arena_step(growth: &Growth, known: &Known) -> Result<Vec<Way>, &'static str> {
    let heap = known
        .heap
        .filter(|heap| !heap.main && heap.top <= growth.from)
        .ok_or("the arena's top could not be read")?;
    let end = heap.top.saturating_add(heap.top_size);
    let step = |unit| {
        move |chunk| {
            let grown = rule::arena_step(chunk, heap.top_size, unit)?;
            end.checked_add(grown)?
                .checked_sub(growth.from)
                .filter(|step| *step > 0)
        }
    };
    let mut all = ways(known, None, step(known.page_size));
    all.extend(ways(known, Some(ROUNDED_HUGE), step(rule::HUGE_PAGE)));
    Ok(all)
}

fn segment(known: &Known) -> Result<Vec<Way>, &'static str> {
    let version = known
        .version
        .ok_or("the layout of a segment is not known for this libc")?;
    let top_pad = known.top_pad.ok_or(NO_TOP_PAD)?;
    let commit = |content: Option<u64>, reason: Option<&str>, unit| Way {
        bytes: content.and_then(|content| rule::segment_commit(content, top_pad, unit)),
        chunk: None,
        reason: reason.map(ToString::to_string),
    };
    // A new arena: its books and the request as glibc hands it on; a further segment: the chunk and a smallest chunk.
    let header = version::arena_header(version);
    let first = |request: u64| header.checked_add(request)?.checked_add(chunk::ALIGNMENT);
    let further = chunk::asked_of_arena(known.frame, known.page_size).and_then(|chunk| {
        chunk
            .checked_add(chunk::MIN_CHUNK)?
            .checked_add(version::segment_header(version))
    });
    let cache = version::thread_cache_request(version);
    let page = known.page_size;
    let request = known.frame.request;
    Ok(vec![
        commit(first(request), None, page),
        commit(cache.and_then(first), None, page),
        commit(
            further,
            Some("a further segment of an arena whose last one is full"),
            page,
        ),
        commit(first(0), Some("the request does not fit into a segment"), page),
        commit(first(request), Some(ROUNDED_HUGE), rule::HUGE_PAGE),
        commit(further, Some(ROUNDED_HUGE), rule::HUGE_PAGE),
    ])
}

fn main_piece(known: &Known) -> Result<Vec<Way>, &'static str> {
    let top_pad = known.top_pad.ok_or(NO_TOP_PAD)?;
    let top = known
        .heap
        .filter(|heap| heap.main_top().is_some())
        .map_or(0, |heap| heap.top_size);
    let page = known.page_size;
    let why = "the break could not be moved, so the main arena maps memory piece by piece";
    let mut all = Vec::new();
    if known.version.is_none_or(version::rounds_first_piece) {
        let piece = |top| move |chunk| rule::main_piece_of_2_35(chunk, top_pad, top, page);
        all.extend(ways(known, Some(why), piece(None)));
        all.extend(ways(known, Some(why), piece(Some(top))));
    }
    let piece = |top, unit| move |chunk| rule::main_piece(chunk, top_pad, top, unit);
    all.extend(ways(known, Some(why), piece(0, page)));
    all.extend(ways(known, Some(why), piece(top, page)));
    all.extend(ways(
        known,
        Some(&format!("{why}; {ROUNDED_HUGE}")),
        piece(top, rule::HUGE_PAGE),
    ));
    Ok(all)
}

fn remapped(growth: &Growth, known: &Known) -> Vec<Way> {
    let bytes = chunk::chunk_size(known.frame.request)
        .filter(|_| known.frame.entry == Entry::Realloc)
        .and_then(|chunk| rule::mapped_block(chunk, version::mapping_overhead(known.version), known.page_size))
        .zip(growth.replaced)
        .and_then(|(mapping, (_, old))| mapping.checked_sub(old));
    vec![Way {
        bytes,
        chunk: None,
        reason: None,
    }]
}
