//! The dynamic threshold makes large blocks as cheap as small ones: experiment 9.

use anyhow::Result;
use memtrace_analysis::report::Report;

use super::pairs::{LARGE, SMALL, Timings, ratios};
use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::Measured;
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::run::{self, Run};
use crate::lab::trace::Traced;
use crate::lab::unit::Unit;

const TRACED_ROUNDS: u64 = 1_000;

pub const THRESHOLD: Experiment = Experiment {
    number: 9,
    name: "threshold",
    group: Group::Cost,
    title: "256 KiB soon cost as little as 48 bytes",
    claim: "malloc of 256 KiB in a loop is as fast as a small one, 10.4 ns against 1 963.8 ns for mmap, since the threshold is \
            dynamic: one mmap, one munmap, then none.",
    why: "The first block of 256 KiB is above the threshold of 128 KiB and is mapped. Its free raises the threshold to the \
          chunk's size, and from then on the block comes from the top of the heap, without any system call; the trim \
          threshold, twice as high, keeps the top.",
    commands: &[
        "memtrace-lab threshold",
        "strace -e brk,mmap,munmap memtrace-lab threshold",
    ],
    checks: &[
        Check {
            figure: "large",
            says: "malloc and free of 256 KiB",
            claimed: Some(10.4),
            expect: Expect::AtMost(200.0),
            essential: true,
        },
        Check {
            figure: "mmap_large",
            says: "mmap and munmap of 256 KiB",
            claimed: Some(1_963.8),
            expect: Expect::AtLeast(1_000.0),
            essential: true,
        },
        Check {
            figure: "against_small",
            says: "256 KiB against 48 bytes",
            claimed: None,
            expect: Expect::AtMost(10.0),
            essential: true,
        },
        Check {
            figure: "mapped_rounds",
            says: "rounds whose block had a mapping of its own",
            claimed: Some(1.0),
            expect: Expect::Exactly(1.0),
            essential: true,
        },
        Check {
            figure: "syscalls",
            says: "one mmap and one munmap in all rounds, traced",
            claimed: Some(2.0),
            expect: Expect::Exactly(2.0),
            essential: false,
        },
    ],
    needs: Needs {
        memory: 128 << 20,
        files: 0,
    },
    root_adds: Some("the one mmap and the one munmap, and the free that raised the threshold"),
    measure,
};

fn measure(bench: &Bench) -> Result<Measured> {
    let timings = Timings::of(bench.pairs()?)?;
    let mut measured = Measured::default();
    let (small, large) = (timings.rounds("malloc", SMALL), timings.rounds("malloc", LARGE));
    let mapped = timings.rounds("mmap", LARGE);
    measured.time("large", "malloc and free of 256 KiB", large, Unit::Nanoseconds);
    measured.time("mmap_large", "mmap and munmap of 256 KiB", mapped, Unit::Nanoseconds);
    measured.time("factor", "mmap against malloc", &ratios(mapped, large), Unit::Times);
    measured.time(
        "against_small",
        "256 KiB against 48 bytes",
        &ratios(large, small),
        Unit::Times,
    );

    let rounds = 6;
    let command = bench
        .program("one-at-a-time")
        .arg("--first", LARGE)
        .arg("--last", LARGE)
        .arg("--times", rounds);
    let run = run::run(&command)?;
    timeline(&run, &mut measured)?;
    match bench.trace(&bench.program("threshold").arg("--rounds", TRACED_ROUNDS))? {
        Traced::Seen { report, .. } => traced_loop(&report, &mut measured),
        Traced::Not(why) => measured.miss("syscalls", why),
    }
    Ok(measured)
}

/// Every memory system call of the whole loop, and what the trace says of the threshold.
fn traced_loop(report: &Report, measured: &mut Measured) {
    let count = |name: &str| report.syscalls.get(name).map_or(0, |count| count.attributed);
    let (brk, mmap, munmap) = (count("brk"), count("mmap"), count("munmap"));
    let label = format!("mmap and munmap calls in {TRACED_ROUNDS} rounds, traced");
    measured.count("syscalls", label, (mmap + munmap) as f64, Unit::Count);
    measured.note(format!(
        "in {TRACED_ROUNDS} rounds malloc and free made {mmap} mmap, {munmap} munmap and {brk} brk calls"
    ));
    for change in report.threshold.history.iter().skip(1) {
        measured.note(format!(
            "traced: mmap_threshold {} by {}",
            Unit::Bytes.show(change.mmap_threshold as f64),
            change.cause
        ));
    }
}

/// What each malloc and each free of the loop left in glibc's settings.
fn timeline(run: &Run, measured: &mut Measured) -> Result<()> {
    let base = &run.stop("base")?.look;
    let Some(start) = base.books else {
        measured.miss("mapped_rounds", base.without_books());
        return Ok(());
    };
    let mapped = run
        .stops("held")
        .filter(|stop| stop.look.books.is_some_and(|books| books.mapped_blocks > 0))
        .count();
    measured.count(
        "mapped_rounds",
        "rounds with a mapping of their own",
        mapped as f64,
        Unit::Count,
    );
    let (mut thresholds, mut trims) = (Vec::new(), Vec::new());
    let mut before = start;
    for (place, stop) in run.stops.iter().enumerate() {
        let Some(books) = stop.look.books else { continue };
        thresholds.push((place as f64, books.mmap_threshold as f64));
        trims.push((place as f64, books.trim_threshold as f64));
        if books.mmap_threshold != before.mmap_threshold {
            let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
            measured.note(format!(
                "{} number {} raised mmap_threshold from {} to {}, and trim_threshold from {} to {}",
                if stop.line.name == "freed" { "free" } else { "malloc" },
                stop.line.text("time").unwrap_or("?"),
                show(before.mmap_threshold),
                show(books.mmap_threshold),
                show(before.trim_threshold),
                show(books.trim_threshold)
            ));
        }
        before = books;
    }
    let places = run.stops.iter().map(|stop| match stop.line.name.as_str() {
        "held" => format!("malloc {}", stop.line.text("time").unwrap_or("?")),
        "freed" => format!("free {}", stop.line.text("time").unwrap_or("?")),
        _ => "start".to_string(),
    });
    measured.pictures.push(Picture {
        name: "threshold",
        title: "One free of a mapped block raises both thresholds".to_string(),
        x: Axis::places("blocks of 256 KiB, one at a time", places.collect()),
        y: Axis::linear("threshold", Unit::Bytes),
        series: vec![
            Series::new("trim_threshold", Shape::Steps, trims),
            Series::new("mmap_threshold", Shape::Steps, thresholds),
        ],
    });
    Ok(())
}
