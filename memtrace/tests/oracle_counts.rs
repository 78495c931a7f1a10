//! Every call at the allocator's interface is counted once: memtrace and a preloaded counter watch the same process, and
//! agree on each entry point, on blocks, bytes and outcomes.

use std::ffi::OsString;
use std::path::Path;

use memtrace_test_support::child::counts;
use memtrace_test_support::counter::{Counter, Counts};
use memtrace_test_support::glibc::{self, Release};
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::tracer::{self, Differences, number};
use memtrace_test_support::{binary, cc, skip};
use serde_json::Value;

/// Traces `words` with the counter in front of its libc.
fn trace(counter: &Counter, release: Option<&Release>, words: &[OsString], scratch: &Scratch) -> (Value, Counts) {
    let runner = release.map_or(Vec::new(), |release| release.runner(Some(counter.library())));
    let mut traced = tracer::spawning(scratch, runner.iter().chain(words));
    let (name, prefix) = counter.environment();
    traced.command.env(name, prefix);
    if release.is_none() {
        traced.command.env("LD_PRELOAD", counter.library());
    }
    let report = traced.run();
    let pid = number(&report, "/target/pid");
    let counts = counter.counts(u32::try_from(pid).expect("a process id"));
    (report, counts)
}

fn compare(of: &str, report: &Value, counts: &Counts) {
    let mut differences = Differences::default();
    differences.compare_calls(report, &counts.calls);
    differences.compare(report, "/allocated/blocks", counts.new_blocks());
    differences.compare(report, "/allocated/requested_bytes", counts.bytes.values().sum());
    differences.compare(report, "/freed/blocks", counts.freed_blocks());
    differences.compare(report, "/freed/chunk_bytes", counts.freed_chunk_bytes);
    differences.compare(report, "/freed/null", counts.free_null);
    differences.compare(report, "/freed/mapped_blocks", counts.freed_mapped);
    differences.compare(report, "/realloc/null", counts.realloc_null);
    differences.compare(report, "/realloc/zero", counts.realloc_zero);
    // Outcomes are known only where a return probe could be used.
    if number(report, "/realloc/returns") > 0 {
        differences.compare(report, "/realloc/in_place", counts.realloc_in_place);
        differences.compare(report, "/realloc/moved", counts.realloc_moved);
        differences.compare(report, "/realloc/failed", counts.failed["realloc"]);
        differences.compare(report, "/allocated/failed", counts.failed.values().sum());
    }
    differences.compare(report, "/coverage/lost_threads", 0);
    differences.compare(report, "/coverage/unreadable", 0);
    differences.check(of, report);
}

/// Seeds, rounds, threads and generations of the random program.
const RUNS: [[&str; 4]; 4] = [
    ["1", "4000", "0", "1"],
    ["2", "4000", "0", "1"],
    ["3", "1500", "4", "3"],
    ["4", "300", "16", "4"],
];

fn random_words(random: &Path, run: [&str; 4]) -> Vec<OsString> {
    [random.into()].into_iter().chain(run.map(OsString::from)).collect()
}

#[test]
fn random_programs_are_counted_exactly() {
    if !skip::root("random_programs_are_counted_exactly") {
        return;
    }
    let scratch = Scratch::new();
    let counter = Counter::build(None, &scratch);
    let random = cc::compile("random", cc::Kind::Program, None, &scratch);
    for run in RUNS {
        let (report, counts) = trace(&counter, None, &random_words(&random, run), &scratch);
        compare(&format!("the machine's glibc, run {run:?}"), &report, &counts);
    }
}

#[test]
fn random_programs_are_counted_exactly_under_every_glibc() {
    const NAME: &str = "random_programs_are_counted_exactly_under_every_glibc";
    if !skip::root(NAME) {
        return;
    }
    let Some(releases) = glibc::all_or_skip(NAME) else {
        return;
    };
    let oldest = &releases[0];
    let scratch = Scratch::new();
    let counter = Counter::build(Some(oldest), &scratch);
    let random = cc::compile("random", cc::Kind::Program, Some(oldest), &scratch);
    for release in &releases {
        for run in RUNS {
            let (report, counts) = trace(&counter, Some(release), &random_words(&random, run), &scratch);
            compare(&format!("{}, run {run:?}", release.shown()), &report, &counts);
            assert_eq!(
                report["target"]["libc"]["version"],
                format!("{}.{}", release.version.0, release.version.1)
            );
        }
    }
}

#[test]
fn the_lab_is_counted_exactly() {
    if !skip::root("the_lab_is_counted_exactly") {
        return;
    }
    let scratch = Scratch::new();
    let counter = Counter::build(None, &scratch);
    for words in [&["brk-steps"][..], &["large-block"], &["threshold"], &["mixed"]] {
        let words: Vec<OsString> = [binary("memtrace-lab").into()]
            .into_iter()
            .chain(words.iter().map(OsString::from))
            .collect();
        let (report, counts) = trace(&counter, None, &words, &scratch);
        compare(&format!("{words:?}"), &report, &counts);
    }
}

/// Calls that firsts.c begins with, and its threads; the first ones are tried with every release.
const FIRSTS: [&[&str]; 17] = [
    &["realloc"],
    &["memalign8"],
    &["threads", "16"],
    &["malloc"],
    &["calloc"],
    &["reallocarray"],
    &["memalign64"],
    &["aligned_alloc"],
    &["posix_memalign16"],
    &["posix_memalign"],
    &["valloc"],
    &["pvalloc"],
    &["calloc+malloc"],
    &["memalign+malloc"],
    &["trim"],
    &["threads", "4"],
    &["threads", "64"],
];
const FIRSTS_OF_ALL: usize = 3;
/// From 2.34 on there are no hooks that set malloc up.
const WITHOUT_HOOKS: (u32, u32) = (2, 34);

/// Up to 2.33 the very first calls pass their entries twice, also those of several threads that coincide.
#[test]
fn the_very_first_calls_are_counted_once_each() {
    const NAME: &str = "the_very_first_calls_are_counted_once_each";
    if !skip::root(NAME) {
        return;
    }
    let Some(releases) = glibc::all_or_skip(NAME) else {
        return;
    };
    let oldest = &releases[0];
    let scratch = Scratch::new();
    let firsts = cc::compile("firsts", cc::Kind::Program, Some(oldest), &scratch);
    for release in &releases {
        let tried = if release.version < WITHOUT_HOOKS {
            FIRSTS.len()
        } else {
            FIRSTS_OF_ALL
        };
        for arguments in &FIRSTS[..tried] {
            let mut words = release.runner(None);
            words.push(firsts.clone().into());
            words.extend(arguments.iter().map(OsString::from));
            let (report, said) = tracer::spawning(&scratch, &words).run_and_hear();
            let own = counts(&said, "calls");
            // pthread_create allocates a table for each thread.
            let tables = if arguments[0] == "threads" {
                arguments[1].parse().expect("a number of threads")
            } else {
                0
            };
            let mut differences = Differences::default();
            differences.compare(&report, "/calls/malloc", own["malloc"]);
            differences.compare(&report, "/calls/calloc", own["calloc"] + tables);
            differences.compare(&report, "/calls/realloc", own["realloc"]);
            let aligned: u64 = ["memalign", "aligned_alloc", "posix_memalign", "valloc", "pvalloc"]
                .iter()
                .map(|name| number(&report, &format!("/calls/{name}")))
                .sum();
            if aligned != own["aligned"] {
                differences.add(format!(
                    "the memalign family: expected {own:?}, memtrace says {aligned}"
                ));
            }
            if number(&report, "/realloc/returns") > 0 {
                differences.compare(
                    &report,
                    "/realloc/returns",
                    own["realloc"] - number(&report, "/realloc/null"),
                );
            }
            differences.check(&format!("{}, {arguments:?}", release.shown()), &report);
        }
    }
}
