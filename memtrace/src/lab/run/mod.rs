//! One run of a program, looked at from outside at each of its phases.
//!
//! ```text
//! Command --start--> process --phase--> Look, callback --newline--> process --> ... --end--> Run
//! ```

pub mod books;
mod child;
mod line;
mod look;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

pub use books::Books;
pub use line::Line;
pub use look::{Look, MachineMemory};

use super::interrupt;
use child::{Child, Received};

/// What to run, and how closely to look.
#[derive(Clone, Debug)]
pub struct Command {
    pub program: OsString,
    pub arguments: Vec<OsString>,
    /// Variables of the lab's own environment that it is not to get.
    pub without: Vec<OsString>,
    pub environment: Vec<(&'static str, OsString)>,
    /// Where it runs, and makes its files.
    pub directory: PathBuf,
    /// Look also between phases, this often.
    pub sample_every: Option<Duration>,
}

impl Command {
    pub fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    pub fn arg(mut self, name: &str, value: u64) -> Self {
        self.arguments.push(name.into());
        self.arguments.push(value.to_string().into());
        self
    }

    pub fn sampled(mut self, every: Duration) -> Self {
        self.sample_every = Some(every);
        self
    }
}

/// All that was seen of a run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    pub stops: Vec<Stop>,
    pub rows: Vec<Line>,
    /// Looks between phases.
    pub samples: Vec<Look>,
}

/// A phase of the program.
#[derive(Clone, Debug)]
pub struct Stop {
    pub line: Line,
    /// At the process that is at this phase.
    pub look: Look,
    /// At the process that was started: the same one, or its parent.
    pub parent: Look,
}

impl Run {
    /// The first phase of this name.
    pub fn stop(&self, name: &str) -> Result<&Stop> {
        self.stops
            .iter()
            .find(|stop| stop.line.name == name)
            .with_context(|| format!("the program had no phase {name}"))
    }

    pub fn stops<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Stop> {
        self.stops.iter().filter(move |stop| stop.line.name == name)
    }

    pub fn rows<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Line> {
        self.rows.iter().filter(move |row| row.kind == kind)
    }
}

/// Runs a program to its end, looking at each phase.
pub fn run(command: &Command) -> Result<Run> {
    run_with(command, |_, _| Ok(()))
}

/// The same; `at_phase` gets each phase and the process id while the program waits.
pub fn run_with(command: &Command, mut at_phase: impl FnMut(&Stop, u32) -> Result<()>) -> Result<Run> {
    let started = Instant::now();
    let mut child = Child::start(command)?;
    let mut run = Run::default();
    loop {
        match child.receive(command.sample_every) {
            Ok(Received::Line(line)) if line.is_phase() => {
                // The program itself, or the child of its own that stands at this phase.
                let pid = line.number("pid").map_or(child.id(), |pid| pid as u32);
                let stop = Stop {
                    look: Look::take(pid, started)?,
                    parent: Look::take(child.id(), started)?,
                    line,
                };
                at_phase(&stop, pid)?;
                run.stops.push(stop);
                child.go_on()?;
            }
            Ok(Received::Line(row)) => run.rows.push(row),
            // A process that has just ended cannot be looked at; its end comes with the next line.
            Ok(Received::Nothing) => run.samples.extend(Look::take(child.id(), started).ok()),
            Ok(Received::End) => break,
            Err(error) => {
                interrupt::check()?;
                return Err(error);
            }
        }
    }
    child.end()?;
    Ok(run)
}
