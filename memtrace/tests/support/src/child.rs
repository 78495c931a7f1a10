//! A child process with a handshake by lines: it prints one when it has come to a point, and goes on when it reads one.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// The line "WORD name=count name=count ..." of what a program has said.
pub fn counts(said: &str, word: &str) -> BTreeMap<String, u64> {
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix(word)?.strip_prefix(' '))
        .unwrap_or_else(|| panic!("no line begins with {word}: {said}"));
    line.split_whitespace()
        .map(|word| word.split_once('=').expect("name=count"))
        .map(|(name, count)| (name.to_owned(), count.parse().expect("a number")))
        .collect()
}

pub struct Talker {
    child: Child,
    answers: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Talker {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("starting {command:?}: {error}"));
        let answers = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("a piped stdout"));
        Self { child, answers, lines }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its next line; panics when it has ended.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        let length = self.lines.read_line(&mut line).expect("reading a child's line");
        assert!(length > 0, "the child ended where a line of it was expected");
        line.trim_end().to_owned()
    }

    /// Reads lines until one begins with `start`.
    pub fn line_with(&mut self, start: &str) -> String {
        loop {
            let line = self.line();
            if line.starts_with(start) {
                return line;
            }
        }
    }

    pub fn go_on(&mut self) {
        let answers = self.answers.as_mut().expect("the child's input is open");
        answers.write_all(b"\n").expect("answering a child");
    }

    /// Closes its input, reads what it still says, and waits for its end.
    pub fn finish(mut self) -> (String, ExitStatus) {
        drop(self.answers.take());
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.lines, &mut rest).expect("reading a child's last lines");
        (rest, self.child.wait().expect("waiting for a child"))
    }
}

impl Drop for Talker {
    /// A test that panics leaves no child behind.
    fn drop(&mut self) {
        drop(self.answers.take());
        if matches!(self.child.try_wait(), Ok(None)) {
            // Both can only fail when it has ended meanwhile.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
