//! Large blocks alive at once pay the full price each: experiment 11.

use crate::page_size::page_size;
use anyhow::Result;

use super::pairs::ratios;
use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::{Measured, median};
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::run::{self, Run};
use crate::lab::trace::Traced;
use crate::lab::unit::Unit;

const BLOCKS: u64 = 64;
const BYTES: u64 = 1 << 20;

pub const LARGE_ALIVE: Experiment = Experiment {
    number: 11,
    name: "large-alive",
    group: Group::Cost,
    title: "many large blocks at once pay the full price each",
    claim: "Of many large blocks alive at once none can be used again: each pays its mapping and a page fault for every page.",
    why: "The threshold rises with the first free only, so all blocks of the first round are mapped. In later rounds they \
          come from the heap, but what is freed exceeds the trim threshold and is given back as soon as it touches the top, \
          so the next round faults all pages in again. One block after the other stays below it.",
    commands: &[
        "memtrace-lab large-alive",
        "strace -c -e brk,mmap,munmap memtrace-lab large-alive --rounds 1",
    ],
    checks: &[
        Check {
            figure: "mapped",
            says: "blocks of the first round with a mapping of their own",
            claimed: None,
            expect: Expect::Exactly(BLOCKS as f64),
            essential: true,
        },
        Check {
            figure: "faults_alive",
            says: "a page fault for each page of each block",
            claimed: None,
            // Pages of the heap's rest and huge pages save a few.
            expect: Expect::AtLeast(0.9),
            essential: true,
        },
        Check {
            figure: "faults_reuse",
            says: "hardly any fault when blocks come one after the other",
            claimed: None,
            expect: Expect::AtMost(0.1),
            essential: true,
        },
        Check {
            figure: "factor",
            says: "the price of a block alive with others, against one alone",
            claimed: None,
            expect: Expect::AtLeast(3.0),
            essential: true,
        },
    ],
    needs: Needs {
        memory: BLOCKS * BYTES,
        files: 0,
    },
    root_adds: Some("the system calls of each round, and which free gave how much back"),
    measure,
};

fn measure(bench: &Bench) -> Result<Measured> {
    let command = bench
        .program("large-alive")
        .arg("--blocks", BLOCKS)
        .arg("--bytes", BYTES);
    let run = run::run(&command.arg("--rounds", bench.settings.rounds.max(3)))?;
    let mut measured = Measured::default();
    let held = &run.stop("held")?.look;
    match held.books {
        Some(books) => measured.count(
            "mapped",
            "mapped blocks, first round",
            books.mapped_blocks as f64,
            Unit::Count,
        ),
        None => measured.miss("mapped", held.without_books()),
    }
    let one_round = bench
        .program("large-alive")
        .arg("--blocks", BLOCKS)
        .arg("--bytes", BYTES)
        .arg("--rounds", 1);
    match bench.trace(&one_round)? {
        Traced::Seen { report, .. } => {
            let count = |name: &str| report.syscalls.get(name).map_or(0, |count| count.attributed);
            measured.note(format!(
                "traced, one round of each kind: malloc and free made {} mmap, {} munmap and {} brk calls; free gave back {} by \
                 munmap and {} by a lower break",
                count("mmap"),
                count("munmap"),
                count("brk"),
                Unit::Bytes.show(report.returned.by_free_munmap_bytes as f64),
                Unit::Bytes.show(report.returned.by_free_trim_bytes as f64)
            ));
        }
        Traced::Not(why) => measured.miss("traced", why),
    }
    let pages = BYTES as f64 / page_size() as f64;
    let (alive, reuse) = (Prices::of(&run, "alive")?, Prices::of(&run, "reuse")?);
    let per_page = |faults: &[f64]| faults.iter().map(|faults| faults / pages).collect::<Vec<_>>();
    measured.time(
        "faults_alive",
        "page faults per page, all alive at once",
        &per_page(&alive.faults),
        Unit::Count,
    );
    measured.time(
        "faults_reuse",
        "page faults per page, one at a time",
        &per_page(&reuse.faults),
        Unit::Count,
    );
    measured.time(
        "alive",
        "malloc, write and free, all alive at once",
        &alive.total(),
        Unit::Nanoseconds,
    );
    measured.time(
        "reuse",
        "malloc, write and free, one at a time",
        &reuse.total(),
        Unit::Nanoseconds,
    );
    measured.time(
        "factor",
        "the price of being alive together",
        &ratios(&alive.total(), &reuse.total()),
        Unit::Times,
    );
    let huge = run.stop("held")?.look.huge_pages;
    if huge > 0.0 {
        let lay = Unit::Bytes.show(huge);
        measured.because(
            "faults_alive",
            format!("{lay} lay in transparent huge pages, where one fault fills many pages at once"),
        );
    }
    let bars = |prices: &Prices| {
        let parts = [&prices.malloc, &prices.write, &prices.free].map(|part| median(part).unwrap_or(0.0));
        parts
            .iter()
            .enumerate()
            .map(|(place, ns)| (place as f64, *ns))
            .collect()
    };
    measured.pictures.push(Picture {
        name: "large-alive",
        title: format!("What one block of 1 MiB costs ({BLOCKS} blocks, median of the rounds)"),
        x: Axis::places(
            "",
            ["malloc", "first write of each page", "free"]
                .map(str::to_string)
                .to_vec(),
        ),
        y: Axis::logarithmic("time per block", Unit::Nanoseconds),
        series: vec![
            Series::new("all alive at once", Shape::Bars, bars(&alive)),
            Series::new("one after the other", Shape::Bars, bars(&reuse)),
        ],
    });
    Ok(measured)
}

/// Per block, by round.
struct Prices {
    malloc: Vec<f64>,
    write: Vec<f64>,
    free: Vec<f64>,
    faults: Vec<f64>,
}

impl Prices {
    fn of(run: &Run, kind: &str) -> Result<Self> {
        let column = |key: &str| run.rows(kind).map(|row| row.number(key)).collect::<Result<Vec<_>>>();
        Ok(Self {
            malloc: column("malloc_ns")?,
            write: column("write_ns")?,
            free: column("free_ns")?,
            faults: column("faults")?,
        })
    }

    fn total(&self) -> Vec<f64> {
        self.malloc
            .iter()
            .zip(&self.write)
            .zip(&self.free)
            .map(|((malloc, write), free)| malloc + write + free)
            .collect()
    }
}
