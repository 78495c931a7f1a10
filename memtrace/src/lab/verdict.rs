//! From the figures to a verdict, purely: holds, does not hold here because ..., cannot tell because ...

use serde::Serialize;

use super::experiment::{Check, Expect};
use super::figure::{Figure, Measured};
use super::unit::Unit;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verdict {
    Holds,
    DoesNotHold { because: Vec<String> },
    CannotTell { because: Vec<String> },
}

impl Verdict {
    pub fn word(&self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold { .. } => "does not hold here",
            Self::CannotTell { .. } => "cannot tell",
        }
    }

    pub fn because(&self) -> &[String] {
        match self {
            Self::Holds => &[],
            Self::DoesNotHold { because } | Self::CannotTell { because } => because,
        }
    }

    pub fn cannot_tell(because: impl Into<String>) -> Self {
        Self::CannotTell {
            because: vec![because.into()],
        }
    }
}

/// One check with what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Met,
    NotMet,
    /// The rounds lie on both sides of the bound.
    Noisy,
    NotMeasured,
    /// Nothing was asked of it.
    Shown,
}

/// A figure against its condition. A timing decides only when its quartiles are on one side of the bound.
pub fn outcome(check: &Check, figure: Option<&Figure>) -> Outcome {
    let Some(figure) = figure else {
        return Outcome::NotMeasured;
    };
    let Some(met) = check.expect.met_by(figure.value) else {
        return Outcome::Shown;
    };
    let agreed = match figure.spread {
        Some(spread) => [spread.low, spread.high]
            .iter()
            .all(|&end| check.expect.met_by(end) == Some(met)),
        None => true,
    };
    match (agreed, met) {
        (false, _) => Outcome::Noisy,
        (true, true) => Outcome::Met,
        (true, false) => Outcome::NotMet,
    }
}

/// A contradiction outweighs what is missing: one figure that is not as claimed is enough to say so.
pub fn judge(checks: &[Check], measured: &Measured) -> Verdict {
    let mut differs = Vec::new();
    let mut open = Vec::new();
    for check in checks {
        let figure = measured.figure(check.figure);
        match (outcome(check, figure), figure) {
            (Outcome::NotMet, Some(figure)) if others_may_have_done_it(check, figure, measured) => open.push(format!(
                "{}, expected {}; but other processes moved the same figure by up to {} while the experiment idled; \
                 run it again on a quiet machine",
                introduced(figure),
                wanted(check.expect, figure.unit),
                figure.unit.show(measured.disturbance(check.figure))
            )),
            (Outcome::NotMet, Some(figure)) => differs.push(difference(check, figure, measured)),
            (Outcome::Noisy, Some(figure)) => open.push(format!(
                "{}: the rounds lie on both sides of the bound, {}; the machine is noisy, run it again",
                check.says,
                figure.show()
            )),
            (Outcome::NotMeasured, _) if check.essential => open.push(missing(check, measured)),
            _ => {}
        }
    }
    if !differs.is_empty() {
        Verdict::DoesNotHold { because: differs }
    } else if !open.is_empty() {
        Verdict::CannotTell { because: open }
    } else {
        Verdict::Holds
    }
}

/// Whether the figure could be as claimed, had others not moved it.
fn others_may_have_done_it(check: &Check, figure: &Figure, measured: &Measured) -> bool {
    let by = measured.disturbance(check.figure);
    by > 0.0 && check.expect.within_reach(figure.value, by)
}

fn introduced(figure: &Figure) -> String {
    format!("{}: {}", figure.label, figure.show())
}

fn difference(check: &Check, figure: &Figure, measured: &Measured) -> String {
    let reasons: Vec<_> = measured
        .reasons
        .iter()
        .filter(|reason| reason.key == check.figure)
        .map(|reason| reason.text.as_str())
        .collect();
    let seen = format!("{}, expected {}", introduced(figure), wanted(check.expect, figure.unit));
    if reasons.is_empty() {
        format!("{seen}; the figures do not show why")
    } else {
        format!("{} ({seen})", reasons.join("; "))
    }
}

fn missing(check: &Check, measured: &Measured) -> String {
    match measured.missing.iter().find(|missing| missing.key == check.figure) {
        Some(missing) => format!("{}: {}", check.says, missing.why),
        None => format!("{}: not measured", check.says),
    }
}

/// A condition in words: "at most 7", "0.9 x to 1.1 x".
pub fn wanted(expect: Expect, unit: Unit) -> String {
    match expect {
        Expect::Exactly(value) => unit.show(value),
        Expect::AtLeast(value) => format!("at least {}", unit.show(value)),
        Expect::AtMost(value) => format!("at most {}", unit.show(value)),
        Expect::Between(least, most) => format!("{} to {}", unit.show(least), unit.show(most)),
        Expect::Shown => "any".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: Check = Check {
        figure: "steps",
        says: "few steps",
        claimed: Some(7.0),
        expect: Expect::AtMost(10.0),
        essential: true,
    };

    fn measured(figures: Vec<Figure>) -> Measured {
        Measured {
            figures,
            ..Measured::default()
        }
    }

    #[test]
    fn a_figure_inside_its_bounds_holds() {
        let verdict = judge(
            &[CHECK],
            &measured(vec![Figure::counted("steps", "steps", 7.0, Unit::Count)]),
        );
        assert_eq!(verdict, Verdict::Holds);
    }

    #[test]
    fn a_figure_outside_carries_the_reason_that_was_found() {
        let mut seen = measured(vec![Figure::counted("steps", "steps of the break", 11.0, Unit::Count)]);
        seen.because("steps", "top_pad is 0");
        seen.because("other", "never shown");
        let Verdict::DoesNotHold { because } = judge(&[CHECK], &seen) else {
            panic!("11 steps are more than 10");
        };
        assert_eq!(because, ["top_pad is 0 (steps of the break: 11, expected at most 10)"]);
    }

    #[test]
    fn what_is_missing_counts_only_where_it_is_essential() {
        let mut nothing = Measured::default();
        nothing.miss("steps", "no root");
        assert_eq!(judge(&[CHECK], &nothing), Verdict::cannot_tell("few steps: no root"));
        assert_eq!(
            judge(
                &[Check {
                    essential: false,
                    ..CHECK
                }],
                &nothing
            ),
            Verdict::Holds
        );
    }

    #[test]
    fn rounds_on_both_sides_of_the_bound_decide_nothing() {
        let figure = Figure::timed("steps", "steps", &[6.0, 8.0, 9.0, 12.0, 14.0], Unit::Nanoseconds).unwrap();
        assert_eq!(outcome(&CHECK, Some(&figure)), Outcome::Noisy);
        assert!(matches!(
            judge(&[CHECK], &measured(vec![figure])),
            Verdict::CannotTell { .. }
        ));
    }

    #[test]
    fn what_others_may_have_done_decides_nothing() {
        let mut seen = measured(vec![Figure::counted("steps", "steps", 13.0, Unit::Count)]);
        seen.disturbed("steps", 2.0);
        seen.disturbed("other", 9.0);
        assert!(matches!(judge(&[CHECK], &seen), Verdict::DoesNotHold { .. }));
        seen.disturbed("steps", 3.0);
        let Verdict::CannotTell { because } = judge(&[CHECK], &seen) else {
            panic!("13 may be 10 that others moved by 3");
        };
        let [because] = because.as_slice() else {
            panic!("{because:?}")
        };
        assert!(
            because.starts_with("steps: 13, expected at most 10; but other processes"),
            "{because}"
        );
    }

    #[test]
    fn a_contradiction_outweighs_what_is_missing() {
        let absent = Check {
            figure: "absent",
            ..CHECK
        };
        let seen = measured(vec![Figure::counted("steps", "steps", 99.0, Unit::Count)]);
        assert!(matches!(judge(&[absent, CHECK], &seen), Verdict::DoesNotHold { .. }));
    }
}
