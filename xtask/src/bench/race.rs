//! The race: in each round every arm has its turn on every workload, and each turn is framed by two windows without any
//! tool, so that what is compared lies side by side in time.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::arm::{self, Arm, Attached, Kind};
use super::stats::Spread;
use super::workload::{Class, Running, Window, Workload};
use crate::process::say;

pub struct Rules {
    pub rounds: usize,
    /// Rounds that peers take part in: on the pair, where a figure depends on them, and elsewhere.
    pub pair_rounds: usize,
    pub peer_rounds: usize,
    pub window: Duration,
    /// Alternations of what is next to nothing with nothing.
    pub alternations: usize,
}

/// One turn.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub workload: &'static str,
    pub arm: &'static str,
    pub round: usize,
    /// Wall time for a unit of work.
    pub ns: f64,
    /// The same in the workload's processor time.
    pub cpu_ns: Option<f64>,
    /// Without any tool, before and after; after alone is left out where the tool ends the process.
    pub base_ns: f64,
    pub base_cpu_ns: Option<f64>,
    /// Seconds from the tool's start until it was ready.
    pub ready_s: Option<f64>,
    /// Calls of malloc that the tool saw, and that were made while it was attached.
    pub seen: Option<u64>,
    pub made: Option<u64>,
}

impl Sample {
    /// By how much the tool slows the workload down.
    pub fn factor(&self) -> f64 {
        self.ns / self.base_ns
    }

    pub fn cpu_factor(&self) -> Option<f64> {
        Some(self.cpu_ns? / self.base_cpu_ns?)
    }

    /// What the tool adds to a unit of work.
    pub fn added_cpu_ns(&self) -> Option<f64> {
        Some(self.cpu_ns? - self.base_cpu_ns?)
    }
}

/// A turn that could not be had.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    pub workload: &'static str,
    pub arm: &'static str,
    pub why: String,
}

#[derive(Default, Serialize)]
pub struct Results {
    pub samples: Vec<Sample>,
    /// Many short turns, for figures of some hundredths.
    pub alternations: Vec<Sample>,
    pub failures: Vec<Failure>,
}

impl Results {
    pub fn of<'a>(&'a self, workload: &'a str, arm: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples
            .iter()
            .filter(move |sample| sample.workload == workload && sample.arm == arm)
    }

    /// Slow-down factors in processor time: by the many short turns, or where there were none, by those of the race.
    pub fn factors<'a>(&'a self, workload: &'a str, arm: &'a str) -> impl Iterator<Item = f64> {
        let is_of = move |sample: &&Sample| sample.workload == workload && sample.arm == arm;
        let samples = if self.alternations.iter().any(|sample| is_of(&sample)) {
            &self.alternations
        } else {
            &self.samples
        };
        samples.iter().filter(is_of).filter_map(Sample::cpu_factor)
    }

    /// Turns of two arms on the same workload in the same round.
    pub fn pairs<'a>(
        &'a self,
        workload: &'a str,
        one: &'a str,
        other: &'a str,
    ) -> impl Iterator<Item = (&'a Sample, &'a Sample)> {
        self.of(workload, one).filter_map(move |sample| {
            let other = self.of(workload, other).find(|other| other.round == sample.round)?;
            Some((sample, other))
        })
    }
}

/// In a warm-up the tool's own start and the caches' contents are left behind.
const WARM_UP: Duration = Duration::from_millis(40);
/// Of a program that was started under a tool.
const LONG_WARM_UP: Duration = Duration::from_millis(400);

pub fn run(workloads: &[&Workload], arms: &[&'static Arm], rules: &Rules, scratch: &Path) -> Results {
    let mut results = Results::default();
    let mut out: BTreeSet<(&str, &str)> = BTreeSet::new();
    for workload in workloads {
        let mut running = None;
        for round in 0..rules.rounds {
            say(&format!("{}: round {} of {}", workload.name, round + 1, rules.rounds));
            // Each arm begins a round in its turn.
            for i in 0..arms.len() {
                let arm = arms[(i + round) % arms.len()];
                if out.contains(&(workload.name, arm.name)) || !takes_part(workload, arm, round, rules) {
                    continue;
                }
                match turn(workload, &mut running, arm, round, rules, scratch) {
                    Ok(sample) => results.samples.push(sample),
                    Err(error) => {
                        let why = format!("{error:#}");
                        say(&format!("{} on {}: {why}", arm.name, workload.name));
                        out.insert((workload.name, arm.name));
                        results.failures.push(Failure {
                            workload: workload.name,
                            arm: arm.name,
                            why,
                        });
                        // Whatever state it was left in.
                        running = None;
                    }
                }
            }
        }
    }
    results
}

/// Threads in dozens are there for the probes' sake; ptrace would take minutes, and no server is started under a tool.
fn takes_part(workload: &Workload, arm: &Arm, round: usize, rules: &Rules) -> bool {
    if !arm.is_peer() {
        return true;
    }
    let rounds = match arm.kind {
        // Each pair takes it a millisecond, and its cost is beyond question.
        Kind::Under(_) => rules.peer_rounds.min(1),
        _ if workload.name == "pair" => rules.pair_rounds,
        _ => rules.peer_rounds,
    };
    round < rounds
        && workload.name != "threads-64"
        && !(matches!(arm.kind, Kind::Under(_)) && matches!(workload.kind, super::workload::Kind::Redis))
}

fn turn(
    workload: &Workload,
    running: &mut Option<Running>,
    arm: &Arm,
    round: usize,
    rules: &Rules,
    scratch: &Path,
) -> Result<Sample> {
    let process = match running {
        Some(process) => process,
        None => {
            let mut process = Running::start(workload, &[])?;
            process.window(rules.window)?;
            running.insert(process)
        }
    };
    let before = process.window(rules.window)?;
    let mut sample = Sample {
        workload: workload.name,
        arm: arm.name,
        round,
        ns: 0.0,
        cpu_ns: None,
        base_ns: before.each_ns(),
        base_cpu_ns: before.each_cpu_ns(),
        ready_s: None,
        seen: None,
        made: None,
    };
    if let Kind::Under(words) = arm.kind {
        let mut under = Running::start(workload, &arm::prefix(words, scratch))?;
        under.window(LONG_WARM_UP)?;
        sample.ns = under.window(rules.window)?.each_ns();
        return Ok(sample);
    }
    let attached = Attached::to(arm.kind, process.pid())?;
    sample.ready_s = Some(attached.took.as_secs_f64());
    let warm = process.window(WARM_UP).context("while it was attached")?;
    let window = process.window(rules.window).context("while it was attached")?;
    let said = attached.stop()?;
    let after = process.window(rules.window).context("once it was gone")?;
    for window in [&before, &window, &after] {
        if window.work <= 0.0 {
            bail!("nothing was done in a window of {} ms", rules.window.as_millis());
        }
    }
    sample.ns = window.each_ns();
    sample.cpu_ns = window.each_cpu_ns();
    sample.base_ns = mean(&before, &after, Window::each_ns);
    sample.base_cpu_ns = before
        .each_cpu_ns()
        .zip(after.each_cpu_ns())
        .map(|(before, after)| before.midpoint(after));
    sample.seen = said.mallocs;
    if workload.class == Class::Churn {
        sample.made = Some((warm.work + window.work) as u64);
        if matches!(arm.kind, Kind::Bpftrace(_)) && sample.seen.unwrap_or(0) == 0 {
            bail!("it saw none of the calls of malloc");
        }
    }
    Ok(sample)
}

/// The arms that are to be next to nothing, and where.
fn alternated(workload: &Workload, arm: &Arm) -> bool {
    match arm.name {
        "syscalls" | arm::BARE_SYSCALLS => workload.class != Class::SystemCalls,
        "slow-path" => workload.name == "pair",
        _ => false,
    }
}

/// Short windows in a row, of which the middle one counts: what disturbs the machine for a moment spoils one of them.
const SHORT: Duration = Duration::from_millis(40);
const SHORT_WINDOWS: usize = 5;

/// Off, on, off, on, ...: each time on stands between two times off. Arms take turns, so that what is held against each other
/// was measured side by side.
pub fn alternate(workload: &Workload, arms: &[&'static Arm], rules: &Rules, results: &mut Results) {
    let mut arms: Vec<&'static Arm> = arms.iter().copied().filter(|arm| alternated(workload, arm)).collect();
    let mut running = None;
    for round in 0..rules.alternations {
        if round == 0 && !arms.is_empty() {
            let names: Vec<&str> = arms.iter().map(|arm| arm.name).collect();
            let (names, count) = (names.join(", "), rules.alternations);
            say(&format!("{names} on {}: {count} alternations", workload.name));
        }
        arms.retain(|&arm| match alternation(workload, &mut running, arm, round) {
            Ok(sample) => {
                results.alternations.push(sample);
                true
            }
            Err(error) => {
                let why = format!("{error:#}");
                say(&format!("{} on {}: {why}", arm.name, workload.name));
                results.failures.push(Failure {
                    workload: workload.name,
                    arm: arm.name,
                    why,
                });
                // Whatever state it was left in.
                running = None;
                false
            }
        });
    }
}

/// A process between two times on, and what it was like in the last time off.
type Between = (Running, (f64, f64));

fn alternation(workload: &Workload, running: &mut Option<Between>, arm: &'static Arm, round: usize) -> Result<Sample> {
    let (process, before) = match running {
        Some(between) => between,
        None => {
            let mut process = Running::start(workload, &[])?;
            process.window(LONG_WARM_UP)?;
            let before = middle(&mut process)?;
            running.insert((process, before))
        }
    };
    let attached = Attached::to(arm.kind, process.pid())?;
    let ready_s = attached.took.as_secs_f64();
    process.window(WARM_UP).context("while it was attached")?;
    let (ns, cpu_ns) = middle(process).context("while it was attached")?;
    attached.stop()?;
    process.window(WARM_UP).context("once it was gone")?;
    let after = middle(process).context("once it was gone")?;
    let sample = Sample {
        workload: workload.name,
        arm: arm.name,
        round,
        ns,
        cpu_ns: Some(cpu_ns),
        base_ns: before.0.midpoint(after.0),
        base_cpu_ns: Some(before.1.midpoint(after.1)),
        ready_s: Some(ready_s),
        seen: None,
        made: None,
    };
    *before = after;
    Ok(sample)
}

/// Wall time and processor time for a unit of work.
fn middle(process: &mut Running) -> Result<(f64, f64)> {
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..SHORT_WINDOWS {
        let window = process.window(SHORT)?;
        if window.work > 0.0 {
            wall.push(window.each_ns());
            cpu.extend(window.each_cpu_ns());
        }
    }
    let median = |values| Spread::of(values).map(|spread| spread.median);
    median(wall)
        .zip(median(cpu))
        .context("nothing was done in short windows")
}

fn mean(before: &Window, after: &Window, of: fn(&Window) -> f64) -> f64 {
    of(before).midpoint(of(after))
}
