//! Lines of a running program, with an end to the wait for them.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// No program that is waited for here says nothing for as long as this unless something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Lines {
    lines: Receiver<String>,
    /// The last ones, for an error.
    seen: Vec<String>,
}

impl Lines {
    pub fn of(stream: impl Read + Send + 'static) -> Self {
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut bytes = Vec::new();
            // An error reads as the end of the stream, which is what whoever waits is told.
            while stream.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
                let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
                bytes.clear();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            lines,
            seen: Vec::new(),
        }
    }

    /// Of nothing.
    pub fn none() -> Self {
        Self::of(std::io::empty())
    }

    /// Waits for a line with `words` in it.
    pub fn wait_for(&mut self, words: &str) -> Result<String> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(words) => return Ok(line),
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{words:?} did not come in {} s; {}", PATIENCE.as_secs(), self.last())
                }
                Err(RecvTimeoutError::Disconnected) => bail!("it ended before it said {words:?}; {}", self.last()),
            }
        }
    }

    /// All that is still to come; for a program that has ended.
    pub fn rest(mut self) -> Vec<String> {
        let until = Instant::now() + PATIENCE;
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.seen.push(line);
        }
        self.seen
    }

    fn last(&self) -> String {
        match self.seen.iter().rev().find(|line| !line.trim().is_empty()) {
            Some(line) => format!("its last words: {line}"),
            None => "it said nothing".to_owned(),
        }
    }
}
