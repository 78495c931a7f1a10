//! What free and malloc_trim give back of the heap: experiments 3 and 4.

use anyhow::Result;
use memtrace_analysis::glibc::look::{Look as Explained, PinState};
use memtrace_analysis::report::Report;

use super::KIB;
use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::Measured;
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::run::{self, Run, Stop};
use crate::lab::trace::Traced;
use crate::lab::unit::Unit;

pub const FREE_KEEPS: Experiment = Experiment {
    number: 3,
    name: "free-keeps",
    group: Group::Heap,
    title: "free leaves break and RSS where they are",
    claim: "Freeing all 10 000 blocks of 64 bytes leaves break and RSS where they are.",
    why: "A freed chunk of up to 128 bytes goes to the thread cache, then to a fastbin, and is not merged with its \
          neighbours: the top does not grow, so there is nothing to trim. Larger blocks merge, and a top of \
          trim_threshold (128 KiB) or more is given back by free itself. From glibc 2.43 there are no fastbins, but the \
          thread cache's own structure, made at the first free, lies on top of such a heap and pins it.",
    commands: &[
        "memtrace-lab brk-steps",
        "memtrace-lab brk-steps --bytes 1000 --blocks 2000",
    ],
    checks: &[
        Check {
            figure: "break_change",
            says: "the break stays where it is",
            claimed: Some(0.0),
            expect: Expect::Exactly(0.0),
            essential: true,
        },
        Check {
            figure: "resident_change",
            says: "RSS stays where it is",
            claimed: Some(0.0),
            expect: Expect::AtLeast(-64.0 * KIB),
            essential: true,
        },
        Check {
            figure: "break_change_reverse",
            says: "the break when freed in reverse order",
            claimed: None,
            expect: Expect::Shown,
            essential: false,
        },
        Check {
            figure: "break_change_large",
            says: "the break after freeing 2 000 blocks of 1 000 bytes",
            claimed: None,
            expect: Expect::Shown,
            essential: false,
        },
    ],
    needs: Needs { memory: 0, files: 0 },
    root_adds: Some("how many of the frees led to a system call, and to which"),
    measure: measure_free,
};

pub const TRIM: Experiment = Experiment {
    number: 4,
    name: "trim",
    group: Group::Heap,
    title: "malloc_trim(0) gives it back",
    claim: "malloc_trim(0) gives the freed memory back to the system.",
    why: "malloc_trim merges what lies in fastbins, lowers the break over a free top, and returns whole free pages between \
          live blocks by madvise. Chunks in thread caches stay, and pin what lies below them: in reverse order the last \
          chunks freed are the lowest ones, and in order the first.",
    commands: &["memtrace-lab brk-steps", "strace -e brk,madvise memtrace-lab brk-steps"],
    checks: &[
        Check {
            figure: "break_lowered",
            says: "the break comes down again",
            claimed: None,
            expect: Expect::AtLeast(512.0 * KIB),
            essential: true,
        },
        Check {
            figure: "resident_returned",
            says: "RSS comes down again",
            claimed: None,
            expect: Expect::AtLeast(512.0 * KIB),
            essential: true,
        },
        Check {
            figure: "resident_returned_reverse",
            says: "RSS given back after freeing in reverse order",
            claimed: None,
            expect: Expect::Shown,
            essential: false,
        },
        Check {
            figure: "break_lowered_reverse",
            says: "the break lowered after freeing in reverse order",
            claimed: None,
            expect: Expect::Shown,
            essential: false,
        },
        Check {
            figure: "prediction_off",
            says: "memtrace explain's prediction of it, within 256 KiB",
            claimed: None,
            expect: Expect::AtMost(256.0 * KIB),
            essential: false,
        },
    ],
    needs: Needs { memory: 0, files: 0 },
    root_adds: Some("by which system calls it gives back, and how much by each"),
    measure: measure_trim,
};

fn measure_free(bench: &Bench) -> Result<Measured> {
    let forward = &bench.brk_steps()?.run;
    let reverse = run::run(&bench.program("brk-steps").arg("--reverse", 1))?;
    let large = run::run(&bench.program("brk-steps").arg("--bytes", 1_000).arg("--blocks", 2_000))?;
    let mut measured = Measured::default();
    measured.count(
        "break_change",
        "the break after the frees",
        change(forward, "brk", "peak", "freed")?,
        Unit::Bytes,
    );
    measured.count(
        "resident_change",
        "RSS after the frees",
        change(forward, "rss", "peak", "freed")?,
        Unit::Bytes,
    );
    measured.count(
        "break_change_reverse",
        "the break after freeing in reverse order",
        change(&reverse, "brk", "peak", "freed")?,
        Unit::Bytes,
    );
    measured.count(
        "break_change_large",
        "the break after freeing 2 000 blocks of 1 000 bytes",
        change(&large, "brk", "peak", "freed")?,
        Unit::Bytes,
    );
    measured.pictures.push(levels(forward)?);
    match bench.brk_steps_traced()? {
        Traced::Seen { report, .. } => {
            let returned = &report.returned;
            let frees = report.freed.as_ref().map_or(0, |freed| freed.blocks);
            measured.count("frees", "frees traced", frees as f64, Unit::Count);
            let leading = (returned.frees_munmap + returned.frees_trim) as f64;
            measured.count("frees_returning", "of them led to a system call", leading, Unit::Count);
            if returned.frees_trim > 0 {
                let why = format!(
                    "{} of the frees found a top of trim_threshold or more and lowered the break, traced",
                    Unit::Count.show(returned.frees_trim as f64)
                );
                measured.because("break_change", why.clone());
                measured.because("resident_change", why);
            }
        }
        Traced::Not(why) => measured.miss("frees_returning", why.clone()),
    }
    Ok(measured)
}

fn measure_trim(bench: &Bench) -> Result<Measured> {
    let forward = &bench.brk_steps()?.run;
    let reverse = run::run(&bench.program("brk-steps").arg("--reverse", 1))?;
    let mut measured = Measured::default();
    let lowered = -change(forward, "brk", "freed", "trimmed")?;
    measured.count(
        "break_lowered",
        "the break lowered by malloc_trim(0)",
        lowered,
        Unit::Bytes,
    );
    let returned = -change(forward, "rss", "freed", "trimmed")?;
    measured.count(
        "resident_returned",
        "RSS given back by malloc_trim(0)",
        returned,
        Unit::Bytes,
    );
    measured.count(
        "break_lowered_reverse",
        "the break lowered, freed in reverse order",
        -change(&reverse, "brk", "freed", "trimmed")?,
        Unit::Bytes,
    );
    measured.count(
        "resident_returned_reverse",
        "RSS given back, freed in reverse order",
        -change(&reverse, "rss", "freed", "trimmed")?,
        Unit::Bytes,
    );
    match bench.brk_steps_traced()? {
        Traced::Seen { report, .. } => traced_trim(report, &mut measured),
        Traced::Not(why) => measured.miss("trim_returned", why.clone()),
    }
    match &bench.brk_steps()?.freed {
        Ok(explained) => pinned(explained, returned, &mut measured),
        Err(why) => measured.miss("prediction_off", why.clone()),
    }
    let by_free = -change(forward, "brk", "peak", "freed")?;
    if by_free > 0.0 {
        let why = format!("free had already lowered the break by {}", Unit::Bytes.show(by_free));
        measured.because("break_lowered", why.clone());
        measured.because("resident_returned", why);
    }
    Ok(measured)
}

/// What a walk through the heap said before the trim: what it would give back, and what pins the top.
fn pinned(explained: &Explained, returned: f64, measured: &mut Measured) {
    match explained.trim_would_return_bytes {
        Some(predicted) => {
            let off = (predicted as f64 - returned).abs();
            measured.count(
                "prediction_off",
                "memtrace explain's prediction was off by",
                off,
                Unit::Bytes,
            );
        }
        None => measured.miss("prediction_off", "the walk could not predict the trim"),
    }
    let main = explained
        .heap
        .iter()
        .flat_map(|heap| &heap.arenas)
        .find(|arena| arena.kind == "main");
    let Some(pin) = main.and_then(|arena| arena.pin) else {
        return;
    };
    let what = match pin.state {
        PinState::ThreadCacheStructure => "the thread cache's own structure, which this glibc makes at the first free",
        PinState::Cached => "a chunk in a thread cache",
        PinState::Fastbin => "a chunk in a fastbin",
        PinState::Live => "a live block",
        PinState::Boundary => "memory that is not malloc's",
    };
    measured.because(
        "break_lowered",
        format!(
            "{what} ({} bytes) lies on top of the heap and pins it: the {} below it come back by madvise, not by the break",
            pin.bytes,
            Unit::Bytes.show(pin.free_below_bytes as f64)
        ),
    );
}

/// By which system calls malloc_trim gave back, and how much.
fn traced_trim(report: &Report, measured: &mut Measured) {
    let Some(trim) = report.trims.first() else {
        return measured.miss("trim_returned", "the trace has no malloc_trim call");
    };
    measured.count(
        "trim_returned",
        "given back in its course, traced",
        trim.returned_bytes as f64,
        Unit::Bytes,
    );
    measured.note(format!(
        "in its course the break was lowered by {} and {} were handed back by {} madvise calls",
        Unit::Bytes.show(trim.break_lowered_bytes as f64),
        Unit::Bytes.show(trim.madvised_bytes as f64),
        trim.madvise_calls
    ));
}

/// By how much a program's own fact changed between two phases.
fn change(run: &Run, fact: &str, from: &str, to: &str) -> Result<f64> {
    Ok(run.stop(to)?.line.number(fact)? - run.stop(from)?.line.number(fact)?)
}

fn levels(run: &Run) -> Result<Picture> {
    let phases = ["base", "peak", "freed", "trimmed"];
    let bars = |value: &dyn Fn(&Stop) -> Result<f64>| -> Result<Vec<(f64, f64)>> {
        let at = |(place, phase): (usize, &&str)| Ok((place as f64, value(run.stop(phase)?)?));
        phases.iter().enumerate().map(at).collect()
    };
    Ok(Picture {
        name: "free-keeps",
        title: "Freed is not given back: live bytes, resident bytes and the break".to_string(),
        x: Axis::places(
            "",
            ["start", "10 000 held", "all freed", "malloc_trim(0)"]
                .map(str::to_string)
                .to_vec(),
        ),
        y: Axis::linear("memory", Unit::Bytes),
        series: vec![
            Series::new(
                "live (asked for)",
                Shape::Bars,
                bars(&|stop| stop.line.number("live_bytes"))?,
            ),
            Series::new(
                "heap, resident",
                Shape::Bars,
                bars(&|stop| Ok(stop.look.heap_resident))?,
            ),
            Series::new(
                "break above the start",
                Shape::Bars,
                bars(&|stop| stop.line.number("brk"))?,
            ),
        ],
    })
}
