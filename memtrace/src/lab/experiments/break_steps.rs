//! The break grows in batches: experiments 1 and 2.

use crate::page_size::page_size;
use anyhow::{Context, Result};
use memtrace_analysis::report::Report;

use super::KIB;
use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::{Measured, median};
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::run::{Books, Run};
use crate::lab::trace::Traced;
use crate::lab::unit::Unit;

/// What a block of 64 bytes takes.
const CHUNK: f64 = 80.0;

pub const BRK_STEPS: Experiment = Experiment {
    number: 1,
    name: "brk-steps",
    group: Group::Heap,
    title: "the break grows in batches, not per malloc",
    claim: "10 000 mallocs of 64 bytes take a handful of brk calls, each 132 KiB; the break ends 924 KiB higher (aarch64, \
            gcc:13) for the 625 KiB asked.",
    why: "When the top of the heap is too small for a chunk, glibc asks for as much as is missing plus top_pad (128 KiB) \
          plus 32 bytes, rounded up to a page: 132 KiB for a small block. A block of 64 bytes takes a chunk of 80. Where \
          the break ends also depends on what else the program allocated before.",
    commands: &["memtrace-lab brk-steps", "strace -e brk memtrace-lab brk-steps"],
    checks: &[
        Check {
            figure: "steps",
            says: "a handful of steps for 10 000 mallocs",
            claimed: Some(7.0),
            expect: Expect::Between(1.0, 20.0),
            essential: true,
        },
        Check {
            figure: "step",
            says: "steps of 132 KiB",
            claimed: Some(132.0 * KIB),
            expect: Expect::Exactly(132.0 * KIB),
            essential: true,
        },
        Check {
            figure: "growth",
            says: "by how much the break is higher in the end",
            claimed: Some(924.0 * KIB),
            expect: Expect::Shown,
            essential: false,
        },
        Check {
            figure: "against_rule",
            says: "as glibc's rule predicts",
            claimed: None,
            expect: Expect::Exactly(0.0),
            essential: false,
        },
        Check {
            figure: "brk_calls",
            says: "brk calls that raised the break, traced",
            claimed: Some(7.0),
            expect: Expect::Between(1.0, 20.0),
            essential: false,
        },
        Check {
            figure: "rule_steps",
            says: "of them as the rule predicts from the top chunk at that moment",
            claimed: None,
            expect: Expect::Exactly(100.0),
            essential: false,
        },
    ],
    needs: Needs { memory: 0, files: 0 },
    root_adds: Some("which malloc caused each step, and the rule checked step by step against the top chunk"),
    measure: measure_steps,
};

pub const ONE_STEP: Experiment = Experiment {
    number: 2,
    name: "one-step",
    group: Group::Heap,
    title: "2 000 mallocs move the break once",
    claim: "Between 2 000 and 4 000 mallocs of 64 bytes the break moved by one step only.",
    why: "2 000 chunks of 80 bytes are 156 KiB, and a step is 132 KiB: the most that 2 000 mallocs need is two steps, the \
          least is one. Which of them it is depends on how full the top was at the 2 000th.",
    commands: &["memtrace-lab brk-steps"],
    checks: &[Check {
        figure: "steps_between",
        says: "one step from the 2 000th malloc to the 4 000th",
        claimed: Some(1.0),
        expect: Expect::Exactly(1.0),
        essential: true,
    }],
    needs: Needs { memory: 0, files: 0 },
    root_adds: None,
    measure: measure_one_step,
};

fn measure_steps(bench: &Bench) -> Result<Measured> {
    let run = &bench.brk_steps()?.run;
    let steps = steps(run)?;
    let mut measured = Measured::default();
    measured.count("steps", "steps of the break", steps.len() as f64, Unit::Count);
    let sizes: Vec<f64> = sizes(&steps);
    let usual = median(&sizes).context("the break did not move at all")?;
    measured.count("step", "the usual step", usual, Unit::Bytes);
    let grown = run.stop("peak")?.line.number("brk")?;
    measured.count("growth", "the break in the end, above its start", grown, Unit::Bytes);
    if let Some(books) = run.stop("peak")?.look.books {
        let predicted = predict(&books, 10_000, 64);
        measured.count(
            "against_rule",
            "the break against what the rule predicts",
            grown - predicted,
            Unit::Bytes,
        );
        let chunk = CHUNK as u64;
        // The top has between nothing and a chunk left when it does not suffice.
        let by_rule = [1, chunk + 32].map(|missing| (books.top_pad + missing).next_multiple_of(page_size()) as f64);
        if usual != 132.0 * KIB && by_rule.contains(&usual) {
            measured.because(
                "step",
                format!(
                    "with pages of {} and a top_pad of {} the rule gives another step",
                    Unit::Bytes.show(page_size() as f64),
                    Unit::Bytes.show(books.top_pad as f64)
                ),
            );
        }
    } else {
        measured.miss("against_rule", run.stop("peak")?.look.without_books());
    }
    measured.pictures.push(staircase(run, &steps)?);
    match bench.brk_steps_traced()? {
        Traced::Seen { report, .. } => traced_steps(report, &mut measured),
        Traced::Not(why) => {
            for key in ["brk_calls", "rule_steps"] {
                measured.miss(key, why.clone());
            }
        }
    }
    Ok(measured)
}

fn measure_one_step(bench: &Bench) -> Result<Measured> {
    let steps = steps(&bench.brk_steps()?.run)?;
    let mut measured = Measured::default();
    let between: Vec<_> = steps
        .iter()
        .filter(|(blocks, _)| (2_001.0..=4_000.0).contains(blocks))
        .collect();
    measured.count(
        "steps_between",
        "steps from the 2 000th malloc to the 4 000th",
        between.len() as f64,
        Unit::Count,
    );
    if let [first, .., last] = between.as_slice() {
        let usual = median(&sizes(&steps)).context("the break did not move at all")?;
        measured.because(
            "steps_between",
            format!(
                "a step of {} is for {} of these mallocs, and the first of them came at malloc {}, the last at {}",
                Unit::Bytes.show(usual),
                Unit::Count.show((usual / CHUNK).floor()),
                Unit::Count.show(first.0),
                Unit::Count.show(last.0)
            ),
        );
    }
    Ok(measured)
}

/// What the trace adds: each step with its cause, held against the rule.
fn traced_steps(report: &Report, measured: &mut Measured) {
    let growth = &report.growth;
    let total = growth.brk_steps_total as f64;
    measured.count(
        "brk_calls",
        "brk calls that raised the break, traced",
        total,
        Unit::Count,
    );
    if total > 0.0 {
        let matching = growth.brk_steps_matching as f64 * 100.0 / total;
        measured.count("rule_steps", "of them as the rule predicts", matching, Unit::Percent);
    }
    let unlike: Vec<_> = growth.steps.iter().filter_map(|step| step.reason.clone()).collect();
    if !unlike.is_empty() {
        measured.because("rule_steps", unlike.join("; "));
    }
    let causes = growth.steps.iter().map(|step| {
        let batch = match step.batch {
            Some(batch) if !batch.first => format!(" after {} blocks", batch.blocks),
            _ => String::new(),
        };
        format!("{}({}){batch}", step.cause.entry, step.cause.request)
    });
    measured.note(format!(
        "the steps were caused by {}",
        causes.collect::<Vec<_>>().join(", ")
    ));
}

/// The number of the malloc and the bytes of the break above its start, for each step.
fn steps(run: &Run) -> Result<Vec<(f64, f64)>> {
    run.rows("step")
        .map(|row| Ok((row.number("blocks")?, row.number("brk")?)))
        .collect()
}

fn sizes(steps: &[(f64, f64)]) -> Vec<f64> {
    let starts = std::iter::once(0.0).chain(steps.iter().map(|step| step.1));
    steps.iter().zip(starts).map(|(step, from)| step.1 - from).collect()
}

/// Where the break ends by glibc's rule, step = page_up(chunk + top_pad + 32 - top), when nothing else is allocated but
/// the thread cache's own struct.
fn predict(books: &Books, blocks: u64, request: u64) -> f64 {
    // Up to 2.41 the struct takes 0x290, in 2.42 0x300; later it comes with the first free.
    let cache = match books.version.minor {
        ..42 => 0x290,
        42 => 0x300,
        43.. => 0,
    };
    let cache = if books.tcache_count == 0 { 0 } else { cache };
    let chunk = (request + 8).next_multiple_of(16).max(32);
    let (mut top, mut end) = (0u64, 0u64);
    for chunk in std::iter::once(cache)
        .chain((0..blocks).map(|_| chunk))
        .filter(|&chunk| chunk > 0)
    {
        if top < chunk + 32 {
            let step = (chunk + books.top_pad + 32)
                .saturating_sub(top)
                .next_multiple_of(page_size());
            end += step;
            top += step;
        }
        top -= chunk;
    }
    end as f64
}

fn staircase(run: &Run, steps: &[(f64, f64)]) -> Result<Picture> {
    let peak = &run.stop("peak")?.line;
    let blocks = peak.number("live_blocks")?;
    let mut stairs = vec![(0.0, 0.0)];
    stairs.extend(steps);
    stairs.push((blocks, peak.number("brk")?));
    let asked = vec![(0.0, 0.0), (blocks, peak.number("live_bytes")?)];
    Ok(Picture {
        name: "brk-steps",
        title: "The break climbs in steps, however often malloc is called".to_string(),
        x: Axis::linear("mallocs of 64 bytes", Unit::Count),
        y: Axis::linear("bytes above the start", Unit::Bytes),
        series: vec![
            Series::new("break", Shape::Steps, stairs),
            Series::new("asked for", Shape::Line, asked),
        ],
    })
}

#[cfg(test)]
mod tests {
    use memtrace_analysis::glibc::Version;

    use super::*;

    fn books(minor: u32, top_pad: u64) -> Books {
        Books {
            version: Version { major: 2, minor },
            mmap_threshold: 128 << 10,
            trim_threshold: 128 << 10,
            top_pad,
            arena_test: 8,
            arena_max: 0,
            mmap_max: 65_536,
            mapped_blocks: 0,
            dynamic: true,
            tcache_count: 7,
            arenas: 1,
        }
    }

    #[test]
    fn the_rule_gives_six_steps_for_ten_thousand_small_blocks() {
        assert_eq!(predict(&books(36, 128 << 10), 10_000, 64), 6.0 * 132.0 * KIB);
    }

    #[test]
    fn without_padding_every_page_is_a_step() {
        // 10,000 chunks of 80 bytes, the cache's struct, and the 32 bytes that must stay on top.
        assert_eq!(
            predict(&books(36, 0), 10_000, 64),
            ((800_000f64 + 656.0 + 32.0) / 4096.0).ceil() * 4096.0
        );
    }
}
