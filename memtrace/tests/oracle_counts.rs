//! Every call at the allocator's interface is counted once: memtrace and a preloaded counter watch the same process, and
//! agree on each entry point, on blocks, bytes and outcomes.

use std::ffi::OsString;
use std::path::Path;

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
    let releases = glibc::releases();
    let Some(oldest) = glibc::oldest(&releases) else {
        return skip::skip(NAME, "no other glibc is unpacked (cargo xtask glibcs)");
    };
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
