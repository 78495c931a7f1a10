//! A growth held against glibc's rule: what was to be expected, and why it was something else.
//!
//! The rule is tried with what the call asked for. Where that does not fit, the ways in which glibc is known to come by
//! another figure are tried one after the other; the first that fits gives the reason. Nothing fits: the plain
//! expectation stands, and the step does not match.

use alloc::format;
use alloc::string::{String, ToString};

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    pub bytes: Option<u64>,
    /// What made it another figure than the plain rule's, or why there is none.
    pub reason: Option<String>,
}

impl Prediction {
    fn none(reason: &str) -> Self {
        Self {
            bytes: None,
            reason: Some(reason.to_string()),
        }
    }
}

/// Holds `growth` against the rule of its kind.
pub fn predict(growth: &Growth, known: &Known) -> Prediction {
    match growth.kind {
        StepKind::Brk => break_step(growth, known),
        StepKind::Mmap => mapped_block(growth, known),
        StepKind::Arena => arena_step(growth, known),
        StepKind::ArenaSegment => segment(growth, known),
        StepKind::MmapMain => main_piece(growth, known),
        StepKind::Mremap => remapped(growth, known),
    }
}

/// The chunk asked for, and (where glibc has it) the thread cache's own, which a thread's first call may allocate.
struct Asked {
    plain: Option<u64>,
    cache: Option<u64>,
}

fn asked(known: &Known) -> Asked {
    Asked {
        plain: chunk::asked_of_arena(known.frame, known.page_size),
        cache: known
            .version
            .and_then(version::thread_cache_request)
            .and_then(chunk::chunk_size),
    }
}

/// The first alternative that gives `bytes`, else the plain expectation without a reason.
fn choose(bytes: u64, plain: Option<u64>, others: impl IntoIterator<Item = (Option<u64>, String)>) -> Prediction {
    if plain == Some(bytes) {
        return Prediction {
            bytes: plain,
            reason: None,
        };
    }
    others.into_iter().find(|(other, _)| *other == Some(bytes)).map_or(
        Prediction {
            bytes: plain,
            reason: None,
        },
        |(other, reason)| Prediction {
            bytes: other,
            reason: Some(reason),
        },
    )
}

fn cache_reason(cache: Option<u64>) -> String {
    format!(
        "made for the thread cache's own structure ({} bytes), which a thread allocates first",
        cache.unwrap_or(0)
    )
}

fn break_step(growth: &Growth, known: &Known) -> Prediction {
    let Some(heap) = known.heap.filter(|heap| heap.main) else {
        return Prediction::none("the main arena's top could not be read");
    };
    let Some(top_pad) = known.top_pad else {
        return Prediction::none("top_pad could not be read");
    };
    let Asked { plain, cache } = asked(known);
    let step = |chunk: Option<u64>, top| chunk.and_then(|chunk| rule::break_step(chunk, top_pad, top, known.page_size));
    let huge = |chunk: Option<u64>, top| {
        chunk.and_then(|chunk| rule::break_step_huge(chunk, top_pad, top, growth.from, rule::HUGE_PAGE))
    };
    let top = heap.top_size;
    let huge_reason = || "the break ends on a 2 MiB boundary (transparent huge pages)".to_string();
    let apart = "the main arena is not contiguous any more, so the top's rest does not count";
    let mut others = alloc::vec![
        (step(cache, top), cache_reason(cache)),
        (huge(plain, top), huge_reason()),
        (huge(cache, top), format!("{}; {}", cache_reason(cache), huge_reason())),
        (step(plain, 0), apart.to_string()),
        (huge(plain, 0), format!("{apart}; {}", huge_reason())),
    ];
    if known.break_steps > 0 {
        // Somebody else moved the break since: the arena cannot merge, and fetches its old top's bytes once more.
        let once_more =
            |unit| chunk::round_up(growth.from.saturating_add(top), unit).and_then(|to| to.checked_sub(growth.from));
        let reason = "the second half of a growth: the break had been moved by somebody else, so the new memory does \
                      not join the old top";
        others.insert(0, (once_more(known.page_size), reason.to_string()));
        others.push((once_more(rule::HUGE_PAGE), format!("{reason}; {}", huge_reason())));
    }
    choose(growth.bytes(), step(plain, top).or(step(cache, top)), others)
}

fn mapped_block(growth: &Growth, known: &Known) -> Prediction {
    let Asked { plain, cache } = asked(known);
    let mapping = |chunk: Option<u64>, page| {
        chunk.and_then(|chunk| rule::mapped_block(chunk, mapping_overhead(known.version), page))
    };
    choose(
        growth.bytes(),
        mapping(plain, known.page_size).or(mapping(cache, known.page_size)),
        [
            (mapping(cache, known.page_size), cache_reason(cache)),
            (
                mapping(plain, rule::HUGE_PAGE),
                "rounded up to huge pages (hugetlb)".to_string(),
            ),
        ],
    )
}

/// How much longer a mapping is than its chunk, at least.
fn mapping_overhead(version: Option<Version>) -> u64 {
    if version.is_some_and(|version| version >= Version { major: 2, minor: 43 }) {
        16
    } else {
        8
    }
}

/// Growth within a segment ends where the rule says; it begins where the usable part ended, which is behind the top's
/// end when the segment had been larger before.
fn arena_step(growth: &Growth, known: &Known) -> Prediction {
    let Some(heap) = known.heap.filter(|heap| !heap.main && heap.top <= growth.from) else {
        return Prediction::none("the arena's top could not be read");
    };
    let Asked { plain, cache } = asked(known);
    let end = heap.top.saturating_add(heap.top_size);
    let step = |chunk: Option<u64>, unit| {
        let grown = rule::arena_step(chunk?, heap.top_size, unit)?;
        end.checked_add(grown)?
            .checked_sub(growth.from)
            .filter(|step| *step > 0)
    };
    choose(
        growth.bytes(),
        step(plain, known.page_size).or(step(cache, known.page_size)),
        [
            (step(cache, known.page_size), cache_reason(cache)),
            (step(plain, rule::HUGE_PAGE), "rounded up to huge pages".to_string()),
        ],
    )
}

fn segment(growth: &Growth, known: &Known) -> Prediction {
    let Some(version) = known.version else {
        return Prediction::none("the layout of a segment is not known for this libc");
    };
    let Some(top_pad) = known.top_pad else {
        return Prediction::none("top_pad could not be read");
    };
    let commit = |content: Option<u64>, unit| content.and_then(|content| rule::segment_commit(content, top_pad, unit));
    // A new arena: its books and the request, as asked for; a further segment: the chunk and a smallest chunk.
    let first = |request: u64| {
        version::arena_header(version)
            .checked_add(request)
            .and_then(|sum| sum.checked_add(chunk::ALIGNMENT))
    };
    let further = chunk::asked_of_arena(known.frame, known.page_size).and_then(|chunk| {
        chunk
            .checked_add(chunk::MIN_CHUNK)?
            .checked_add(version::segment_header(version))
    });
    let cache = version::thread_cache_request(version);
    let page = known.page_size;
    choose(
        growth.bytes(),
        commit(first(known.frame.request), page),
        [
            (
                commit(further, page),
                "a further segment of an arena whose last one is full".to_string(),
            ),
            (commit(cache.and_then(first), page), cache_reason(cache)),
            (
                commit(first(0), page),
                "the request does not fit into a segment".to_string(),
            ),
            (
                commit(first(known.frame.request), rule::HUGE_PAGE),
                "rounded up to huge pages".to_string(),
            ),
        ],
    )
}

fn main_piece(growth: &Growth, known: &Known) -> Prediction {
    let Some(top_pad) = known.top_pad else {
        return Prediction::none("top_pad could not be read");
    };
    let Asked { plain, cache } = asked(known);
    let piece = |chunk: Option<u64>, unit| chunk.and_then(|chunk| rule::main_piece(chunk, top_pad, unit));
    let why = "the break could not be moved, so the main arena maps pieces of at least 1 MiB";
    let (page, huge) = (known.page_size, rule::HUGE_PAGE);
    let mut prediction = choose(
        growth.bytes(),
        piece(plain, page).or(piece(cache, page)),
        [
            (piece(cache, page), cache_reason(cache)),
            (piece(plain, huge), "rounded up to huge pages".to_string()),
        ],
    );
    prediction.reason = Some(
        prediction
            .reason
            .map_or_else(|| why.to_string(), |reason| format!("{why}; {reason}")),
    );
    prediction
}

fn remapped(growth: &Growth, known: &Known) -> Prediction {
    let plain = chunk::chunk_size(known.frame.request)
        .filter(|_| known.frame.entry == Entry::Realloc)
        .and_then(|chunk| rule::mapped_block(chunk, mapping_overhead(known.version), known.page_size))
        .zip(growth.replaced)
        .and_then(|(mapping, (_, old))| mapping.checked_sub(old));
    Prediction {
        bytes: plain,
        reason: None,
    }
}
