//! What malloc and free cost beside mmap and munmap: experiments 8 and 10.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::{Measured, median};
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::run::Run;
use crate::lab::trace::Traced;
use crate::lab::unit::Unit;

pub const SMALL: u64 = 48;
pub const LARGE: u64 = 256 << 10;
const TRACED_ROUNDS: u64 = 1_000;

pub const PAIR_COST: Experiment = Experiment {
    number: 8,
    name: "pair-cost",
    group: Group::Cost,
    title: "malloc+free takes nanoseconds, mmap+munmap microseconds",
    claim: "malloc and free of 48 bytes take some nanoseconds, mmap and munmap over a microsecond: 254 times as much.",
    why: "A small block comes from the thread cache, a list in the thread's own memory. A mapping costs two system calls and \
          a page fault when its page is first written; in a virtual machine a fault costs more than on bare metal.",
    commands: &["memtrace-lab pairs --bytes 48"],
    checks: &[
        Check {
            figure: "malloc_small",
            says: "malloc and free of 48 bytes take some nanoseconds",
            claimed: None,
            expect: Expect::AtMost(100.0),
            essential: true,
        },
        Check {
            figure: "mmap_small",
            says: "mmap and munmap take over a microsecond",
            claimed: None,
            expect: Expect::AtLeast(1_000.0),
            essential: true,
        },
        Check {
            figure: "factor",
            says: "the factor between them",
            claimed: Some(254.0),
            expect: Expect::AtLeast(50.0),
            essential: true,
        },
    ],
    needs: Needs {
        memory: 128 << 20,
        files: 0,
    },
    root_adds: None,
    measure: measure_cost,
};

pub const THRESHOLD_ZERO: Experiment = Experiment {
    number: 10,
    name: "threshold-zero",
    group: Group::Cost,
    title: "M_MMAP_THRESHOLD=0 costs a system call each way",
    claim: "With M_MMAP_THRESHOLD=0 the same loop costs a system call each way: 12.5 ns become 1 444.6 ns, 116 times as much.",
    why: "Setting the threshold also freezes it: every malloc that the heap cannot serve is a mapping, every free unmaps \
          it, and the page is faulted in anew each time. A block that fits into what the heap already has is still served \
          from there.",
    commands: &[
        "memtrace-lab pairs --bytes 262144 --threshold-zero 1",
        "memtrace-lab pairs --bytes 262144",
    ],
    checks: &[
        Check {
            figure: "dynamic",
            says: "256 KiB with the dynamic threshold",
            claimed: Some(12.5),
            expect: Expect::Shown,
            essential: false,
        },
        Check {
            figure: "zero",
            says: "256 KiB with a threshold of 0",
            claimed: Some(1_444.6),
            expect: Expect::AtLeast(1_000.0),
            essential: true,
        },
        Check {
            figure: "factor",
            says: "the factor between them",
            claimed: Some(116.0),
            expect: Expect::AtLeast(25.0),
            essential: true,
        },
        Check {
            figure: "syscalls",
            says: "a system call each way, traced",
            claimed: Some(2.0),
            expect: Expect::Between(1.99, 2.01),
            essential: false,
        },
    ],
    needs: Needs {
        memory: 128 << 20,
        files: 0,
    },
    root_adds: Some("the two system calls of each round, tied to its malloc and free"),
    measure: measure_zero,
};

fn measure_cost(bench: &Bench) -> Result<Measured> {
    let timings = Timings::of(bench.pairs()?)?;
    let mut measured = Measured::default();
    let (malloc, mmap) = (timings.rounds("malloc", SMALL), timings.rounds("mmap", SMALL));
    measured.time("malloc_small", "malloc and free of 48 bytes", malloc, Unit::Nanoseconds);
    measured.time(
        "mmap_small",
        "mmap and munmap, one page written",
        mmap,
        Unit::Nanoseconds,
    );
    measured.time("factor", "the factor", &ratios(mmap, malloc), Unit::Times);
    let zero = Timings::of(bench.pairs_without_threshold()?)?;
    measured.pictures.push(Picture {
        name: "pair-cost",
        title: "A pair of malloc and free, by size (first byte written)".to_string(),
        x: Axis::logarithmic("block", Unit::Bytes),
        y: Axis::logarithmic("time of a pair (median)", Unit::Nanoseconds),
        series: vec![
            Series::new("malloc, free", Shape::Line, timings.by_size("malloc")),
            Series::new(
                "malloc, free with M_MMAP_THRESHOLD=0",
                Shape::Line,
                zero.by_size("malloc"),
            ),
            Series::new("mmap, munmap", Shape::Line, timings.by_size("mmap")),
        ],
    });
    Ok(measured)
}

fn measure_zero(bench: &Bench) -> Result<Measured> {
    let dynamic = Timings::of(bench.pairs()?)?;
    let zero = Timings::of(bench.pairs_without_threshold()?)?;
    let mut measured = Measured::default();
    let (before, after) = (dynamic.rounds("malloc", LARGE), zero.rounds("malloc", LARGE));
    measured.time("dynamic", "256 KiB, threshold left alone", before, Unit::Nanoseconds);
    measured.time("zero", "256 KiB, threshold 0", after, Unit::Nanoseconds);
    measured.time("factor", "the factor", &ratios(after, before), Unit::Times);
    measured.time(
        "small",
        "48 bytes, threshold 0",
        zero.rounds("malloc", SMALL),
        Unit::Nanoseconds,
    );
    let command = bench
        .program("threshold")
        .arg("--rounds", TRACED_ROUNDS)
        .env("MALLOC_MMAP_THRESHOLD_", "0");
    match bench.trace(&command)? {
        Traced::Seen { report, .. } => {
            let count = |name: &str| report.syscalls.get(name).map_or(0, |count| count.attributed) as f64;
            let each = (count("mmap") + count("munmap")) / TRACED_ROUNDS as f64;
            measured.count(
                "syscalls",
                "mmap and munmap calls in a round, traced",
                each,
                Unit::Count,
            );
        }
        Traced::Not(why) => measured.miss("syscalls", why),
    }
    if let Some(books) = bench.pairs_without_threshold()?.stop("base")?.look.books {
        measured.note(format!(
            "read from the process: mmap_threshold {}, dynamic rule {}",
            Unit::Bytes.show(books.mmap_threshold as f64),
            if books.dynamic { "on" } else { "off" }
        ));
    }
    Ok(measured)
}

/// Nanoseconds of each round, by way and size.
pub struct Timings<'a>(BTreeMap<(&'a str, u64), Vec<f64>>);

impl<'a> Timings<'a> {
    pub fn of(run: &'a Run) -> Result<Self> {
        let mut timings = BTreeMap::<_, Vec<f64>>::new();
        for row in run.rows("pair") {
            let way = row.text("way").unwrap_or_default();
            timings
                .entry((way, row.number("bytes")? as u64))
                .or_default()
                .push(row.number("ns")?);
        }
        Ok(Self(timings))
    }

    pub fn rounds(&self, way: &'static str, bytes: u64) -> &[f64] {
        self.0.get(&(way, bytes)).map_or(&[], Vec::as_slice)
    }

    fn by_size(&self, way: &str) -> Vec<(f64, f64)> {
        let of_way = self.0.iter().filter(|((of, _), _)| *of == way);
        of_way
            .filter_map(|((_, bytes), rounds)| Some((*bytes as f64, median(rounds)?)))
            .collect()
    }
}

/// Of each round with its own neighbour, so that what disturbs both cancels out.
pub fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter()
        .zip(to)
        .filter(|(_, to)| **to > 0.0)
        .map(|(of, to)| of / to)
        .collect()
}
