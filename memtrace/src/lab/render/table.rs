//! The figures of an experiment as rows: what was claimed beside what was measured, the same for text and HTML.

use super::super::experiment::Check;
use super::super::figure::Figure;
use super::super::runner::Done;
use super::super::verdict::{Outcome, Verdict, outcome, wanted};

pub struct Row {
    pub label: String,
    pub claimed: String,
    pub measured: String,
    /// In a word or two, for what decides; empty for what does not.
    pub remark: String,
    pub outcome: Outcome,
}

/// Figures that decide come first, in the order of the claim; then the others.
pub fn rows(done: &Done) -> Vec<Row> {
    let checks = done.experiment.checks;
    let decided = checks.iter().map(|check| of_check(check, done));
    let further = done
        .measured
        .figures
        .iter()
        .filter(|figure| checks.iter().all(|check| check.figure != figure.key));
    decided.chain(further.map(of_figure)).collect()
}

fn of_check(check: &Check, done: &Done) -> Row {
    let figure = done.measured.figure(check.figure);
    let outcome = outcome(check, figure);
    let Some(figure) = figure else {
        let why = done.measured.missing.iter().find(|missing| missing.key == check.figure);
        return Row {
            label: check.says.to_string(),
            claimed: String::new(),
            measured: "not measured".to_string(),
            remark: why.map_or_else(String::new, |missing| missing.why.clone()),
            outcome,
        };
    };
    let remark = match outcome {
        Outcome::Met => "as expected".to_string(),
        Outcome::NotMet => format!("expected {}", wanted(check.expect, figure.unit)),
        Outcome::Noisy => format!("too noisy; expected {}", wanted(check.expect, figure.unit)),
        Outcome::Shown | Outcome::NotMeasured => String::new(),
    };
    let claimed = check.claimed.map_or_else(String::new, |value| figure.unit.show(value));
    Row {
        claimed,
        remark,
        outcome,
        ..of_figure(figure)
    }
}

fn of_figure(figure: &Figure) -> Row {
    Row {
        label: figure.label.clone(),
        claimed: String::new(),
        measured: figure.show(),
        remark: if figure.is_noisy() {
            "noisy".to_string()
        } else {
            String::new()
        },
        outcome: Outcome::Shown,
    }
}

/// The most telling figure of an experiment, for a single line: the first that led to the verdict.
pub fn headline(done: &Done) -> String {
    let decides = |row: &Row| match done.verdict {
        Verdict::Holds => row.outcome == Outcome::Met,
        Verdict::DoesNotHold { .. } => row.outcome == Outcome::NotMet,
        Verdict::CannotTell { .. } => matches!(row.outcome, Outcome::NotMeasured | Outcome::Noisy),
    };
    match rows(done).into_iter().find(decides) {
        Some(row) if row.outcome == Outcome::NotMeasured => format!("{}: {}", row.label, row.remark),
        Some(row) if row.claimed.is_empty() || row.claimed == row.measured => {
            format!("{}: {}", row.label, short(&row.measured))
        }
        Some(row) => format!("{}: {} (claimed {})", row.label, short(&row.measured), row.claimed),
        // An experiment that failed as a whole.
        None => done.verdict.because().join("; "),
    }
}

/// Without the spread.
fn short(measured: &str) -> &str {
    measured.split(" (").next().unwrap_or(measured)
}
