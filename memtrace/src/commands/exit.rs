//! How memtrace ends: its exit codes, and what it says of an error. The only place that knows either.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::report::plain::clean;
use crate::sentence;
use crate::target::{Life, SpawnError, TargetError};

/// Exit codes. The exit status of a command that memtrace started is in the report, it is not memtrace's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// What was asked for was done.
    Success = 0,
    /// Something failed, or the answer is not complete; standard error says what.
    Failure = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// The command to start is there but cannot be executed.
    CannotExecute = 126,
    /// The command to start was not found; as shells have it, like the one above.
    NotFound = 127,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error that comes with advice. The advice stands apart from the chain of what went wrong.
#[derive(Debug)]
pub struct Hinted {
    error: anyhow::Error,
    hint: String,
}

/// Adds advice to an error.
pub fn hint(error: impl Into<anyhow::Error>, hint: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Hinted {
        error: error.into(),
        hint: hint.into(),
    })
}

/// A target's error with its advice apart.
pub fn explained(error: TargetError) -> anyhow::Error {
    match error.hint() {
        Some(advice) => hint(error, advice),
        None => error.into(),
    }
}

/// What failed while memtrace was `doing` something to a process; or, where the process has ended meanwhile, just that:
/// what fails then says nothing but that it is gone.
pub fn unless_ended(life: &Life, doing: &'static str, error: anyhow::Error) -> anyhow::Error {
    life.end(doing).map_or(error, explained)
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Hinted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Turns what a command came to into an exit code, and says on standard error what went wrong.
pub fn conclude(result: anyhow::Result<Exit>) -> Exit {
    match result {
        Ok(exit) => exit,
        // Whoever read our output has seen enough: `memtrace ... | head` is no failure.
        Err(error) if is_broken_pipe(&error) => Exit::Success,
        Err(error) => {
            complain(&error);
            match spawn_error(&error).map(SpawnError::exit_code) {
                Some(126) => Exit::CannotExecute,
                Some(127) => Exit::NotFound,
                _ => Exit::Failure,
            }
        }
    }
}

/// A line for whoever watches, on standard error.
///
/// It goes out in one piece, since the traced program may write to the same terminal; that nobody is there to read it
/// must not end anything.
pub fn say(line: &str) {
    let _nobody = io::stderr().write_all(format!("memtrace: {}\n", clean(line)).as_bytes());
}

/// Says what went wrong where memtrace goes on all the same, or is about to end.
pub fn complain(error: &anyhow::Error) {
    let _nobody = io::stderr().write_all(describe(error).as_bytes());
}

/// Shows help, the version, or what is wrong with a command line.
pub fn without_command(told: &clap::Error) -> Exit {
    // Nothing is to be done about a terminal that is gone.
    let _gone = told.print();
    if told.use_stderr() { Exit::Usage } else { Exit::Success }
}

fn spawn_error(error: &anyhow::Error) -> Option<&SpawnError> {
    let hinted = error.downcast_ref::<Hinted>().map(|hinted| &hinted.error);
    hinted.unwrap_or(error).downcast_ref()
}

/// `memtrace: attaching to process 7: reading its maps: permission denied`, and the hint below.
pub fn describe(error: &anyhow::Error) -> String {
    let mut out = format!("memtrace: {}\n", sentence::of(error));
    if let Some(hinted) = error.downcast_ref::<Hinted>() {
        out += &format!("  hint: {}\n", clean(&hinted.hint));
    }
    out
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_chain_is_one_line_and_the_hint_another() {
        let error = hint(
            anyhow::anyhow!("permission denied").context("reading its maps"),
            "run as root",
        );
        let error = Err::<(), _>(error).context("attaching to process 7").unwrap_err();
        assert_eq!(
            describe(&error),
            "memtrace: attaching to process 7: reading its maps: permission denied\n  hint: run as root\n"
        );
    }

    #[test]
    fn a_reader_that_left_is_no_failure() {
        let error = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe)).context("writing the report");
        assert_eq!(conclude(Err(error)), Exit::Success);
        assert_eq!(conclude(Err(anyhow::anyhow!("else"))), Exit::Failure);
    }
}
