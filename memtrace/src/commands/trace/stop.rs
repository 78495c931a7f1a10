//! Ctrl-C and termination: the first one ends the trace with its report, the second one ends memtrace at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end a trace.
#[derive(Debug)]
pub struct Stop {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Stop {
    /// From here on these signals no longer end memtrace by themselves.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Returns at the first of them, and gives all of them their usual effect back.
    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
        for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: setting a default disposition installs no code of ours.
            let before = unsafe { libc::signal(number, libc::SIG_DFL) };
            debug_assert_ne!(before, libc::SIG_ERR, "the numbers are those of real signals");
        }
    }
}
