//! How long the probes take to come and to go, and what the target's threads feel of it.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::arm::{Arm, Attached};
use super::workload::{self, Running};
use crate::lines::Lines;
use crate::workspace;

#[derive(Clone, Debug, Serialize)]
pub struct Attach {
    /// Milliseconds from memtrace's start until it says that it is attached.
    pub ready_ms: f64,
    /// From the first probe in the target's code to the last one.
    pub probes_ms: f64,
    pub probes: usize,
    /// From the request to end until the target's code is its own again.
    pub gone_ms: f64,
    /// The longest time a thread of the target took for some microseconds of work: while memtrace came, while it went, and
    /// without it.
    pub gap_attach_ms: f64,
    pub gap_detach_ms: f64,
    pub gap_base_ms: f64,
}

/// Both long enough for what happens in it.
const WINDOW: Duration = Duration::from_millis(2_000);
const SETTLED: Duration = Duration::from_millis(200);

pub fn measure(arm: &Arm) -> Result<Attach> {
    let workload = workload::ALL.iter().find(|workload| workload.name == "pair");
    let mut process = Running::start(workload.context("there is no workload named pair")?, &[])?;
    let gap_ms = |window: workload::Window| window.gap_ns.map_or(f64::NAN, |ns| ns / 1e6);
    let gap_base_ms = gap_ms(process.window(WINDOW)?);

    let mut watch = Command::new(workspace::target().join("release/examples/watch_probes"))
        .arg(process.pid().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting watch_probes")?;
    let mut changes = Lines::of(watch.stdout.take().context("no standard output")?);
    changes.wait_for(" 0")?;

    process.open(WINDOW)?;
    thread::sleep(SETTLED);
    let attached = Attached::to(arm.kind, process.pid())?;
    let ready_ms = attached.took.as_secs_f64() * 1e3;
    let gap_attach_ms = gap_ms(process.close()?);

    process.open(WINDOW)?;
    thread::sleep(SETTLED);
    let mut ask = watch.stdin.take().context("no standard input")?;
    writeln!(ask).context("asking for the time")?;
    let asked_ns = time_of(&changes.wait_for("asked")?)?;
    attached.stop()?;
    let gap_detach_ms = gap_ms(process.close()?);

    drop(ask);
    watch.wait().context("waiting for watch_probes")?;
    let mut seen = Vec::new();
    for line in changes.rest() {
        let count: usize = line
            .split(' ')
            .next_back()
            .and_then(|count| count.parse().ok())
            .with_context(|| format!("reading a line of watch_probes: {line}"))?;
        seen.push((time_of(&line)?, count));
    }
    let changes = seen;
    let probes = changes.iter().map(|&(_, count)| count).max().unwrap_or(0);
    let first = changes.iter().find(|&&(_, count)| count > 0);
    let last = changes.iter().find(|&&(_, count)| count == probes);
    let gone = changes
        .iter()
        .rev()
        .find(|&&(time, count)| count == 0 && time > asked_ns);
    let between = |from: Option<f64>, to: Option<&(f64, usize)>| match (from, to) {
        (Some(from), Some(&(to, _))) => (to - from) / 1e6,
        _ => f64::NAN,
    };
    Ok(Attach {
        ready_ms,
        probes_ms: between(first.map(|&(time, _)| time), last),
        probes,
        gone_ms: between(Some(asked_ns), gone),
        gap_attach_ms,
        gap_detach_ms,
        gap_base_ms,
    })
}

fn time_of(line: &str) -> Result<f64> {
    line.split(' ')
        .next()
        .and_then(|time| time.parse().ok())
        .with_context(|| format!("reading a line of watch_probes: {line}"))
}
