//! Each knob, set in each way it can be, and read back from glibc's own books: experiment 14.

use anyhow::Result;

use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::Measured;
use crate::lab::run::{self, Books};
use crate::lab::unit::Unit;

pub const KNOBS: Experiment = Experiment {
    number: 14,
    name: "knobs",
    group: Group::Cost,
    title: "each knob does what it says",
    claim: "mallopt, MALLOC_ variables and GLIBC_TUNABLES set what their names say.",
    why: "All three end in the same structure (mp_), which is read back here from the process itself. Setting \
          M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD or M_MMAP_MAX also switches the dynamic threshold off, whatever \
          was meant. Thresholds above 32 MiB are refused by some versions.",
    commands: &[
        "memtrace-lab knobs --parameter 3 --value 1048576",
        "MALLOC_MMAP_THRESHOLD_=1048576 memtrace-lab knobs",
        "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=1048576 memtrace-lab knobs",
    ],
    checks: &[
        Check {
            figure: "took",
            says: "knobs that took",
            claimed: Some(100.0),
            expect: Expect::Exactly(100.0),
            essential: true,
        },
        Check {
            figure: "froze",
            says: "knobs that froze the dynamic threshold",
            claimed: None,
            expect: Expect::Shown,
            essential: false,
        },
    ],
    needs: Needs { memory: 0, files: 0 },
    root_adds: None,
    measure,
};

/// A knob with a value that is not its default.
struct Knob {
    name: &'static str,
    value: u64,
    read: fn(&Books) -> u64,
    /// mallopt's number without its minus sign.
    parameter: Option<u64>,
    variable: Option<&'static str>,
    tunable: Option<&'static str>,
}

const KNOBS_TRIED: &[Knob] = &[
    Knob {
        name: "mmap_threshold",
        value: 1 << 20,
        read: |books| books.mmap_threshold,
        parameter: Some(3),
        variable: Some("MALLOC_MMAP_THRESHOLD_"),
        tunable: Some("glibc.malloc.mmap_threshold"),
    },
    Knob {
        name: "trim_threshold",
        value: 3 << 20,
        read: |books| books.trim_threshold,
        parameter: Some(1),
        variable: Some("MALLOC_TRIM_THRESHOLD_"),
        tunable: Some("glibc.malloc.trim_threshold"),
    },
    Knob {
        name: "top_pad",
        value: 5 << 20,
        read: |books| books.top_pad,
        parameter: Some(2),
        variable: Some("MALLOC_TOP_PAD_"),
        tunable: Some("glibc.malloc.top_pad"),
    },
    Knob {
        name: "mmap_max",
        value: 7,
        read: |books| books.mmap_max,
        parameter: Some(4),
        variable: Some("MALLOC_MMAP_MAX_"),
        tunable: Some("glibc.malloc.mmap_max"),
    },
    Knob {
        name: "arena_max",
        value: 3,
        read: |books| books.arena_max,
        parameter: Some(8),
        variable: Some("MALLOC_ARENA_MAX"),
        tunable: Some("glibc.malloc.arena_max"),
    },
    Knob {
        name: "tcache_count",
        value: 3,
        read: |books| books.tcache_count,
        parameter: None,
        variable: None,
        tunable: Some("glibc.malloc.tcache_count"),
    },
];

fn measure(bench: &Bench) -> Result<Measured> {
    let mut measured = Measured::default();
    let (mut tried, mut took, mut froze) = (0, 0, Vec::new());
    let mut failed = Vec::new();
    for knob in KNOBS_TRIED {
        for (way, command) in ways(bench, knob) {
            let run = run::run(&command)?;
            let base = &run.stop("base")?.look;
            let Some(books) = base.books else {
                measured.miss("took", base.without_books());
                return Ok(measured);
            };
            tried += 1;
            let now = (knob.read)(&books);
            if now == knob.value {
                took += 1;
            } else {
                failed.push(format!("{way} left {} at {now} instead of {}", knob.name, knob.value));
            }
            if !books.dynamic {
                froze.push(way);
            }
        }
    }
    measured.count(
        "took",
        format!("of {tried} settings took"),
        f64::from(took) * 100.0 / f64::from(tried),
        Unit::Percent,
    );
    measured.count("froze", "froze the dynamic threshold", froze.len() as f64, Unit::Count);
    if !failed.is_empty() {
        measured.because("took", failed.join("; "));
    }
    measured.note(if froze.is_empty() {
        "no setting froze the dynamic threshold".to_string()
    } else {
        format!("the dynamic threshold was frozen by {}", froze.join(", "))
    });
    too_large(bench, &mut measured)?;
    Ok(measured)
}

/// Every way in which a knob can be set.
fn ways(bench: &Bench, knob: &Knob) -> Vec<(String, run::Command)> {
    let program = || bench.program("knobs");
    let value = knob.value;
    let mut ways = Vec::new();
    if let Some(parameter) = knob.parameter {
        let name = format!("mallopt M_{}", knob.name.to_uppercase());
        ways.push((name, program().arg("--parameter", parameter).arg("--value", value)));
    }
    if let Some(variable) = knob.variable {
        ways.push((variable.to_string(), program().env(variable, value.to_string())));
    }
    if let Some(tunable) = knob.tunable {
        ways.push((
            tunable.to_string(),
            program().env("GLIBC_TUNABLES", format!("{tunable}={value}")),
        ));
    }
    ways
}

/// A threshold that some versions refuse.
fn too_large(bench: &Bench, measured: &mut Measured) -> Result<()> {
    let value = 64u64 << 20;
    let run = run::run(&bench.program("knobs").arg("--parameter", 3).arg("--value", value))?;
    let result = run.rows("mallopt").next().map(|row| row.number("result")).transpose()?;
    if let (Some(result), Some(books)) = (result, run.stop("base")?.look.books) {
        measured.note(format!(
            "mallopt(M_MMAP_THRESHOLD, 64 MiB) returned {result} and left the threshold at {}",
            Unit::Bytes.show(books.mmap_threshold as f64)
        ));
    }
    Ok(())
}
