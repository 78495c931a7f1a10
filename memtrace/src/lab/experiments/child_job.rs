//! A child process gives everything back when it ends: experiment 7.

use anyhow::Result;

use super::MIB;
use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::Measured;
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::run;
use crate::lab::unit::Unit;

const MEGABYTES: u64 = 128;

pub const CHILD_JOB: Experiment = Experiment {
    number: 7,
    name: "child-job",
    group: Group::Heap,
    title: "a child process gives all back when it ends",
    claim: "A hungry job in a child process gives all its memory back when the child ends; in the process itself it stays.",
    why: "The kernel takes an ended process's pages, whatever its allocator meant to keep. In the process itself one small \
          block left behind at the top of the heap pins everything freed below it.",
    commands: &["memtrace-lab child-job", "memtrace-lab child-job --fork 0"],
    checks: &[
        Check {
            figure: "kept_by_parent",
            says: "RSS that a child's job leaves in its parent",
            claimed: Some(0.0),
            expect: Expect::AtMost(MIB),
            essential: true,
        },
        Check {
            figure: "kept_in_process",
            says: "RSS that the same job leaves in its own process",
            claimed: None,
            expect: Expect::AtLeast(64.0 * MIB),
            essential: true,
        },
        Check {
            figure: "peak",
            says: "RSS of the child at work",
            claimed: None,
            expect: Expect::AtLeast(MEGABYTES as f64 * MIB),
            essential: false,
        },
    ],
    needs: Needs {
        memory: (2 * MEGABYTES) << 20,
        files: 0,
    },
    root_adds: None,
    measure,
};

fn measure(bench: &Bench) -> Result<Measured> {
    let job = |fork| {
        run::run(
            &bench
                .program("child-job")
                .arg("--megabytes", MEGABYTES)
                .arg("--fork", fork),
        )
    };
    let (child, own) = (job(1)?, job(0)?);
    let mut measured = Measured::default();
    let base = child.stop("base")?.look.resident;
    let after = child.stop("done")?.parent.resident;
    measured.count("kept_by_parent", "RSS left in the parent", after - base, Unit::Bytes);
    let own_base = own.stop("base")?.look.resident;
    let own_after = own.stop("done")?.look.resident;
    measured.count(
        "kept_in_process",
        "RSS left in the process itself",
        own_after - own_base,
        Unit::Bytes,
    );
    measured.count(
        "peak",
        "RSS of the child at work",
        child.stop("working")?.look.resident,
        Unit::Bytes,
    );
    let available = |run: &run::Run| -> Result<f64> {
        Ok(run.stop("base")?.look.machine.available - run.stop("done")?.look.machine.available)
    };
    measured.note(format!(
        "MemAvailable of the whole machine, which others move too, fell by {} over the child's job and by {} over the other",
        Unit::Bytes.show(available(&child)?),
        Unit::Bytes.show(available(&own)?)
    ));
    let own_peak = own.stop("working")?.look.resident;
    let child_sum = child.stop("working")?.look.resident + child.stop("working")?.parent.resident;
    measured.pictures.push(Picture {
        name: "child-job",
        title: format!("A job of {MEGABYTES} MB: what stays resident"),
        x: Axis::places("", ["before", "at work", "afterwards"].map(str::to_string).to_vec()),
        y: Axis::linear("resident", Unit::Bytes),
        series: vec![
            Series::new(
                "in a child (parent and child)",
                Shape::Bars,
                vec![(0.0, base), (1.0, child_sum), (2.0, after)],
            ),
            Series::new(
                "in the process itself",
                Shape::Bars,
                vec![(0.0, own_base), (1.0, own_peak), (2.0, own_after)],
            ),
        ],
    });
    Ok(measured)
}
