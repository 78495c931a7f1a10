//! Heaps that were written over: a clear finding, in bounded time and memory, never a panic.

mod explain_support;

use std::time::{Duration, Instant};

use explain_support::{Heaps, sum_of_parts};
use memtrace_analysis::glibc::Problem;
use memtrace_analysis::glibc::look::VerdictKind;

/// Far more than any of these takes, even on a machine that is busy with other tests.
const BOUND: Duration = Duration::from_secs(20);

/// One chunk's size field has been written over: the finding names it.
#[test]
fn a_smashed_size_is_named() {
    let mut wrong = Vec::new();
    for heaps in Heaps::under_every_glibc("a_smashed_size_is_named") {
        for value in [
            "0",
            "0x41414141414141",
            "0xffffffffffffffff",
            "17",
            "24",
            "0x7fffffffffffff0",
            "2",
            "0x151",
        ] {
            let mut process = heaps.start(&format!("smashed 7000 {value}"));
            process.skip_to("full");
            let begun = Instant::now();
            let look = process.look();
            let whose = format!("size {value} under {}", heaps.shown);
            if begun.elapsed() > BOUND {
                wrong.push(format!("{whose}: it took {:?}", begun.elapsed()));
            }
            // A plausible size leads into the middle of some block, and is found out a step later.
            let chunk = process.facts["pin"] + 304 - 16;
            let named = look.problems.iter().any(|problem| match problem.problem {
                Problem::ChunkSize { address, .. } => (chunk..chunk + 1024).contains(&address),
                _ => false,
            });
            if !named || !look.torn || !look.damaged {
                wrong.push(format!("{whose}: not found at {chunk:#x}: {:#?}", look.problems));
            }
            if look
                .verdict
                .missing
                .iter()
                .all(|missing| !missing.contains("written over"))
            {
                wrong.push(format!("{whose}: the verdict does not say it: {:?}", look.verdict));
            }
            let resident = &look.resident;
            let sum = sum_of_parts(resident);
            if sum != resident.total || resident.heap_unknown == 0 {
                wrong.push(format!("{whose}: resident parts do not add up: {resident:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A whole heap of plausible nonsense: sizes, links and thread caches that lead anywhere.
#[test]
fn garbage_is_survived() {
    for heaps in Heaps::under_every_glibc("garbage_is_survived") {
        for seed in 1..12 {
            let mut process = heaps.start(&format!("garbage {seed}"));
            process.skip_to("full");
            process.skip_to("garbled");
            for stop in [false, true] {
                let begun = Instant::now();
                let look = if stop { process.look_stopped() } else { process.look() };
                let whose = format!("seed {seed} under {}", heaps.shown);
                assert!(begun.elapsed() < BOUND, "{whose}: it took {:?}", begun.elapsed());
                assert!(
                    look.torn && look.damaged,
                    "{whose}: {:?} {:?}",
                    look.verdict,
                    look.problems
                );
                assert!(!look.problems.is_empty());
                assert_ne!(look.verdict.kind, VerdictKind::Healthy, "{whose}: {:?}", look.verdict);
            }
        }
    }
}
