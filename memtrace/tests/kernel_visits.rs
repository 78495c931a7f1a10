//! memtrace comes to a target that checks its own data, and goes in every way that it can: the target is not harmed, and
//! no program or link of memtrace's outlives it. `cargo xtask soak` does the same for minutes and at random.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::{loaded_links, loaded_programs};
use common::run::memtrace;
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::{binary, cc, skip};

/// Longer than the kernel ever takes to free what nobody holds any more.
const PATIENCE: Duration = Duration::from_secs(60);

/// The target, with a thread for its children's sake.
struct Checking(Child);

impl Checking {
    fn start() -> Self {
        let mut child = Command::new(binary("memtrace-lab"))
            .args(["checking", "--threads", "3"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert!(line.starts_with("ready "), "{line}");
        child.stdout = Some(stdout.into_inner());
        Self(child)
    }

    /// Has it verify all that it holds, and end.
    fn end(mut self) {
        drop(self.0.stdin.take());
        let (mut said, mut errors) = (String::new(), String::new());
        self.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}: {errors}");
        assert!(said.starts_with("intact blocks="), "{said}");
    }
}

impl Checking {
    /// How it has come to its end, if it has.
    fn end_so_far(&mut self) -> String {
        let Some(status) = self.0.try_wait().unwrap() else {
            return "the target is running".to_owned();
        };
        let mut errors = String::new();
        if let Some(stderr) = &mut self.0.stderr {
            stderr.read_to_string(&mut errors).unwrap();
        }
        format!("the target has ended, {status}: {errors}")
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// memtrace, attached.
struct Visit {
    child: Child,
    errors: BufReader<std::process::ChildStderr>,
}

impl Visit {
    fn to(target: &mut Checking, words: &[&str]) -> Self {
        let mut child = memtrace(&["--pid", &target.0.id().to_string(), "--output", "json"])
            .args(words)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        while !seen.contains("attached to") {
            let read = errors.read_line(&mut seen).unwrap();
            assert!(
                read > 0,
                "it ended before it was attached: {seen}\n{words:?}, {}",
                target.end_so_far()
            );
        }
        Self { child, errors }
    }

    /// Ids of the programs and links that it holds, as the kernel says of its descriptors.
    fn held(&self) -> (BTreeSet<u32>, BTreeSet<u32>) {
        let (mut programs, mut links) = (BTreeSet::new(), BTreeSet::new());
        for file in fs::read_dir(format!("/proc/{}/fdinfo", self.child.id())).unwrap() {
            // What memtrace opens for a moment may be gone by now.
            let Ok(text) = fs::read_to_string(file.unwrap().path()) else {
                continue;
            };
            let id = |name: &str| -> Option<u32> {
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                Some(line.trim().parse().unwrap())
            };
            programs.extend(id("prog_id:"));
            links.extend(id("link_id:"));
        }
        assert!(!programs.is_empty(), "memtrace holds BPF programs");
        (programs, links)
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(status.success());
    }

    fn wait(mut self) -> std::process::ExitStatus {
        let mut rest = String::new();
        self.errors.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// Waits until the kernel has none of these any more. Those that go while they are listed read as errors.
fn wait_until_gone((programs, links): &(BTreeSet<u32>, BTreeSet<u32>)) {
    let until = Instant::now() + PATIENCE;
    loop {
        let programs: Vec<u32> = loaded_programs()
            .filter_map(|program| Some(program.ok()?.id()))
            .filter(|id| programs.contains(id))
            .collect();
        let links: Vec<u32> = loaded_links()
            .filter_map(|link| Some(link.ok()?.id()))
            .filter(|id| links.contains(id))
            .collect();
        if programs.is_empty() && links.is_empty() {
            return;
        }
        assert!(
            Instant::now() < until,
            "left behind: programs {programs:?}, links {links:?}"
        );
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_target_that_checks_its_data_is_left_intact_however_memtrace_goes() {
    if !skip::root("a_target_that_checks_its_data_is_left_intact_however_memtrace_goes") {
        return;
    }
    let mut target = Checking::start();
    for (words, signal) in [
        (&[][..], Some("INT")),
        (&["--follow"], Some("KILL")),
        (&["--for", "300ms"], None),
        (&["--depth", "slow-path"], Some("KILL")),
        (&["--depth", "syscalls"], Some("KILL")),
        (&["--follow", "--for", "300ms"], None),
        (&["--follow"], Some("TERM")),
        // As by a crash: of SIGSEGV sent from outside Rust's handler of it makes nothing.
        (&["--follow"], Some("ABRT")),
        (&["--depth", "calls"], Some("HUP")),
    ] {
        let visit = Visit::to(&mut target, words);
        let held = visit.held();
        if let Some(name) = signal {
            visit.signal(name);
        }
        let status = visit.wait();
        if matches!(signal, None | Some("INT" | "HUP")) {
            assert!(status.success(), "{words:?}: {status}");
        }
        wait_until_gone(&held);
    }
    target.end();
}

/// Allocates, resizes, grows, maps and trims at each byte that it reads, and may call nothing but what that takes: the kernel
/// kills it at any other system call.
const SHUT_IN: &str = include_str!("programs/shut_in.c");

#[test]
fn a_process_that_may_call_next_to_nothing_lives_at_every_depth() {
    if !skip::root("a_process_that_may_call_next_to_nothing_lives_at_every_depth") {
        return;
    }
    let scratch = Scratch::new();
    let program = cc::build("cc", "shut_in", SHUT_IN, &[], &scratch).unwrap_or_else(|problem| panic!("{problem}"));
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut byte = [0];
    output.read_exact(&mut byte).unwrap();
    let mut target = Checking(child);
    for words in [
        &["--depth", "syscalls"][..],
        &["--depth", "slow-path"],
        &["--depth", "calls"],
        &["--depth", "calls", "--follow"],
        &[],
    ] {
        let visit = Visit::to(&mut target, words);
        for _ in 0..3 {
            input.write_all(b"x").unwrap();
            let answer = output.read_exact(&mut byte);
            assert!(
                answer.is_ok() && byte == *b"x",
                "killed, or left, under {words:?}: {answer:?}"
            );
        }
        visit.signal("INT");
        assert!(visit.wait().success(), "{words:?}");
    }
    drop(input);
    assert_eq!(target.0.wait().unwrap().code(), Some(0));
}
