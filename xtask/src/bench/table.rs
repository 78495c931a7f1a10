//! What was measured, as text and for the README.

use std::fmt::Write as _;

use super::arm::{self, Arm};
use super::figures::{Beside, Figure};
use super::machine::Machine;
use super::race::{Failure, Results};
use super::stats::Spread;
use super::workload::Workload;

/// All that is shown.
pub struct Shown<'a> {
    pub machine: &'a Machine,
    pub workloads: &'a [&'a Workload],
    pub arms: &'a [&'static Arm],
    pub results: &'a Results,
    pub beside: &'a Beside,
    pub figures: &'a [Figure],
    pub missing: &'a [String],
}

impl Shown<'_> {
    pub fn text(&self) -> String {
        let mut text = format!("memtrace bench: {}\n", self.machine.in_words());
        _ = writeln!(text, "\nSLOW-DOWN FACTORS  (wall time; median, quartiles)\n");
        aligned(&mut text, &self.rows(Self::factor_with_spread));
        _ = writeln!(text, "\nNANOSECONDS FOR A UNIT OF WORK  (wall time; median)\n");
        aligned(&mut text, &self.rows(Self::each));
        _ = writeln!(text, "\nWORKLOADS AND ARMS\n");
        for workload in self.workloads {
            _ = writeln!(
                text,
                "  {:14} {} (by the {})",
                workload.name, workload.about, workload.unit
            );
        }
        for arm in self.arms {
            _ = writeln!(text, "  {:14} {}", arm.name, arm.about);
        }
        if !self.beside.system_calls.is_empty() {
            _ = writeln!(text, "\nSYSTEM CALLS OF EACH WORKLOAD\n");
            for calls in &self.beside.system_calls {
                _ = writeln!(text, "  {:14} {}", calls.workload, calls.with_class());
            }
        }
        _ = writeln!(text, "\nFIGURES\n");
        for figure in self.figures {
            _ = writeln!(
                text,
                "  {:12} {}: {}",
                figure.verdict.words(),
                figure.what,
                figure.wanted
            );
            _ = writeln!(text, "  {:12}   {}", "", figure.measured);
            if let Some(because) = &figure.because {
                _ = writeln!(text, "  {:12}   {because}", "");
            }
        }
        for missing in self.missing {
            _ = writeln!(text, "missing: {missing}");
        }
        for line in failed(&self.results.failures) {
            _ = writeln!(text, "{line}");
        }
        text
    }

    /// The table of factors, and what its arms are.
    pub fn factors_markdown(&self) -> String {
        let mut text = format!("Measured on {}.\n\n", self.machine.in_words());
        _ = writeln!(
            text,
            "How many times slower each workload runs (wall time, median), and nanoseconds for each malloc/free pair:\n"
        );
        let mut rows = self.rows(Self::factor);
        if let (Some(pair), Some((head, lines))) = (
            self.workloads.iter().find(|workload| workload.name == "pair"),
            rows.split_first_mut(),
        ) {
            head.push("ns a pair".to_owned());
            let names = std::iter::once("none").chain(self.arms.iter().map(|arm| arm.name));
            for (name, line) in names.zip(lines) {
                line.push(self.each(pair, name));
            }
        }
        for (i, row) in rows.iter().enumerate() {
            _ = writeln!(text, "| {} |", row.join(" | "));
            if i == 0 {
                _ = writeln!(text, "|---{}|", "|---:".repeat(row.len() - 1));
            }
        }
        text.push('\n');
        for arm in self.arms {
            _ = writeln!(text, "- `{}`: {}", arm.name, arm.about);
        }
        text
    }

    /// Each figure with its verdict, and what could not be raced.
    pub fn figures_markdown(&self) -> String {
        let mut text = format!("Measured on {}.\n\n", self.machine.in_words());
        _ = writeln!(text, "| figure | wanted | measured | |\n|---|---|---|---|");
        for figure in self.figures {
            _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                figure.what,
                figure.wanted,
                figure.measured,
                figure.judged()
            );
        }
        for (i, calls) in self.beside.system_calls.iter().enumerate() {
            let begin = if i == 0 {
                "\nSystem calls of each workload:\n\n"
            } else {
                ""
            };
            _ = writeln!(text, "{begin}- {}: {}", calls.workload, calls.with_class());
        }
        let dead = failed(&self.results.failures);
        for (i, line) in self.missing.iter().cloned().chain(dead).enumerate() {
            _ = writeln!(text, "{}- {line}", if i == 0 { "\nNot raced:\n\n" } else { "" });
        }
        text
    }

    /// A row for each arm, a column for each workload.
    fn rows(&self, cell: fn(&Self, &Workload, &str) -> String) -> Vec<Vec<String>> {
        let mut rows = vec![
            std::iter::once(String::new())
                .chain(self.workloads.iter().map(|workload| workload.name.to_owned()))
                .collect(),
        ];
        for arm in std::iter::once("none").chain(self.arms.iter().map(|arm| arm.name)) {
            let cells = self.workloads.iter().map(|workload| cell(self, workload, arm));
            rows.push(std::iter::once(arm.to_owned()).chain(cells).collect());
        }
        rows
    }

    fn spread(&self, workload: &Workload, arm: &str) -> Option<Spread> {
        Spread::of(self.results.of(workload.name, arm).map(|sample| sample.factor()))
    }

    fn factor(&self, workload: &Workload, arm: &str) -> String {
        if arm == "none" {
            return "1".to_owned();
        }
        if arm == arm::AUTO {
            let budget = self
                .beside
                .budget
                .iter()
                .find(|budget| budget.workload == workload.name);
            return budget.map_or_else(dash, |budget| times(budget.factor));
        }
        self.spread(workload, arm)
            .map_or_else(dash, |spread| times(spread.median))
    }

    fn factor_with_spread(&self, workload: &Workload, arm: &str) -> String {
        match self.spread(workload, arm) {
            Some(spread) => format!(
                "{} ({}-{})",
                times(spread.median),
                times(spread.low),
                times(spread.high)
            ),
            None => self.factor(workload, arm),
        }
    }

    fn each(&self, workload: &Workload, arm: &str) -> String {
        let samples = &self.results.samples;
        let spread = if arm == "none" {
            let base = samples.iter().filter(|sample| sample.workload == workload.name);
            Spread::of(base.map(|sample| sample.base_ns))
        } else {
            Spread::of(self.results.of(workload.name, arm).map(|sample| sample.ns))
        };
        spread.map_or_else(dash, |spread| nanoseconds(spread.median))
    }
}

/// What could not be raced: a line for each arm and reason, with all the workloads that it holds for.
fn failed(failures: &[Failure]) -> Vec<String> {
    let mut lines: Vec<(&Failure, Vec<&str>)> = Vec::new();
    for failure in failures {
        let same = |(first, _): &&mut (&Failure, _)| first.arm == failure.arm && first.why == failure.why;
        match lines.iter_mut().find(same) {
            // It may have failed in the rounds and in the alternations.
            Some((_, workloads)) if workloads.contains(&failure.workload) => {}
            Some((_, workloads)) => workloads.push(failure.workload),
            None => lines.push((failure, vec![failure.workload])),
        }
    }
    let line = |(first, workloads): (&Failure, Vec<&str>)| {
        format!("{} on {} failed: {}", first.arm, workloads.join(", "), first.why)
    };
    lines.into_iter().map(line).collect()
}

fn dash() -> String {
    "-".to_owned()
}

fn times(factor: f64) -> String {
    match factor {
        factor if factor < 10.0 => format!("{factor:.2}"),
        factor if factor < 100.0 => format!("{factor:.1}"),
        factor => format!("{factor:.0}"),
    }
}

fn nanoseconds(ns: f64) -> String {
    if ns < 100.0 {
        format!("{ns:.1}")
    } else {
        format!("{ns:.0}")
    }
}

fn aligned(text: &mut String, rows: &[Vec<String>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::from("  ");
        for (i, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            if i == 0 {
                _ = write!(line, "{cell:width$}  ");
            } else {
                _ = write!(line, "{cell:>width$}  ");
            }
        }
        _ = writeln!(text, "{}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once() {
        let failures = [
            ("pair", "memleak", "no headers"),
            ("pair", "bare", "no glibc"),
            ("mix", "memleak", "no headers"),
            ("mix", "memleak", "no headers"),
            ("redis", "memleak", "killed"),
        ];
        let failures = failures.map(|(workload, arm, why)| Failure {
            workload,
            arm,
            why: why.to_owned(),
        });
        assert_eq!(
            failed(&failures),
            [
                "memleak on pair, mix failed: no headers",
                "bare on pair failed: no glibc",
                "memleak on redis failed: killed"
            ]
        );
    }
}
