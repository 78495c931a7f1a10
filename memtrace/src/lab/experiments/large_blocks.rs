//! Blocks with a mapping of their own, and up to which size that ends: experiments 5 and 12.

use anyhow::{Context, Result};

use super::MIB;
use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::Measured;
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::run::{self, Look, Stop};
use crate::lab::trace::Traced;
use crate::lab::unit::Unit;

pub const LARGE_BLOCK: Experiment = Experiment {
    number: 5,
    name: "large-block",
    group: Group::Heap,
    title: "2 MiB come from mmap and go back at once",
    claim: "A block of 2 MiB does not move the break: it is mapped, and its free unmaps it at once.",
    why: "A request of mmap_threshold (128 KiB at first) or more that the heap cannot serve gets a mapping of its own. \
          Freeing it raises the threshold to its size, so the next block of 2 MiB comes from the heap.",
    commands: &[
        "memtrace-lab large-block",
        "strace -e brk,mmap,munmap memtrace-lab large-block",
    ],
    checks: &[
        Check {
            figure: "break_moved",
            says: "the break does not move",
            claimed: Some(0.0),
            expect: Expect::Exactly(0.0),
            essential: true,
        },
        Check {
            figure: "mapped",
            says: "a mapping for the block",
            claimed: None,
            expect: Expect::Between(2.0 * MIB, 2.1 * MIB),
            essential: true,
        },
        Check {
            figure: "left_mapped",
            says: "nothing of it stays mapped after its free",
            claimed: Some(0.0),
            expect: Expect::AtMost(0.0),
            essential: true,
        },
        Check {
            figure: "break_moved_second",
            says: "the break at the second such block",
            claimed: None,
            expect: Expect::Shown,
            essential: false,
        },
        Check {
            figure: "attributed",
            says: "one mmap by the malloc and one munmap by the free, traced",
            claimed: None,
            expect: Expect::Exactly(2.0),
            essential: false,
        },
    ],
    needs: Needs {
        memory: 4 << 20,
        files: 0,
    },
    root_adds: Some("the mmap and the munmap, each tied to its malloc and free"),
    measure: measure_large_block,
};

pub const CEILING: Experiment = Experiment {
    number: 12,
    name: "ceiling",
    group: Group::Cost,
    title: "the threshold ends at 32 MiB, and trim follows at twice",
    claim: "The mmap threshold grows up to 32 MiB only: larger blocks are mapped each time. The trim threshold is twice the \
            mmap threshold.",
    why: "A free raises the threshold only for chunks of up to DEFAULT_MMAP_THRESHOLD_MAX, 32 MiB on 64-bit machines; the \
          chunk of a 32 MiB block is a page larger. Each time it also sets the trim threshold to twice the new value, so \
          that a heap that serves such blocks does not give them back at once.",
    commands: &["memtrace-lab one-at-a-time --first 1048576 --last 67108864"],
    checks: &[
        Check {
            figure: "always_mapped_from",
            says: "from this size on, the second block is mapped again",
            claimed: Some(32.0 * MIB),
            expect: Expect::Exactly(32.0 * MIB),
            essential: true,
        },
        Check {
            figure: "highest_threshold",
            says: "no threshold above 32 MiB",
            claimed: Some(32.0 * MIB),
            expect: Expect::AtMost(32.0 * MIB),
            essential: true,
        },
        Check {
            figure: "trim_ratio",
            says: "the trim threshold against the mmap threshold, once raised",
            claimed: Some(2.0),
            expect: Expect::Exactly(2.0),
            essential: true,
        },
    ],
    needs: Needs {
        memory: 128 << 20,
        files: 0,
    },
    root_adds: None,
    measure: measure_ceiling,
};

fn measure_large_block(bench: &Bench) -> Result<Measured> {
    let size = 2 << 20;
    let run = run::run(&bench.program("one-at-a-time").arg("--first", size).arg("--last", size))?;
    let base = run.stop("base")?;
    let [first_held, second_held] = two(run.stops("held"))?;
    let [first_freed, _] = two(run.stops("freed"))?;
    let brk = |stop: &Stop| stop.line.number("brk");
    let mut measured = Measured::default();
    measured.count(
        "break_moved",
        "the break moved by the first block",
        brk(first_held)? - brk(base)?,
        Unit::Bytes,
    );
    let mapped = mapped_bytes(&first_held.look) - mapped_bytes(&base.look);
    measured.count("mapped", "anonymous mappings grown by", mapped, Unit::Bytes);
    let left = mapped_bytes(&first_freed.look) - mapped_bytes(&base.look);
    measured.count("left_mapped", "still mapped after its free", left, Unit::Bytes);
    let second = brk(second_held)? - brk(first_freed)?;
    measured.count(
        "break_moved_second",
        "the break moved by the second block",
        second,
        Unit::Bytes,
    );
    let command = bench
        .program("one-at-a-time")
        .arg("--first", size)
        .arg("--last", size)
        .arg("--times", 1);
    match bench.trace(&command)? {
        Traced::Seen { report, .. } => {
            let attributed = |name: &str| report.syscalls.get(name).map_or(0, |count| count.attributed) as f64;
            let calls = attributed("mmap") + attributed("munmap");
            measured.count(
                "attributed",
                "mmap and munmap calls of malloc and free, traced",
                calls,
                Unit::Count,
            );
        }
        Traced::Not(why) => measured.miss("attributed", why),
    }
    if let (Some(before), Some(after)) = (base.look.books, first_freed.look.books) {
        let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
        measured.note(format!(
            "the first free raised mmap_threshold from {} to {}, and trim_threshold from {} to {}",
            show(before.mmap_threshold),
            show(after.mmap_threshold),
            show(before.trim_threshold),
            show(after.trim_threshold)
        ));
    }
    Ok(measured)
}

fn measure_ceiling(bench: &Bench) -> Result<Measured> {
    let run = run::run(
        &bench
            .program("one-at-a-time")
            .arg("--first", 1 << 20)
            .arg("--last", 64 << 20),
    )?;
    let mut measured = Measured::default();
    let base = &run.stop("base")?.look;
    let Some(first) = base.books else {
        for key in ["always_mapped_from", "highest_threshold", "trim_ratio"] {
            measured.miss(key, base.without_books());
        }
        return Ok(measured);
    };
    let mut mapped_from: Option<f64> = None;
    let mut thresholds = vec![(0.5 * MIB, first.mmap_threshold as f64)];
    let mut trims = vec![(0.5 * MIB, first.trim_threshold as f64)];
    for (held, freed) in run.stops("held").zip(run.stops("freed")) {
        let bytes = held.line.number("bytes")?;
        let (Some(at_held), Some(at_freed)) = (held.look.books, freed.look.books) else {
            continue;
        };
        if held.line.number("time")? == 2.0 {
            match at_held.mapped_blocks {
                0 => mapped_from = None,
                _ => mapped_from = mapped_from.or(Some(bytes)),
            }
            thresholds.push((bytes, at_freed.mmap_threshold as f64));
            trims.push((bytes, at_freed.trim_threshold as f64));
        }
    }
    match mapped_from {
        Some(bytes) => measured.count("always_mapped_from", "mapped again from a size of", bytes, Unit::Bytes),
        None => measured.miss("always_mapped_from", "no size up to 64 MiB was mapped twice"),
    }
    let highest = thresholds.iter().map(|point| point.1).fold(0.0, f64::max);
    measured.count("highest_threshold", "the highest mmap threshold", highest, Unit::Bytes);
    let raised = thresholds
        .iter()
        .zip(&trims)
        .filter(|(threshold, _)| threshold.1 > first.mmap_threshold as f64);
    let ratios: Vec<f64> = raised.map(|(threshold, trim)| trim.1 / threshold.1).collect();
    match ratios.first() {
        // The one that is furthest from the claim speaks for all.
        Some(_) => {
            let furthest = ratios
                .iter()
                .copied()
                .max_by(|a, b| (a - 2.0).abs().total_cmp(&(b - 2.0).abs()));
            measured.count(
                "trim_ratio",
                "trim threshold / mmap threshold",
                furthest.unwrap_or(0.0),
                Unit::Times,
            );
        }
        None => measured.miss("trim_ratio", "no free raised the threshold"),
    }
    measured.pictures.push(Picture {
        name: "ceiling",
        title: "What freeing a block of each size leaves as thresholds".to_string(),
        x: Axis::logarithmic("block allocated and freed", Unit::Bytes),
        y: Axis::logarithmic("threshold afterwards", Unit::Bytes),
        series: vec![
            Series::new("trim_threshold", Shape::Steps, trims),
            Series::new("mmap_threshold", Shape::Steps, thresholds),
        ],
    });
    Ok(measured)
}

fn mapped_bytes(look: &Look) -> f64 {
    look.anonymous.iter().sum::<u64>() as f64
}

fn two<'a>(mut stops: impl Iterator<Item = &'a Stop>) -> Result<[&'a Stop; 2]> {
    let mut next = || stops.next().context("the program stopped at fewer than two blocks");
    Ok([next()?, next()?])
}
