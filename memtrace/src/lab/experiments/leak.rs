//! RSS that stays is no leak, and a leak beside it is told apart: experiment 6.

use anyhow::{Result, bail};
use memtrace_analysis::glibc::look::Look as Explained;

use crate::inspect;
use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::Measured;
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::run::{self, Stop};
use crate::lab::unit::Unit;

const ROUNDS: u64 = 6;

pub const LEAK: Experiment = Experiment {
    number: 6,
    name: "leak",
    group: Group::Heap,
    title: "RSS that stays is no leak; a leak beside it is told apart",
    claim: "RSS that stays after free is no leak; the same program with a real leak beside it is told apart by what is \
            live, which RSS does not show.",
    why: "A job that frees its blocks in this order leaves them in the heap: RSS keeps its peak, and the next round uses \
          the same memory again. What is lost each round stays in use in glibc's own books, and grows. Walking the heap \
          chunk by chunk (`memtrace explain`) tells the two apart, without the program's help.",
    commands: &["memtrace-lab leak-beside-retention --wait", "memtrace explain --pid P"],
    checks: &[
        Check {
            figure: "resident_growth",
            says: "RSS hardly grows from the second round to the last",
            claimed: None,
            expect: Expect::AtMost(2.0),
            essential: true,
        },
        Check {
            figure: "lost_found",
            says: "of the blocks lost since then, found live by the walk",
            claimed: Some(100.0),
            expect: Expect::Exactly(100.0),
            essential: true,
        },
        Check {
            figure: "foreign",
            says: "live blocks beside the lost ones (glibc's and the program's own few)",
            claimed: None,
            expect: Expect::Between(0.0, 16.0),
            essential: true,
        },
        Check {
            figure: "retained_share",
            says: "of the heap's resident bytes are kept for reuse, not live",
            claimed: None,
            expect: Expect::AtLeast(90.0),
            essential: true,
        },
    ],
    needs: Needs {
        memory: 64 << 20,
        files: 0,
    },
    root_adds: None,
    measure,
};

/// A round's end: what the program knows, and what the walk found without it.
struct Round {
    stop: Stop,
    explained: Explained,
}

fn measure(bench: &Bench) -> Result<Measured> {
    let mut rounds = Vec::new();
    run::run_with(
        &bench.program("leak-beside-retention").arg("--rounds", ROUNDS),
        |stop, pid| {
            if stop.line.name == "round" {
                rounds.push(Round {
                    stop: stop.clone(),
                    explained: inspect::look(pid)?,
                });
            }
            Ok(())
        },
    )?;
    let [_, second, .., last] = &rounds[..] else {
        bail!("the program made {} rounds instead of {ROUNDS}", rounds.len());
    };
    let mut measured = Measured::default();
    let grown = (last.stop.look.resident - second.stop.look.resident) * 100.0 / second.stop.look.resident;
    measured.count(
        "resident_growth",
        "RSS grown from the second round to the last",
        grown,
        Unit::Percent,
    );
    let (Some(before), Some(after)) = (&second.explained.heap, &last.explained.heap) else {
        let why = last
            .explained
            .heap_unknown
            .clone()
            .unwrap_or_else(|| "the heap could not be walked".to_string());
        for key in ["lost_found", "foreign", "retained_share"] {
            measured.miss(key, why.clone());
        }
        return Ok(measured);
    };
    let lost = |round: &Round| round.stop.line.number("lost_blocks");
    let lost_since = lost(last)? - lost(second)?;
    let found = after.live_blocks as f64 - before.live_blocks as f64;
    measured.count(
        "lost_found",
        "of the blocks lost, found by the walk",
        found * 100.0 / lost_since,
        Unit::Percent,
    );
    measured.count(
        "foreign",
        "live blocks beside them",
        after.live_blocks as f64 - lost(last)?,
        Unit::Count,
    );
    let resident = &last.explained.resident;
    let heap = (resident.live + resident.retained + resident.allocator_overhead) as f64;
    measured.count(
        "retained_share",
        "of the resident heap kept for reuse",
        resident.retained as f64 * 100.0 / heap,
        Unit::Percent,
    );
    measured.count("live", "live in the end", after.live_bytes as f64, Unit::Bytes);
    measured.count(
        "retained",
        "kept for reuse in the end",
        resident.retained as f64,
        Unit::Bytes,
    );
    measured.note(format!(
        "lost by the program's own count: {} blocks, {} asked for",
        Unit::Count.show(lost(last)?),
        Unit::Bytes.show(last.stop.line.number("lost_bytes")?)
    ));
    if let Some(bytes) = last.explained.trim_would_return_bytes {
        measured.note(format!(
            "malloc_trim(0) would give back {}",
            Unit::Bytes.show(bytes as f64)
        ));
    }
    let points = |value: &dyn Fn(&Round) -> f64| -> Vec<(f64, f64)> {
        rounds
            .iter()
            .enumerate()
            .map(|(index, round)| (index as f64 + 1.0, value(round)))
            .collect()
    };
    let live = |round: &Round| round.explained.heap.as_ref().map_or(0.0, |heap| heap.live_bytes as f64);
    measured.pictures.push(Picture {
        name: "leak",
        title: "After each round: RSS keeps still, and what is live grows".to_string(),
        x: Axis::linear("round", Unit::Count),
        y: Axis::logarithmic("memory", Unit::Bytes),
        series: vec![
            Series::new("RSS", Shape::Line, points(&|round| round.stop.look.resident)),
            Series::new(
                "kept for reuse",
                Shape::Line,
                points(&|round| round.explained.resident.retained as f64),
            ),
            Series::new("live", Shape::Line, points(&live)),
        ],
    });
    Ok(measured)
}
