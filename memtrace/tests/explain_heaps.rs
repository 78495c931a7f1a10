//! Heaps whose truth is known, under every glibc at hand: blocks, bytes, what a trim gives back, and why.

mod explain_support;

use std::collections::BTreeMap;

use explain_support::{Heaps, differs};
use memtrace_analysis::glibc::look::{CauseKind, Look, PinState, VerdictKind};

/// What a kind of heap must be found to be, once its blocks are freed.
struct Expected {
    kind: &'static str,
    verdict: VerdictKind,
    /// The first cause; none where nothing is wrong.
    cause: Option<CauseKind>,
    /// From 2.43 on, which has no fastbins, and makes a thread's cache at its first free.
    newer: Option<(VerdictKind, Option<CauseKind>)>,
    /// State of the pin, and whether it is the block that the program names.
    pin: Option<(PinState, bool)>,
}

const fn expect(kind: &'static str, verdict: VerdictKind, cause: Option<CauseKind>) -> Expected {
    Expected {
        kind,
        verdict,
        cause,
        newer: None,
        pin: None,
    }
}

const EXPECTED: [Expected; 17] = [
    Expected {
        newer: Some((VerdictKind::Retention, Some(CauseKind::TopPinnedCached))),
        ..expect("crumbs", VerdictKind::Retention, Some(CauseKind::Fastbins))
    },
    Expected {
        pin: Some((PinState::Live, true)),
        ..expect("late-survivor", VerdictKind::Retention, Some(CauseKind::TopPinnedLive))
    },
    Expected {
        pin: Some((PinState::Cached, true)),
        ..expect("cached-lid", VerdictKind::Retention, Some(CauseKind::TopPinnedCached))
    },
    expect("sieve", VerdictKind::Fragmentation, Some(CauseKind::Fragmentation)),
    Expected {
        pin: Some((PinState::Live, true)),
        ..expect("tiles", VerdictKind::Retention, Some(CauseKind::MmapThresholdRaised))
    },
    expect(
        "small-after-rise 0",
        VerdictKind::Retention,
        Some(CauseKind::TopPinnedLive),
    ),
    expect(
        "small-after-rise 1",
        VerdictKind::Retention,
        Some(CauseKind::TopPinnedLive),
    ),
    expect(
        "small-after-rise 2",
        VerdictKind::Retention,
        Some(CauseKind::TopPinnedLive),
    ),
    expect("free-top", VerdictKind::Retention, Some(CauseKind::TrimThresholdRaised)),
    expect("workers", VerdictKind::Retention, Some(CauseKind::ThreadArenas)),
    expect("leavers", VerdictKind::Retention, Some(CauseKind::ThreadArenas)),
    expect("mapped", VerdictKind::Healthy, None),
    expect("mapped-held", VerdictKind::Unknown, Some(CauseKind::LiveGrowth)),
    expect("hoard", VerdictKind::Growth, Some(CauseKind::LiveGrowth)),
    expect("own-mapping", VerdictKind::NotMalloc, Some(CauseKind::NotMalloc)),
    expect(
        "blocked-break",
        VerdictKind::Fragmentation,
        Some(CauseKind::Fragmentation),
    ),
    Expected {
        // The thread cache's structure lies on top, and the trim threshold no longer matters.
        newer: Some((VerdictKind::Retention, Some(CauseKind::TopPinnedCached))),
        ..expect(
            "wrong-knobs",
            VerdictKind::Retention,
            Some(CauseKind::TrimThresholdRaised),
        )
    },
];

#[test]
fn verdicts_and_trims_are_those_of_the_truth() {
    let mut wrong = Vec::new();
    for heaps in Heaps::under_every_glibc("verdicts_and_trims_are_those_of_the_truth") {
        for expected in &EXPECTED {
            let mut process = heaps.start(expected.kind);
            process.skip_to("freed");
            let truth = process.facts.clone();
            let look = process.look();
            process.skip_to("trimmed");
            let whose = format!("{} under {}", expected.kind, heaps.shown);
            wrong.extend(wrong_trim(&whose, &look, &truth, &process.facts));
            wrong.extend(differs(&whose, &look, &truth));
            let (verdict, cause) = match expected.newer {
                Some(newer) if heaps.version >= (2, 43) => newer,
                _ => (expected.verdict, expected.cause),
            };
            let first = look.verdict.causes.first().map(|cause| cause.kind);
            if (look.verdict.kind, first) != (verdict, cause) {
                wrong.push(format!(
                    "{whose}: {:?} by {first:?} instead of {verdict:?} by {cause:?}: {}",
                    look.verdict.kind, look.verdict.text
                ));
            }
            // Where the thread cache's structure lies above, the pin is that, and the block below it the live one.
            if let Some((state, named)) = expected.pin.filter(|_| heaps.version < (2, 43)) {
                let pin = pins(&look);
                if !pin
                    .iter()
                    .any(|pin| pin.1 == state && (!named || pin.0 == truth["pin"]))
                {
                    wrong.push(format!("{whose}: pins {pin:x?}, not {state:?} at {:#x}", truth["pin"]));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What a trim has given back is what was predicted, but for a little that the kernel does in its own way.
fn wrong_trim(
    whose: &str,
    look: &Look,
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
) -> Option<String> {
    let returned = before["anonymous"].saturating_sub(after["anonymous"]);
    let (predicted, room) = (look.trim_would_return_bytes.unwrap(), (returned / 20).max(256 << 10));
    (predicted.abs_diff(returned) > room)
        .then(|| format!("{whose}: a trim gave back {returned}, and {predicted} was predicted"))
}

/// As they are asked for without a knob on arm64 from 2.43 on: the break goes down by 2 MiB at a time.
#[test]
fn trims_by_transparent_huge_pages() {
    let mut wrong = Vec::new();
    for heaps in Heaps::under_every_glibc("trims_by_transparent_huge_pages") {
        for kind in ["crumbs", "sieve", "hoard"] {
            let mut process = heaps.start_set(kind, &[("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")]);
            process.skip_to("freed");
            let before = process.facts.clone();
            let look = process.look();
            process.skip_to("trimmed");
            let whose = format!("{kind} with huge pages under {}", heaps.shown);
            wrong.extend(wrong_trim(&whose, &look, &before, &process.facts));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn pins(look: &Look) -> Vec<(u64, PinState)> {
    let heap = look.heap.as_ref().expect("the heap was read");
    heap.arenas
        .iter()
        .filter_map(|arena| arena.pin)
        .map(|pin| (pin.address, pin.state))
        .collect()
}

/// Blocks aligned to anything, foreign memory inside the break's range, every block mapped: no block may be lost.
#[test]
fn odd_heaps_are_counted_whole() {
    let mut wrong = Vec::new();
    for heaps in Heaps::under_every_glibc("odd_heaps_are_counted_whole") {
        for kind in ["foreign-break", "blocked-break", "all-mapped", "mapped-held"] {
            for moment in ["full", "freed"] {
                let mut process = heaps.start(kind);
                process.skip_to(moment);
                let look = process.look();
                wrong.extend(differs(
                    &format!("{kind} ({moment}) under {}", heaps.shown),
                    &look,
                    &process.facts,
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Settings that do not do what was meant are named.
#[test]
fn wrong_knobs_are_named() {
    let heaps = Heaps::under_own_glibc();
    let mut process = heaps.start("wrong-knobs");
    process.skip_to("freed");
    let look = process.look();
    let named: Vec<&str> = look.knobs.iter().map(|knob| knob.name.as_str()).collect();
    assert!(
        named.contains(&"M_MMAP_MAX") && named.contains(&"M_TRIM_THRESHOLD"),
        "{:#?}",
        look.knobs
    );
}

/// A program of random calls: the walk, glibc's own statistics and a counter at the interface must agree.
#[test]
fn random_heaps_add_up() {
    let mut wrong = Vec::new();
    for heaps in Heaps::under_every_glibc("random_heaps_add_up") {
        for (seed, rounds, threads) in [
            (1, 30_000, 0),
            (2, 30_000, 4),
            (3, 8_000, 9),
            (4, 100_000, 1),
            (5, 300, 16),
        ] {
            let kind = format!("random {seed} {rounds} {threads}");
            let whose = format!("{kind} under {}", heaps.shown);
            let mut process = heaps.start_counted(&kind);
            for moment in ["full", "freed"] {
                process.skip_to(moment);
                let look = process.look();
                wrong.extend(differs(&format!("{whose} ({moment})"), &look, &process.facts));
                let counted = process.counted_live_blocks();
                let heap = look.heap.as_ref().expect("the heap was read");
                // Up to 2.41 a thread's cache is no block of the interface's; it may lie in a mapping of its own, too.
                if heap.live_blocks != counted {
                    wrong.push(format!(
                        "{whose} ({moment}): {} live blocks, counted {counted}",
                        heap.live_blocks
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
