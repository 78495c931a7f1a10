//! memtrace itself.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::binary;
use crate::scratch::Scratch;
use crate::strace::SYSCALLS;

/// What is compared must not depend on how soon a busy machine lets memtrace drain.
const LARGE_BUFFER: &str = "64M";

/// A command that traces a program it starts, for [`run`]: `memtrace ... -- WORDS`
pub fn spawning<S: AsRef<OsStr>>(scratch: &Scratch, words: impl IntoIterator<Item = S>) -> Traced {
    spawning_at("calls", scratch, words)
}

/// The same at another depth.
pub fn spawning_at<S: AsRef<OsStr>>(depth: &str, scratch: &Scratch, words: impl IntoIterator<Item = S>) -> Traced {
    let mut traced = Traced::new(depth, scratch, LARGE_BUFFER);
    traced.command.arg("--").args(words);
    traced
}

/// A memtrace with a buffer of this size, which is to be told what to trace.
pub fn with_buffer(scratch: &Scratch, size: &str) -> Traced {
    Traced::new("calls", scratch, size)
}

/// What the report says of each kind of system call under `key`, added up.
pub fn sum_of_syscalls(report: &Value, key: &str) -> u64 {
    SYSCALLS
        .iter()
        .map(|name| number(report, &format!("/syscalls/{name}/{key}")))
        .sum()
}

/// System calls outside of glibc's malloc, of a kind.
pub fn direct(report: &Value, kind: &str) -> u64 {
    let groups = report["direct"].as_array().expect("a list of groups");
    groups
        .iter()
        .filter(|group| group["kind"] == kind)
        .flat_map(|group| group["syscalls"].as_object().expect("calls by name").values())
        .filter_map(Value::as_u64)
        .sum()
}

/// Every system call that moved memory is an allocation's, or somebody's: less than one in a hundred may be nobody's.
/// Prints the share.
pub fn few_are_unknown(of: &str, report: &Value, differences: &mut Differences) {
    let unknown = sum_of_syscalls(report, "unknown") + direct(report, "unknown");
    let all = sum_of_syscalls(report, "count");
    println!("{of}: {unknown} of {all} system calls are of unknown origin");
    if unknown * 100 >= all.max(1) {
        differences.add(format!("{unknown} of {all} system calls are of unknown origin"));
    }
}

/// A memtrace that is about to start, and where its report goes: not to stdout, which the traced program may use.
pub struct Traced {
    pub command: Command,
    report: PathBuf,
}

impl Traced {
    fn new(depth: &str, scratch: &Scratch, buffer: &str) -> Self {
        let report = scratch.file("report.json");
        let mut command = Command::new(binary("memtrace"));
        command
            .args(["--depth", depth, "--buffer", buffer, "--output", "json", "--report-to"])
            .arg(&report);
        Self { command, report }
    }

    /// Starts it: the process, and where its report will be.
    pub fn start(mut self) -> (Child, Report) {
        let child = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("starting memtrace");
        (child, Report(self.report))
    }

    /// Runs it to its end, and returns the report.
    pub fn run(self) -> Value {
        self.run_and_hear().0
    }

    /// The report, and what the program has said on its standard output.
    pub fn run_and_hear(mut self) -> (Value, String) {
        let output = self.command.stdin(Stdio::null()).output().expect("starting memtrace");
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "memtrace ended with {}: {talk}", output.status);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (read(&self.report, &talk), said)
    }
}

/// Where a report will be once memtrace has ended.
pub struct Report(PathBuf);

impl Report {
    pub fn read(&self) -> Value {
        read(&self.0, "what is to be read above")
    }
}

/// A memtrace that is attached to a running process.
pub struct Attached {
    child: Child,
    talk: BufReader<ChildStderr>,
    report: PathBuf,
}

impl Attached {
    /// Starts `memtrace --pid PID`, and returns when its probes are in place.
    pub fn to(pid: u32, scratch: &Scratch) -> Self {
        Self::to_at("calls", pid, scratch)
    }

    /// The same at another depth.
    pub fn to_at(depth: &str, pid: u32, scratch: &Scratch) -> Self {
        Self::with(depth, scratch, ["--pid", &pid.to_string()])
    }

    /// Starts memtrace with arguments that name processes, and returns when its probes are in place.
    pub fn with<'a>(depth: &str, scratch: &Scratch, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let Traced { mut command, report } = Traced::new(depth, scratch, LARGE_BUFFER);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("starting memtrace");
        let mut talk = BufReader::new(child.stderr.take().expect("a piped stderr"));
        let mut said = String::new();
        while !said
            .lines()
            .last()
            .is_some_and(|line| line.starts_with("memtrace: attached to "))
        {
            let length = talk.read_line(&mut said).expect("reading what memtrace says");
            assert!(length > 0, "memtrace ended before it was attached: {said}");
        }
        Self { child, talk, report }
    }

    /// Waits for the end of the trace (the process ends), and returns the report.
    pub fn finish(mut self) -> Value {
        let mut said = String::new();
        self.talk.read_to_string(&mut said).expect("reading what memtrace says");
        let status = self.child.wait().expect("waiting for memtrace");
        assert!(status.success(), "memtrace ended with {status}: {said}");
        read(&self.report, &said)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Both can only fail when it has ended meanwhile.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn read(report: &Path, talk: &str) -> Value {
    let text = fs::read_to_string(report).unwrap_or_else(|error| {
        panic!(
            "reading the report {}: {error}; memtrace said: {talk}",
            report.display()
        )
    });
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("the report is no JSON ({error}): {text}"))
}

/// A number of the report by its keys: `number(&report, "/freed/blocks")`.
pub fn number(report: &Value, pointer: &str) -> u64 {
    report
        .pointer(pointer)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("the report has no number at {pointer}: {report:#}"))
}

/// Differences between a report and what is expected of it, all of them, so that a failure shows the whole picture.
#[derive(Default)]
pub struct Differences(Vec<String>);

impl Differences {
    pub fn compare(&mut self, report: &Value, pointer: &str, expected: u64) {
        let found = number(report, pointer);
        if found != expected {
            self.0
                .push(format!("{pointer}: expected {expected}, memtrace says {found}"));
        }
    }

    /// Calls by entry point. Up to glibc 2.37 aligned_alloc is memalign under another name, at the same address, so
    /// that only their sum can be told.
    pub fn compare_calls(&mut self, report: &Value, expected: &BTreeMap<String, u64>) {
        let version = report["target"]["libc"]["version"].as_str().unwrap_or_default();
        let minor: u32 = version
            .strip_prefix("2.")
            .and_then(|minor| minor.parse().ok())
            .unwrap_or_else(|| panic!("the report names no glibc version: {}", report["target"]));
        for (entry, calls) in expected {
            match entry.as_str() {
                "memalign" if minor < 38 => {
                    let both = number(report, "/calls/memalign") + number(report, "/calls/aligned_alloc");
                    let expected = calls + expected["aligned_alloc"];
                    if both != expected {
                        self.add(format!(
                            "memalign and aligned_alloc: expected {expected}, memtrace says {both}"
                        ));
                    }
                }
                "aligned_alloc" if minor < 38 => {}
                _ => self.compare(report, &format!("/calls/{entry}"), *calls),
            }
        }
    }

    pub fn add(&mut self, difference: String) {
        self.0.push(difference);
    }

    /// Fails when there are any.
    pub fn check(self, of: &str, report: &Value) {
        assert!(
            self.0.is_empty(),
            "{of}:\n  {}\ncoverage: {:#}",
            self.0.join("\n  "),
            report["coverage"]
        );
    }
}
