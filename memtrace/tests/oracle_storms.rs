//! Where there is much at once, or something cannot be had: counts stay exact, and what is lost is said.

use std::process::Command;

use memtrace_test_support::child::{Talker, counts};
use memtrace_test_support::glibc;
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::tracer::{self, Attached, Differences, number};
use memtrace_test_support::{cc, skip};
use serde_json::Value;

/// Calls of the program's own threads, which pthread_create adds a calloc to for each.
#[test]
fn a_storm_of_sixteen_threads_is_counted_exactly_with_a_small_buffer() {
    const NAME: &str = "a_storm_of_sixteen_threads_is_counted_exactly_with_a_small_buffer";
    const THREADS: u64 = 16;
    if !skip::root(NAME) {
        return;
    }
    let releases = glibc::releases();
    let oldest = glibc::oldest(&releases);
    let scratch = Scratch::new();
    let storm = cc::compile("storm", cc::Kind::Program, oldest, &scratch);
    // The machine's own, then those at hand.
    let runners = [Vec::new()]
        .into_iter()
        .chain(releases.iter().filter(|_| oldest.is_some()).map(|r| r.runner(None)));
    for mut words in runners {
        words.push(storm.clone().into());
        words.extend([THREADS.to_string().into(), "20000".into()]);
        let mut traced = tracer::with_buffer(&scratch, "1M");
        traced.command.arg("--").args(&words);
        let (report, said) = traced.run_and_hear();
        let own = counts(&said, "calls");
        let mut differences = Differences::default();
        differences.compare(&report, "/calls/malloc", own["malloc"]);
        differences.compare(&report, "/calls/calloc", own["calloc"] + THREADS);
        differences.compare(&report, "/calls/realloc", own["realloc"]);
        differences.compare(&report, "/calls/memalign", own["memalign"]);
        differences.compare(&report, "/freed/mapped_blocks", own["mapped"]);
        differences.compare(&report, "/coverage/lost_threads", 0);
        // A thread's table is freed with its stack, or when that is used again.
        let tables = number(&report, "/freed/blocks").wrapping_sub(own["free"]);
        if tables > THREADS {
            differences.add(format!("freed beside {} blocks: {}", own["free"], tables as i64));
        }
        losses_are_said(&report, &mut differences);
        differences.check(&format!("{words:?}"), &report);
    }
}

/// Either nothing was lost and each system call has its place, or it is said what was, and what rests on it is uncertain.
fn losses_are_said(report: &Value, differences: &mut Differences) {
    let lost = number(report, "/coverage/lost_events");
    let unknown: u64 = tracer::sum_of_syscalls(report, "unknown");
    if (lost == 0) != (unknown == 0) {
        differences.add(format!("{lost} records lost, {unknown} system calls unknown"));
    }
    let said = report["coverage"]["not_seen"]
        .to_string()
        .contains("lost, since the ring");
    if said != (lost > 0) {
        differences.add(format!("{lost} records lost, said: {said}"));
    }
    let findings = report["findings"].as_array().expect("a list of findings");
    let sure = findings
        .iter()
        .filter(|finding| finding["confidence"] == "proven")
        // These rest on counts alone, which are exact.
        .filter(|finding| {
            !matches!(
                finding["kind"].as_str(),
                Some("allocations_failed" | "freed_from_before")
            )
        });
    for finding in sure {
        if lost > 0 {
            differences.add(format!("proven, although records were lost: {finding}"));
        }
    }
}

/// A header that cannot be read costs a size, not a count; a stack that cannot be read makes nobody else's call malloc's.
#[test]
fn memory_that_cannot_be_read_is_counted_and_said() {
    const NAME: &str = "memory_that_cannot_be_read_is_counted_and_said";
    if !skip::root(NAME) {
        return;
    }
    let scratch = Scratch::new();
    let hidden = cc::compile("hidden", cc::Kind::Program, None, &scratch);
    let mut child = Talker::start(Command::new(&hidden).arg("50"));
    child.line_with("ready");
    let attached = Attached::to(child.pid(), &scratch);
    child.go_on();
    let own = counts(&child.line_with("hidden"), "hidden");
    child.finish();
    let report = attached.finish();
    let mut differences = Differences::default();
    differences.compare(&report, "/coverage/unreadable", own["blocks"]);
    differences.compare(&report, "/calls/free", own["blocks"]);
    differences.compare(&report, "/calls/realloc", own["calls"]);
    differences.compare(&report, "/freed/chunk_bytes", 0);
    // One by each of both, and one by each handler.
    let protections = 2 * (own["blocks"] + own["calls"]);
    differences.compare(&report, "/syscalls/mprotect/direct", protections);
    differences.compare(&report, "/syscalls/mprotect/attributed", 0);
    differences.compare(&report, "/syscalls/munmap/attributed", own["blocks"]);
    if tracer::sum_of_syscalls(&report, "unknown") > 0 {
        differences.add("system calls of unknown origin".to_owned());
    }
    let said = report["coverage"]["not_seen"].to_string();
    if !said.contains(&format!("{} freed blocks whose size could not be read", own["blocks"])) {
        differences.add(format!("not said: {said}"));
    }
    differences.check("memory without access", &report);
}

/// glibc.malloc.hugetlb=2 makes segments of four huge pages, aligned so, be there huge pages or not.
#[test]
fn thread_arenas_of_huge_pages_grow_as_the_rule_says() {
    const NAME: &str = "thread_arenas_of_huge_pages_grow_as_the_rule_says";
    const FIRST: (u32, u32) = (2, 35);
    if !skip::root(NAME) {
        return;
    }
    let Some(releases) = glibc::all_or_skip(NAME) else {
        return;
    };
    let oldest = &releases[0];
    let scratch = Scratch::new();
    let arenas = cc::compile("arenas", cc::Kind::Program, Some(oldest), &scratch);
    for release in releases.iter().filter(|release| release.version >= FIRST) {
        let mut words = release.runner(None);
        words.push(arenas.clone().into());
        let mut traced = tracer::spawning(&scratch, &words);
        traced.command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=2");
        let report = traced.run();
        let mut differences = Differences::default();
        let steps = number(&report, "/growth/arena_steps_total");
        differences.compare(&report, "/growth/arena_steps_matching", steps);
        differences.compare(&report, "/coverage/lost_events", 0);
        if steps < 1000 {
            differences.add(format!("only {steps} steps of thread arenas"));
        }
        differences.check(&release.shown(), &report);
    }
}
