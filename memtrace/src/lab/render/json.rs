//! For programs: one document, versioned, described by docs/lab.schema.json.

use serde::Serialize;

use super::super::Experiment;
use super::super::experiment::{Expect, Group};
use super::super::figure::Figure;
use super::super::machine::Machine;
use super::super::picture::Picture;
use super::super::runner::{Done, Session};
use super::super::unit::Unit;
use super::super::verdict::{Outcome, Verdict, outcome};

pub const LAB_VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    lab_version: u32,
    machine: &'a Machine,
    seconds: f64,
    /// The run was ended before these were made.
    left_out: Vec<&'static str>,
    experiments: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    number: u32,
    name: &'static str,
    group: Group,
    title: &'static str,
    claim: &'static str,
    why: &'static str,
    commands: &'static [&'static str],
    root_adds: Option<&'static str>,
    verdict: &'static str,
    because: &'a [String],
    checks: Vec<CheckEntry>,
    figures: Vec<FigureEntry<'a>>,
    notes: &'a [String],
    pictures: &'a [Picture],
    seconds: f64,
}

#[derive(Serialize)]
struct CheckEntry {
    figure: &'static str,
    says: &'static str,
    claimed: Option<f64>,
    least: Option<f64>,
    most: Option<f64>,
    essential: bool,
    outcome: Outcome,
    /// Why there is no figure.
    not_measured: Option<String>,
}

#[derive(Serialize)]
struct FigureEntry<'a> {
    key: &'static str,
    label: &'a str,
    value: f64,
    unit: Unit,
    low: Option<f64>,
    high: Option<f64>,
    rounds: Option<usize>,
    noisy: bool,
}

pub fn render(session: &Session) -> serde_json::Result<String> {
    let document = Document {
        lab_version: LAB_VERSION,
        machine: &session.machine,
        seconds: session.seconds,
        left_out: session.left_out.iter().map(|experiment| experiment.name).collect(),
        experiments: session.done.iter().map(entry).collect(),
    };
    serde_json::to_string_pretty(&document).map(|text| text + "\n")
}

fn entry(done: &Done) -> Entry<'_> {
    let Done {
        experiment,
        verdict,
        measured,
        seconds,
    } = done;
    let Experiment {
        number,
        name,
        group,
        title,
        claim,
        why,
        commands,
        checks,
        needs: _,
        root_adds,
        measure: _,
    } = experiment;
    let checks = checks.iter().map(|check| {
        let (least, most) = bounds(check.expect);
        let why = measured.missing.iter().find(|missing| missing.key == check.figure);
        CheckEntry {
            figure: check.figure,
            says: check.says,
            claimed: check.claimed,
            least,
            most,
            essential: check.essential,
            outcome: outcome(check, measured.figure(check.figure)),
            not_measured: why.map(|missing| missing.why.clone()),
        }
    });
    Entry {
        number: *number,
        name,
        group: *group,
        title,
        claim,
        why,
        commands,
        root_adds: *root_adds,
        verdict: match verdict {
            Verdict::Holds => "holds",
            Verdict::DoesNotHold { .. } => "does_not_hold",
            Verdict::CannotTell { .. } => "cannot_tell",
        },
        because: verdict.because(),
        checks: checks.collect(),
        figures: measured.figures.iter().map(figure).collect(),
        notes: &measured.notes,
        pictures: &measured.pictures,
        seconds: *seconds,
    }
}

fn figure(figure: &Figure) -> FigureEntry<'_> {
    let Figure {
        key,
        label,
        value,
        unit,
        spread,
    } = figure;
    FigureEntry {
        key,
        label,
        value: *value,
        unit: *unit,
        low: spread.map(|spread| spread.low),
        high: spread.map(|spread| spread.high),
        rounds: spread.map(|spread| spread.rounds),
        noisy: figure.is_noisy(),
    }
}

fn bounds(expect: Expect) -> (Option<f64>, Option<f64>) {
    match expect {
        Expect::Exactly(value) => (Some(value), Some(value)),
        Expect::AtLeast(least) => (Some(least), None),
        Expect::AtMost(most) => (None, Some(most)),
        Expect::Between(least, most) => (Some(least), Some(most)),
        Expect::Shown => (None, None),
    }
}
