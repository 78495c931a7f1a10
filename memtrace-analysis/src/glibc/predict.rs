//! What each measure would give back, in bytes, and what says so.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::books::Settings;
use super::look::{Action, Bound, HeapView, Knob, PinState, Prediction, Resident};
use super::tally::ArenaTally;
use super::verdict::DEFAULT_THRESHOLD;
use super::words::{bytes, counted};

/// Measures that would give back less are left out, malloc_trim aside.
const LEAST: u64 = 256 << 10;

pub fn predict(heap: &HeapView, tallies: &[ArenaTally], settings: &Settings, resident: &Resident) -> Vec<Prediction> {
    let sum = |figure: fn(&ArenaTally) -> u64| tallies.iter().map(figure).sum::<u64>();
    let main = heap
        .arenas
        .iter()
        .zip(tallies)
        .filter(|(view, _)| view.kind == "main")
        .map(|(_, tally)| tally);
    let main_top: u64 = main.map(|tally| tally.top_trim).sum();
    let trim = sum(|tally| tally.trim);
    let mut predictions = Vec::new();
    predictions.push(Prediction {
        action: Action::MallocTrim,
        bytes: trim,
        bound: Bound::Exact,
        how: String::from("call malloc_trim(0) in the process, e.g. after a peak of work"),
        evidence: trim_evidence(sum(|tally| tally.trim_below_top), trim),
    });
    if main_top >= LEAST && settings.trim_threshold > DEFAULT_THRESHOLD {
        predictions.push(Prediction {
            action: Action::LowerTrimThreshold,
            bytes: main_top,
            bound: Bound::AtMost,
            how: String::from("MALLOC_TRIM_THRESHOLD_=131072 (or mallopt(M_TRIM_THRESHOLD, 131072)) at the start"),
            evidence: format!(
                "the top is free, but smaller than the trim threshold of {}; the setting also freezes the mmap threshold",
                bytes(settings.trim_threshold)
            ),
        });
    }
    let large = sum(|tally| tally.large_runs).saturating_add(main_top);
    if settings.mmap_threshold > DEFAULT_THRESHOLD && large >= LEAST {
        predictions.push(Prediction {
            action: Action::FixedMmapThreshold,
            bytes: large,
            bound: Bound::AtMost,
            how: String::from("MALLOC_MMAP_THRESHOLD_=131072 (or mallopt(M_MMAP_THRESHOLD, 131072)) at the start"),
            evidence: format!(
                "free runs of 128 KiB and more: as far as they were blocks of between 128 KiB and {}, each would have \
                 gone back with its free",
                bytes(settings.mmap_threshold)
            ),
        });
    }
    predictions.extend(fewer_arenas(heap, tallies));
    let uncached = sum(|tally| tally.trim_uncached)
        .saturating_sub(trim)
        .saturating_add(sum(|tally| tally.top_gain_cached()));
    if uncached >= LEAST {
        predictions.push(Prediction {
            action: Action::ThreadCacheOff,
            bytes: uncached,
            bound: Bound::AtMost,
            how: String::from("GLIBC_TUNABLES=glibc.malloc.tcache_count=0 at the start; costs speed"),
            evidence: format!(
                "{} in thread caches hold {}, and keep the free memory next to them from merging with the top",
                counted(heap.cached_blocks, "block"),
                bytes(heap.cached_bytes)
            ),
        });
    }
    let pinned = resident.retained_parts.pinned;
    if pinned >= LEAST {
        predictions.push(Prediction {
            action: Action::OtherAllocator,
            bytes: pinned,
            bound: Bound::AtMost,
            how: String::from("an allocator that keeps sizes apart (jemalloc, mimalloc), or fewer long-lived blocks among short-lived ones"),
            evidence: format!("{} are free, but share their pages with live blocks", bytes(pinned)),
        });
    }
    predictions.sort_by_key(|prediction| {
        (
            prediction.action != Action::MallocTrim,
            core::cmp::Reverse(prediction.bytes),
        )
    });
    predictions.push(Prediction {
        action: Action::Nothing,
        bytes: resident.live,
        bound: Bound::Exact,
        how: format!(
            "in use, in {}: no setting gives these back",
            counted(heap.live_blocks, "block")
        ),
        evidence: String::from("only the program can free them"),
    });
    predictions
}

/// Where the bytes of a trim come from.
fn trim_evidence(below_top: u64, trim: u64) -> String {
    let top = trim.saturating_sub(below_top);
    match (below_top, top) {
        (0, 0) => String::from("no page is free as a whole, but what malloc keeps at the tops"),
        (_, 0) => String::from("free pages between live blocks; parts of pages next to live blocks stay"),
        (0, _) => String::from("the top of the main arena"),
        _ => format!(
            "{} of free pages between live blocks, {} at the top of the main arena; parts of pages stay",
            bytes(below_top),
            bytes(top)
        ),
    }
}

/// MALLOC_ARENA_MAX=2 leaves the main arena and one more.
fn fewer_arenas(heap: &HeapView, tallies: &[ArenaTally]) -> Option<Prediction> {
    let mut whole: Vec<u64> = heap
        .arenas
        .iter()
        .zip(tallies)
        .filter(|(view, _)| view.kind == "thread")
        .map(|(_, tally)| tally.whole)
        .collect();
    whole.sort_unstable();
    let kept = whole.pop()?;
    let saved = whole.iter().sum::<u64>();
    (saved >= LEAST).then(|| Prediction {
        action: Action::FewerArenas,
        bytes: saved,
        bound: Bound::AtMost,
        how: String::from("MALLOC_ARENA_MAX=2 at the start; threads then wait for each other more often"),
        evidence: format!(
            "{} hold {} in free pages, which threads of other arenas cannot use; one of them would remain, with up to {}",
            counted((whole.len() as u64).saturating_add(1), "thread arena"),
            bytes(saved.saturating_add(kept)),
            bytes(kept)
        ),
    })
}

impl ArenaTally {
    /// What the top would gain without thread caches, where cached blocks are what is in its way.
    fn top_gain_cached(&self) -> u64 {
        let cached = self
            .pin
            .is_some_and(|pin| matches!(pin.state, PinState::Cached | PinState::ThreadCacheStructure));
        if cached { self.top_gain_uncached } else { 0 }
    }
}

/// Settings that do something else than was probably meant. `environment` has the variables the process began with.
pub fn wrong_knobs(settings: &Settings, environment: &[(String, String)]) -> Vec<Knob> {
    const MMAPS: u32 = 65536;
    let mut knobs = Vec::new();
    let mut say = |name: &str, text: String| {
        knobs.push(Knob {
            name: name.to_string(),
            text,
        })
    };
    let source = |variable: &str, tunable: &str| {
        environment.iter().find_map(|(name, value)| {
            let named = name == variable || name == "GLIBC_TUNABLES" && value.contains(tunable);
            named.then(|| format!(" (set by {name}={value})"))
        })
    };
    let limit = settings.mapped_blocks_max;
    if limit != MMAPS {
        let origin = source("MALLOC_MMAP_MAX_", "glibc.malloc.mmap_max").unwrap_or_default();
        if limit == 0 {
            say(
                "M_MMAP_MAX",
                format!(
                    "M_MMAP_MAX is 0{origin}: no block gets a mapping of its own, so that large ones \
                stay in the heap when they are freed"
                ),
            );
        } else if limit >= 4096 && (limit.is_multiple_of(1024) || limit > MMAPS) {
            say(
                "M_MMAP_MAX",
                format!(
                    "M_MMAP_MAX is {limit}{origin}, which reads like a size in bytes: it limits the \
                number of mappings; M_MMAP_THRESHOLD was probably meant"
                ),
            );
        } else {
            say(
                "M_MMAP_MAX",
                format!(
                    "M_MMAP_MAX is {limit}{origin}: from the block after these on, large blocks come \
                from the heap"
                ),
            );
        }
    }
    if !settings.dynamic {
        let trim_set = settings.trim_threshold != DEFAULT_THRESHOLD;
        let pad_set = settings.top_pad != DEFAULT_THRESHOLD;
        let mmap_set = settings.mmap_threshold != DEFAULT_THRESHOLD;
        if trim_set && !mmap_set {
            let origin = source("MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold").unwrap_or_default();
            say(
                "M_TRIM_THRESHOLD",
                format!(
                    "M_TRIM_THRESHOLD is {}{origin}; setting it froze the mmap threshold at {}: \
                blocks above that are mapped and unmapped each time",
                    bytes(settings.trim_threshold),
                    bytes(settings.mmap_threshold)
                ),
            );
        } else if pad_set && !mmap_set && !trim_set {
            let origin = source("MALLOC_TOP_PAD_", "glibc.malloc.top_pad").unwrap_or_default();
            say(
                "M_TOP_PAD",
                format!(
                    "M_TOP_PAD is {}{origin}; setting it froze the mmap threshold at {}",
                    bytes(settings.top_pad),
                    bytes(settings.mmap_threshold)
                ),
            );
        }
        if settings.mmap_threshold == 0 {
            say(
                "M_MMAP_THRESHOLD",
                String::from("M_MMAP_THRESHOLD is 0: every block has a mapping of its own"),
            );
        }
    }
    if settings.trim_threshold > 1 << 40 {
        say(
            "M_TRIM_THRESHOLD",
            String::from("M_TRIM_THRESHOLD is so large that the top is never given back"),
        );
    }
    knobs
}
