//! A process beside the tests that spares each of their traces the kernel's wait at its end: see
//! memtrace/examples/keep_tracepoints.rs.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::process::{Root, say};
use crate::workspace;

/// Ends with its standard input, so also when xtask is killed.
pub struct Keeper(Option<Child>);

impl Keeper {
    /// Without root there are no traces, and where it cannot start, the tests take longer and say why themselves.
    pub fn start() -> Self {
        let program = workspace::target().join("debug/examples/keep_tracepoints");
        let root = Root::find_out().ok().and_then(|root| root.command(program));
        let spawned = root.map(|mut command| command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn());
        let mut child = match spawned {
            None => return Self(None),
            Some(Ok(child)) => child,
            Some(Err(error)) => {
                say(&format!(
                    "the tracepoints are not kept, and the tests take longer: {error}"
                ));
                return Self(None);
            }
        };
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            // Nothing read means that it has ended, and has said why.
            let _ended = BufReader::new(output).read_line(&mut line);
        }
        Self(Some(child))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            drop(child.stdin.take());
            // It may have ended long ago.
            let _ended = child.wait();
        }
    }
}
