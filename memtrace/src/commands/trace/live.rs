//! The live line: once a second, on standard error, and only if that is a terminal.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use memtrace_analysis::event::{Cost, Depth};
use memtrace_analysis::live::Live;

use crate::commands::output::fit;
use crate::report::units::{at, count, pages, percent, plural, resident, short};

/// The line on the terminal, which is overwritten and at last taken away.
#[derive(Debug)]
pub struct LiveLine {
    shown: bool,
}

impl LiveLine {
    /// The line is wanted where someone can see it.
    pub fn if_terminal() -> Option<Self> {
        io::stderr().is_terminal().then_some(Self { shown: false })
    }

    pub fn show(&mut self, processes: &[Live]) {
        self.shown = true;
        // A terminal that is gone must not end the trace: the report may go to a file.
        let _gone = write!(io::stderr(), "\r\x1b[K{}", fit(&line(processes), io::stderr().as_fd()))
            .and_then(|()| io::stderr().flush());
    }

    /// Takes the line away, so that what follows starts on a clean one.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _gone = write!(io::stderr(), "\r\x1b[K").and_then(|()| io::stderr().flush());
        }
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        self.clear();
    }
}

fn line(processes: &[Live]) -> String {
    let sum = |of: fn(&Live) -> u64| processes.iter().map(of).fold(0, u64::saturating_add);
    let elapsed = processes.iter().map(|live| live.elapsed_ns).max().unwrap_or(0);
    let rate: f64 = processes.iter().filter_map(|live| live.calls_per_second).sum();
    let mut parts = vec![at(elapsed)];
    if processes.len() > 1 {
        parts.push(format!("{} processes", processes.len()));
    }
    parts.push(calls(processes, rate));
    if let [only] = processes
        && let Some(end) = only.break_end
    {
        parts.push(format!("break {end:#x}"));
    }
    // Nothing is known of it before the first look.
    let known: Vec<u64> = processes.iter().filter_map(|live| live.resident_bytes).collect();
    if !known.is_empty() {
        let sum = known.into_iter().fold(0, u64::saturating_add);
        parts.push(format!("RSS {}", resident(sum)));
    }
    parts.push(format!(
        "{} growths (+{} -{})",
        count(sum(|live| live.growths)),
        pages(sum(|live| live.growth_bytes)),
        pages(sum(|live| live.returned_bytes))
    ));
    parts.push(format!("{} lost", count(sum(|live| live.lost))));
    parts.extend(cost(processes));
    parts.join("   ")
}

/// How many calls there are, as far as they are counted.
fn calls(processes: &[Live], rate: f64) -> String {
    let rate = format!("{} calls/s", count(rate as u64));
    let fraction = processes.iter().map(|live| live.calls_fraction).fold(1.0_f64, f64::min);
    let watched = processes
        .iter()
        .map(|live| live.syscalls_fraction)
        .fold(1.0_f64, f64::min);
    let depth = processes.iter().filter_map(|live| live.depth).min();
    match depth {
        _ if watched < 1.0 => format!("system calls watched in {} of the time", percent(watched)),
        Some(Depth::Nothing | Depth::Syscalls) if fraction <= 0.0 => "system calls only".to_owned(),
        Some(Depth::SlowPath) if fraction <= 0.0 => "slow path only".to_owned(),
        Some(Depth::Nothing | Depth::Syscalls | Depth::SlowPath) => {
            format!("calls counted in {} of the time", percent(fraction))
        }
        _ if fraction < 1.0 => format!("{rate}, counted in {} of the time", percent(fraction)),
        _ => rate,
    }
}

/// What the trace takes of the CPU time of all of them.
fn cost(processes: &[Live]) -> Option<String> {
    let costs: Vec<Cost> = processes.iter().filter_map(|live| live.cost).collect();
    let hits = costs.iter().map(|cost| cost.hits).fold(0, u64::saturating_add);
    let trace: u64 = costs.iter().map(|cost| cost.trace_ns).fold(0, u64::saturating_add);
    let cpu: u64 = costs.iter().map(|cost| cost.cpu_ns).fold(0, u64::saturating_add);
    (cpu > 0).then(|| {
        format!(
            "cost {} of its CPU time ({}, {})",
            percent(trace as f64 / cpu as f64),
            plural(hits, "hit"),
            short(trace)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_and_several() {
        let live = Live {
            time_ns: 0,
            elapsed_ns: 2_000_000_000,
            calls: 3000,
            calls_per_second: Some(1500.4),
            live_blocks: 7,
            break_end: Some(0x1000),
            resident_bytes: Some(2_100_000),
            growths: 6,
            growth_bytes: 792 << 10,
            returned_bytes: 0,
            lost: 0,
            depth: None,
            calls_fraction: 1.0,
            syscalls_fraction: 1.0,
            cost: None,
        };
        assert_eq!(
            line(&[live]),
            "2.000 s   1 500 calls/s   break 0x1000   RSS 2.1 MB   6 growths (+792 KiB -0 KiB)   0 lost"
        );
        assert_eq!(
            line(&[live, live]),
            "2.000 s   2 processes   3 000 calls/s   RSS 4.2 MB   12 growths (+1 584 KiB -0 KiB)   0 lost"
        );
        assert_eq!(line(&[]), "0.000 s   0 calls/s   0 growths (+0 KiB -0 KiB)   0 lost");
    }
}
