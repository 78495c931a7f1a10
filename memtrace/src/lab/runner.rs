//! Experiments one after the other, each ending in a verdict whatever happens.

use std::time::Instant;

use super::bench::Bench;
use super::experiment::{Experiment, Needs};
use super::figure::Measured;
use super::interrupt::{self, Interrupted};
use super::machine::Machine;
use super::verdict::{Verdict, judge};

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
    let (measured, verdict) = match (experiment.measure)(bench) {
        Ok(measured) => {
            let verdict = judge(experiment.checks, &measured);
            (measured, verdict)
        }
        Err(error) if error.is::<Interrupted>() || interrupt::asked() => return None,
        Err(error) => (Measured::default(), Verdict::cannot_tell(format!("{error:#}"))),
    };
    Some(Done {
        experiment,
        verdict,
        measured,
        seconds: began.elapsed().as_secs_f64(),
    })
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
        files: most(|needs| needs.files) * (file_size + (32 << 20)),
    }
}
