//! Memory system calls: as many as strace sees, and each attributed to an allocator call if and only if it belongs to one.

use std::fs;
use std::path::Path;
use std::process::Command;

use memtrace_test_support::child::{Talker, counts};
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::strace::{self, Calls, SYSCALLS};
use memtrace_test_support::tracer::{self, Attached, Differences};
use memtrace_test_support::{binary, cc, skip};
use serde_json::Value;

/// At each depth every memory system call is seen.
const DEPTHS: [&str; 3] = ["calls", "slow-path", "syscalls"];

fn compare(of: &str, report: &Value, calls: &Calls) {
    let mut differences = Differences::default();
    for name in SYSCALLS {
        let (count, failed) = calls[name];
        differences.compare(report, &format!("/syscalls/{name}/count"), count);
        differences.compare(report, &format!("/syscalls/{name}/failed"), failed);
    }
    differences.check(of, report);
}

/// The one child of a process.
fn child_of(pid: u32) -> u32 {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let list = fs::read_to_string(&path).unwrap_or_else(|error| panic!("reading {path}: {error}"));
    list.trim()
        .parse()
        .unwrap_or_else(|_| panic!("{path} names not one child: {list}"))
}

/// strace and memtrace watch the same process, from the moment it says "ready" to its end.
#[test]
fn threads_make_the_system_calls_that_strace_sees() {
    const NAME: &str = "threads_make_the_system_calls_that_strace_sees";
    if !skip::root(NAME) || !skip::program(NAME, "strace") {
        return;
    }
    let scratch = Scratch::new();
    let random = cc::compile("random", cc::Kind::Program, None, &scratch);
    let log = scratch.file("strace");
    for [seed, rounds, threads, generations] in [["1", "2000", "0", "1"], ["2", "1000", "4", "3"]] {
        let mut child = Talker::start(
            Command::new("strace")
                .args(strace::arguments())
                .arg("-o")
                .arg(&log)
                .arg(&random)
                .args([seed, rounds, threads, generations, "wait"]),
        );
        child.line_with("ready");
        let attached = Attached::to(child_of(child.pid()), &scratch);
        child.go_on();
        child.line_with("done");
        let (_, status) = child.finish();
        assert!(status.success(), "strace ended with {status}");
        let report = attached.finish();
        let log = fs::read_to_string(&log).expect("reading strace's log");
        let after_ready = log.lines().skip_while(|line| !line.contains("\"ready")).skip(1);
        compare(
            &format!("seed {seed}, {threads} threads"),
            &report,
            &strace::count(after_ready),
        );
    }
}

/// Programs that do the same each time are run twice, and seen from their first system call on.
#[test]
fn programs_are_seen_from_their_first_system_call() {
    const NAME: &str = "programs_are_seen_from_their_first_system_call";
    if !skip::root(NAME) || !skip::program(NAME, "strace") {
        return;
    }
    let scratch = Scratch::new();
    let log = scratch.file("strace");
    for program in ["brk-steps", "large-block", "threshold"] {
        let words = [binary("memtrace-lab").into_os_string(), program.into()];
        let status = Command::new("strace")
            .args(strace::arguments())
            .arg("-o")
            .arg(&log)
            .args(&words)
            .stdout(std::process::Stdio::null())
            .status()
            .expect("starting strace");
        assert!(status.success(), "strace ended with {status}");
        let expected = strace::count(fs::read_to_string(&log).expect("reading strace's log").lines());
        for depth in DEPTHS {
            let report = tracer::spawning_at(depth, &scratch, &words).run();
            compare(&format!("{program}, depth {depth}"), &report, &expected);
        }
    }
}

/// The program knows which of its system calls belong to allocator calls, and has its own all around them.
#[test]
fn a_system_call_is_attributed_if_and_only_if_an_allocator_call_made_it() {
    const NAME: &str = "a_system_call_is_attributed_if_and_only_if_an_allocator_call_made_it";
    if !skip::root(NAME) {
        return;
    }
    let scratch = Scratch::new();
    let direct = cc::compile("direct", cc::Kind::Program, None, &scratch);
    for depth in DEPTHS {
        check_attribution(depth, &direct, &scratch);
    }
}

fn check_attribution(depth: &str, direct: &Path, scratch: &Scratch) {
    let mut child = Talker::start(Command::new(direct).arg("200"));
    child.line_with("ready");
    let attached = Attached::to_at(depth, child.pid(), scratch);
    child.go_on();
    let inside = counts(&child.line_with("in "), "in");
    let own = counts(&child.line_with("own "), "own");
    child.finish();
    let report = attached.finish();
    let mut differences = Differences::default();
    for name in SYSCALLS {
        differences.compare(&report, &format!("/syscalls/{name}/attributed"), inside[name]);
        differences.compare(&report, &format!("/syscalls/{name}/direct"), own[name]);
        differences.compare(&report, &format!("/syscalls/{name}/unknown"), 0);
    }
    let of = format!("system calls in and around allocator calls, depth {depth}");
    differences.check(&of, &report);
}

/// Handlers interrupt malloc, and leave it by a jump, or after others have been left so, return to it.
#[test]
fn a_jump_out_of_a_signal_handler_leaves_the_call_that_it_interrupted() {
    const NAME: &str = "a_jump_out_of_a_signal_handler_leaves_the_call_that_it_interrupted";
    if !skip::root(NAME) {
        return;
    }
    let scratch = Scratch::new();
    let jumps = cc::compile("jumps", cc::Kind::Program, None, &scratch);
    let mut child = Talker::start(Command::new(&jumps).arg("20"));
    child.line_with("ready");
    let attached = Attached::to(child.pid(), &scratch);
    child.go_on();
    let [inside, own, handler] = ["in", "own", "handler"].map(|word| counts(&child.line_with(word), word));
    child.finish();
    let report = attached.finish();
    let mut differences = Differences::default();
    for name in ["mmap", "munmap", "mprotect"] {
        differences.compare(&report, &format!("/syscalls/{name}/attributed"), inside[name]);
        differences.compare(&report, &format!("/syscalls/{name}/direct"), own[name]);
        let in_handlers: u64 = report["direct"]
            .as_array()
            .expect("a list")
            .iter()
            .filter(|group| group["kind"] == "signal_handler")
            .filter_map(|group| group["syscalls"][name].as_u64())
            .sum();
        if in_handlers != handler[name] {
            let expected = handler[name];
            differences.add(format!(
                "{name} in handlers: expected {expected}, memtrace says {in_handlers}"
            ));
        }
    }
    differences.check("handlers that jump", &report);
}
