//! The figures that memtrace is to reach, each with what was measured for it.
//!
//! Ratios between probes are of the workload's own processor time, which others on the machine disturb least; the budget
//! is of the throughput that its user sees, which is wall time.

use std::collections::BTreeMap;

use serde::Serialize;

use super::arm;
use super::attach::Attach;
use super::budget::Budget;
use super::drain::Drain;
use super::race::Results;
use super::stats::{Spread, Verdict};
use super::system_calls::SystemCalls;
use super::workload::{Class, Workload};

#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub what: String,
    /// The bound and the measurement, in words.
    pub wanted: String,
    pub measured: String,
    pub verdict: Verdict,
    /// Why it cannot be reached here, by what was measured.
    pub because: Option<String>,
}

impl Figure {
    /// The verdict, with what explains it.
    pub fn judged(&self) -> String {
        let words = self.verdict.words();
        match &self.because {
            Some(because) => format!("{words}: {because}"),
            None => words.to_owned(),
        }
    }
}

/// All that was measured beside the race.
#[derive(Default, Serialize)]
pub struct Beside {
    pub attach: Vec<Attach>,
    pub drain: Vec<Drain>,
    pub budget: Vec<Budget>,
    pub system_calls: Vec<SystemCalls>,
}

pub fn all(results: &Results, beside: &Beside, workloads: &[&Workload]) -> Vec<Figure> {
    let mut figures = vec![
        ratio(
            "calls, the pair: of what two bare probes cost",
            1.25,
            results
                .pairs("pair", "calls", "bare")
                .filter_map(|(calls, bare)| Some(calls.cpu_ns? / bare.cpu_ns?)),
        ),
        ratio(
            "calls, the pair: of what bpftrace costs",
            0.2,
            results
                .pairs("pair", "calls", "bpftrace")
                .filter_map(|(calls, peer)| Some(calls.added_cpu_ns()? / peer.added_cpu_ns()?)),
        ),
        ratio(
            "calls, the pair: of what memleak costs",
            0.2,
            results
                .pairs("pair", "calls", "memleak")
                .filter_map(|(calls, peer)| Some(calls.added_cpu_ns()? / peer.added_cpu_ns()?)),
        ),
        ratio(
            "slow-path, the pair: of no tracer",
            1.02,
            results.factors("pair", "slow-path"),
        ),
        ratio(
            "slow-path, the mix: of what calls adds",
            1.0 / 3.0,
            results
                .pairs("mix", "slow-path", "calls")
                .filter_map(|(slow, calls)| Some(slow.added_cpu_ns()? / calls.added_cpu_ns()?)),
        ),
    ];
    for workload in workloads.iter().filter(|workload| workload.class != Class::SystemCalls) {
        figures.push(syscalls(results, beside, workload.name));
    }
    figures.extend(beside.budget.iter().map(budget));
    figures.push(drained(&beside.drain));
    figures.extend(attached(&beside.attach));
    figures.push(threads(results));
    figures.push(exact(results));
    figures
}

fn ratio(what: &str, bound: f64, values: impl Iterator<Item = f64>) -> Figure {
    let spread = Spread::of(values);
    Figure {
        what: what.to_owned(),
        wanted: format!("at most {bound:.2} x"),
        measured: spread.map_or_else(|| "-".to_owned(), |spread| shown(&spread)),
        verdict: spread.map_or(Verdict::NotMeasured, |spread| spread.at_most(bound)),
        because: None,
    }
}

/// What depth syscalls costs, beside what one empty tracepoint does: where that alone is beyond the bound, nobody keeps it.
fn syscalls(results: &Results, beside: &Beside, workload: &'static str) -> Figure {
    const BOUND: f64 = 1.01;
    let what = format!("syscalls, {workload}: of no tracer");
    let mut figure = ratio(&what, BOUND, results.factors(workload, "syscalls"));
    if let Some(floor) = Spread::of(results.factors(workload, arm::BARE_SYSCALLS)) {
        figure.measured += &format!("; one empty system call tracepoint alone: {}", shown(&floor));
        let beyond = floor.at_most(BOUND) == Verdict::NotReached;
        if beyond && matches!(figure.verdict, Verdict::NotReached | Verdict::CannotTell) {
            figure.because = Some("no tracer that uses a system call tracepoint keeps it here".to_owned());
        }
    }
    if let Some(calls) = beside.system_calls.iter().find(|calls| calls.workload == workload) {
        figure.measured += &format!("; {}", calls.in_words());
    }
    figure
}

fn shown(spread: &Spread) -> String {
    format!(
        "{:.3} x ({:.3} to {:.3}, {} turns)",
        spread.median, spread.from, spread.to, spread.count
    )
}

/// Largest part of its throughput that a workload may lose under the default budget.
const LOSS: f64 = 0.10;

fn budget(budget: &Budget) -> Figure {
    let percent = |spread: &Spread| {
        format!(
            "{:.1} % ({:.1} to {:.1})",
            spread.median * 100.0,
            spread.from * 100.0,
            spread.to * 100.0
        )
    };
    let cpu = budget
        .cpu_loss
        .map(|loss| format!("; of its processor time {}", percent(&loss)))
        .unwrap_or_default();
    Figure {
        what: format!(
            "auto, {}: throughput lost over {:.0} s with the default budget",
            budget.workload, budget.seconds
        ),
        wanted: "at most 10 %".to_owned(),
        measured: format!("{}{cpu}", percent(&budget.loss)),
        verdict: budget.loss.at_most(LOSS),
        because: None,
    }
}

fn drained(drains: &[Drain]) -> Figure {
    const EVENTS: f64 = 100_000.0;
    let judged = drains.iter().map(|drain| {
        if drain.lost > 0 || drain.cores > 0.5 || drain.seen != drain.made {
            Verdict::NotReached
        } else if drain.events_per_second < EVENTS {
            // The machine did not give the target what it needs for so many.
            Verdict::CannotTell
        } else {
            Verdict::Reached
        }
    });
    let words = drains.iter().map(|drain| {
        format!(
            "{:.0} a second, {:.2} of a core, {} lost, {} of {} seen",
            drain.events_per_second, drain.cores, drain.lost, drain.seen, drain.made
        )
    });
    Figure {
        what: "events drained by the user side".to_owned(),
        wanted: "100 000 a second on half a core, none lost".to_owned(),
        measured: none_is_dash(words.collect::<Vec<_>>().join("; ")),
        verdict: Verdict::all(judged),
        because: None,
    }
}

fn attached(attaches: &[Attach]) -> Vec<Figure> {
    let ms = |of: fn(&Attach) -> f64| Spread::of(attaches.iter().map(of));
    let line = |what: &str, bound: f64, of: fn(&Attach) -> f64| {
        let spread = ms(of);
        Figure {
            what: what.to_owned(),
            wanted: format!("at most {bound:.0} ms"),
            measured: spread.map_or_else(
                || "-".to_owned(),
                |spread| format!("{:.0} ms ({:.0} to {:.0})", spread.median, spread.from, spread.to),
            ),
            verdict: spread.map_or(Verdict::NotMeasured, |spread| spread.at_most(bound)),
            because: None,
        }
    };
    let figure =
        |of: fn(&Attach) -> f64| ms(of).map_or_else(|| "-".to_owned(), |spread| format!("{:.1} ms", spread.median));
    let mut attach = line("all probes attached, from the first to the last", 100.0, |attach| {
        attach.probes_ms
    });
    if let Some(first) = attaches.first() {
        attach.measured += &format!(
            "; {} probes; {} from memtrace's start",
            first.probes,
            figure(|attach| attach.ready_ms)
        );
    }
    let mut detach = line("all probes gone, from the request on", 300.0, |attach| attach.gone_ms);
    if !attaches.is_empty() {
        detach.measured += &format!(
            "; longest pause of the target {} at attach, {} at detach, {} without",
            figure(|attach| attach.gap_attach_ms),
            figure(|attach| attach.gap_detach_ms),
            figure(|attach| attach.gap_base_ms)
        );
    }
    vec![attach, detach]
}

/// What noise of a few rounds may hide.
const NO_MORE: f64 = 1.05;

/// What calls slows 64 threads down, of what bare probes do, against the same of one thread: round by round.
fn threads(results: &Results) -> Figure {
    let of = |workload| -> BTreeMap<usize, f64> {
        results
            .pairs(workload, "calls", "bare")
            .filter_map(|(calls, bare)| Some((calls.round, calls.cpu_factor()? / bare.cpu_factor()?)))
            .collect()
    };
    let (one, many) = (of("pair"), of("threads-64"));
    let against = Spread::of(many.iter().filter_map(|(round, many)| Some(many / one.get(round)?)));
    let words = |ratios: &BTreeMap<usize, f64>| Spread::of(ratios.values().copied()).map(|spread| shown(&spread));
    Figure {
        what: "calls, 64 threads: slow-down over that of bare probes, against the same of one thread".to_owned(),
        wanted: format!("no more (at most {NO_MORE:.2} x)"),
        measured: match (&against, words(&many), words(&one)) {
            (Some(against), Some(many), Some(one)) => format!("{}: {many} against {one}", shown(against)),
            _ => "-".to_owned(),
        },
        verdict: against.map_or(Verdict::NotMeasured, |against| against.at_most(NO_MORE)),
        because: None,
    }
}

/// Every call that was made while memtrace was attached has been counted, on each workload that knows how many it made.
fn exact(results: &Results) -> Figure {
    let turns: Vec<(u64, u64)> = results
        .samples
        .iter()
        .filter(|sample| sample.arm == "calls")
        .filter_map(|sample| Some((sample.seen?, sample.made?)))
        .collect();
    let wrong = turns.iter().filter(|(seen, made)| seen != made).count();
    let calls: u64 = turns.iter().map(|(_, made)| made).sum();
    Figure {
        what: "calls: every malloc counted, up to 64 threads".to_owned(),
        wanted: "exactly".to_owned(),
        measured: format!(
            "{calls} made in {} turns, {wrong} turns with another count",
            turns.len()
        ),
        verdict: match (turns.is_empty(), wrong) {
            (true, _) => Verdict::NotMeasured,
            (false, 0) => Verdict::Reached,
            _ => Verdict::NotReached,
        },
        because: None,
    }
}

fn none_is_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::race::Sample;
    use super::*;

    fn turns(arm: &'static str, factors: &[f64]) -> Vec<Sample> {
        let sample = |(round, &factor): (usize, &f64)| Sample {
            workload: "redis",
            arm,
            round,
            ns: factor,
            cpu_ns: Some(factor),
            base_ns: 1.0,
            base_cpu_ns: Some(1.0),
            ready_s: None,
            seen: None,
            made: None,
        };
        factors.iter().enumerate().map(sample).collect()
    }

    fn judged(memtrace: &[f64], floor: &[f64]) -> Figure {
        let results = Results {
            alternations: [turns("syscalls", memtrace), turns(arm::BARE_SYSCALLS, floor)].concat(),
            ..Results::default()
        };
        syscalls(&results, &Beside::default(), "redis")
    }

    #[test]
    fn a_floor_explains_a_verdict_and_never_changes_it() {
        let beyond = [1.05, 1.06, 1.07];
        let around = [1.00, 1.02, 1.04];
        let kept = [0.99, 1.00, 1.00];
        for (memtrace, floor, verdict, explained) in [
            (beyond, beyond, Verdict::NotReached, true),
            (beyond, around, Verdict::NotReached, false),
            (around, beyond, Verdict::CannotTell, true),
            (kept, beyond, Verdict::Reached, false),
        ] {
            let figure = judged(&memtrace, &floor);
            assert_eq!(
                (figure.verdict, figure.because.is_some()),
                (verdict, explained),
                "{figure:?}"
            );
        }
        assert!(
            judged(&beyond, &beyond[..2]).because.is_none(),
            "two turns tell nothing"
        );
        assert!(judged(&beyond, &[]).because.is_none());
    }
}
