//! Experiments one after the other, each ending in a verdict whatever happens.

use std::time::Instant;

use super::bench::Bench;
use super::experiment::{Experiment, Group, Needs};
use super::figure::Measured;
use super::inherited;
use super::interrupt::{self, Interrupted};
use super::machine::Machine;
use super::verdict::{Outcome, Verdict, judge, outcome};

use crate::sentence;

/// An experiment that has been made.
pub struct Done {
    pub experiment: &'static Experiment,
    pub verdict: Verdict,
    pub measured: Measured,
    pub seconds: f64,
}

/// All that a call of `memtrace lab` has found out.
pub struct Session {
    pub machine: Machine,
    pub done: Vec<Done>,
    /// Experiments that were asked for and not made, since the user ended the run.
    pub left_out: Vec<&'static Experiment>,
    pub seconds: f64,
}

/// Makes the experiments in order; `starting` and `finished` are told of each. Ends early on Ctrl-C.
pub fn run_all(
    bench: &Bench,
    machine: Machine,
    chosen: &[&'static Experiment],
    mut starting: impl FnMut(usize, &Experiment),
    mut finished: impl FnMut(&Done) -> anyhow::Result<()>,
) -> anyhow::Result<Session> {
    let began = Instant::now();
    let mut session = Session {
        machine,
        done: Vec::new(),
        left_out: Vec::new(),
        seconds: 0.0,
    };
    for (index, &experiment) in chosen.iter().enumerate() {
        if interrupt::asked() {
            session.left_out.extend(&chosen[index..]);
            break;
        }
        starting(index, experiment);
        match make(bench, experiment) {
            Some(done) => {
                finished(&done)?;
                session.done.push(done);
            }
            None => {
                session.left_out.extend(&chosen[index..]);
                break;
            }
        }
    }
    session.seconds = began.elapsed().as_secs_f64();
    Ok(session)
}

/// None when the user ended it.
fn make(bench: &Bench, experiment: &'static Experiment) -> Option<Done> {
    let began = Instant::now();
    let (measured, verdict) = match measure(bench, experiment) {
        Ok(measured) => {
            let verdict = judge(experiment.checks, &measured);
            (measured, verdict)
        }
        Err(error) if error.is::<Interrupted>() || interrupt::asked() => return None,
        Err(error) => (Measured::default(), Verdict::cannot_tell(sentence::of(&error))),
    };
    Some(Done {
        experiment,
        verdict,
        measured,
        seconds: began.elapsed().as_secs_f64(),
    })
}

fn measure(bench: &Bench, experiment: &Experiment) -> anyhow::Result<Measured> {
    match experiment.group {
        Group::Heap | Group::Cost => bench.served_by_glibc()?,
        Group::PageCache => bench.on_a_disk()?,
        Group::Others => {}
    }
    let mut measured = (experiment.measure)(bench)?;
    if matches!(judge(experiment.checks, &measured), Verdict::DoesNotHold { .. })
        && let Some(control) = bench.control()
    {
        let without = (experiment.measure)(control)?;
        blame(
            experiment,
            &inherited::shown(bench.inherited()),
            &mut measured,
            &without,
        );
    }
    Ok(measured)
}

/// What is as claimed without the environment's settings differs because of them.
fn blame(experiment: &Experiment, settings: &str, measured: &mut Measured, without: &Measured) {
    for check in experiment.checks {
        let differs = outcome(check, measured.figure(check.figure)) == Outcome::NotMet;
        if let Some(figure) = without.figure(check.figure)
            && differs
            && outcome(check, Some(figure)) == Outcome::Met
        {
            let text = format!("the environment sets {settings}: without it {}", figure.show());
            measured.because(check.figure, text);
        }
    }
}

/// What the most demanding of these experiments takes, with files of this size: they run one after the other, and clean
/// up behind them.
pub fn needs(chosen: &[&'static Experiment], file_size: u64) -> Needs {
    let most = |value: fn(&Needs) -> u64| {
        chosen
            .iter()
            .map(|experiment| value(&experiment.needs))
            .max()
            .unwrap_or(0)
    };
    // The neighbour of the large file is small.
    Needs {
        memory: most(|needs| needs.memory),
        files: most(|needs| needs.files).saturating_mul(file_size.saturating_add(32 << 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::experiments::ALL;
    use super::super::unit::Unit;
    use super::*;

    #[test]
    fn the_largest_file_is_more_than_there_is() {
        assert_eq!(needs(&ALL.iter().collect::<Vec<_>>(), u64::MAX).files, u64::MAX);
    }

    #[test]
    fn the_environment_is_blamed_for_what_is_as_claimed_without_it_and_for_nothing_else() {
        let steps = ALL.iter().find(|experiment| experiment.name == "brk-steps").unwrap();
        let of = |count: f64, step: f64| {
            let mut measured = Measured::default();
            measured.count("steps", "steps", count, Unit::Count);
            measured.count("step", "the usual step", step, Unit::Bytes);
            measured
        };
        let mut here = of(196.0, 4096.0);
        blame(steps, "MALLOC_TOP_PAD_=0", &mut here, &of(6.0, 8192.0));
        let [reason] = here.reasons.as_slice() else {
            panic!("{:?}", here.reasons)
        };
        assert_eq!(reason.key, "steps");
        assert_eq!(reason.text, "the environment sets MALLOC_TOP_PAD_=0: without it 6");
    }
}
