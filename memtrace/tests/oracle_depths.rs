//! What a lesser depth says of a program is what the full depth says of it, but for what it does not know and says so.

use std::ffi::OsString;

use memtrace_test_support::glibc::{self, Release};
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::tracer::{self, number};
use memtrace_test_support::{binary, cc, skip};
use serde_json::Value;

/// Traces a program that does the same each time.
fn trace(depth: &str, release: Option<&Release>, words: &[OsString], scratch: &Scratch) -> Value {
    let runner = release.map_or(Vec::new(), |release| release.runner(None));
    let report = tracer::spawning_at(depth, scratch, runner.iter().chain(words)).run();
    assert_eq!(number(&report, "/coverage/lost_events"), 0);
    assert_eq!(report["coverage"]["oddities"], serde_json::json!({}), "depth {depth}");
    report
}

/// Kind, size, entry point, request and prediction of each growth, in order.
fn growths(report: &Value) -> Vec<String> {
    let steps = report["growth"]["steps"]
        .as_array()
        .expect("the report lists its steps");
    let shown = |step: &Value| {
        format!(
            "{} of {} bytes (predicted {}) by {}({}), {}",
            step["kind"],
            step["bytes"],
            step["predicted_bytes"],
            step["cause"]["entry"],
            step["cause"]["request"],
            step["cause"]["attribution"]
        )
    };
    steps.iter().map(shown).collect()
}

/// Kind and size, and whether the entry point is the one `by_calls` names. Some jump to the code of others, so that the
/// stack does not tell them apart: the aligned ones to one function, realloc(NULL, n) and small alignments to malloc.
fn entries(report: &Value, by_calls: &Value) -> Vec<String> {
    let steps = |report: &Value| report["growth"]["steps"].as_array().cloned().expect("a list of steps");
    let family = |step: &Value| match step["cause"]["entry"].as_str().expect("a name") {
        "aligned_alloc" | "valloc" | "pvalloc" => "memalign".to_owned(),
        entry => entry.to_owned(),
    };
    let shown = |(step, by_calls): (&Value, &Value)| {
        let (entry, other) = (family(step), family(by_calls));
        let jumps = entry == "malloc" && matches!(other.as_str(), "realloc" | "memalign");
        let entry = if jumps { other } else { entry };
        format!("{} of {} bytes by {entry}", step["kind"], step["bytes"])
    };
    steps(report).iter().zip(&steps(by_calls)).map(shown).collect()
}

fn compare(of: &str, release: Option<&Release>, words: &[OsString], scratch: &Scratch) {
    let calls = trace("calls", release, words, scratch);
    let slow = trace("slow-path", release, words, scratch);
    let syscalls = trace("syscalls", release, words, scratch);
    assert!(!growths(&calls).is_empty(), "{of}: a program that grows");
    assert_eq!(slow["coverage"]["depth"], "slow_path", "{of}: {:#}", slow["coverage"]);
    assert_eq!(syscalls["coverage"]["depth"], "syscalls");
    assert_eq!(
        growths(&slow),
        growths(&calls),
        "{of}: growths and their causes at the slow path"
    );
    assert_eq!(
        growths(&syscalls).len(),
        growths(&calls).len(),
        "{of}: growths by system calls alone"
    );
    assert_eq!(
        entries(&syscalls, &calls),
        entries(&calls, &calls),
        "{of}: by system calls alone"
    );
    for report in [&slow, &syscalls] {
        assert_eq!(
            report["syscalls"], calls["syscalls"],
            "{of}: whose the system calls are"
        );
        for key in [
            "frees_munmap",
            "frees_trim",
            "by_free_munmap_bytes",
            "by_free_trim_bytes",
            "by_realloc_bytes",
        ] {
            assert_eq!(report["returned"][key], calls["returned"][key], "{of}: {key}");
        }
        // What is not known is not there.
        for key in ["calls", "allocated", "freed", "live_blocks", "realloc"] {
            assert_eq!(report[key], Value::Null, "{of}: {key}");
        }
        let not_seen = report["coverage"]["not_seen"].to_string();
        assert!(not_seen.contains("not counted at this depth"), "{of}: {not_seen}");
    }
}

fn words(random: &std::path::Path, seed: &str) -> Vec<OsString> {
    let arguments = [seed, "4000", "0", "1"].map(OsString::from);
    [random.into()].into_iter().chain(arguments).collect()
}

#[test]
fn a_lesser_depth_tells_the_same_of_growths_and_returns() {
    if !skip::root("a_lesser_depth_tells_the_same_of_growths_and_returns") {
        return;
    }
    let scratch = Scratch::new();
    let random = cc::compile("random", cc::Kind::Program, None, &scratch);
    for seed in ["1", "2"] {
        compare(&format!("seed {seed}"), None, &words(&random, seed), &scratch);
    }
    for program in ["brk-steps", "large-block", "threshold"] {
        let words = [binary("memtrace-lab").into_os_string(), program.into()];
        compare(program, None, &words, &scratch);
    }
}

#[test]
fn under_every_glibc_too() {
    const NAME: &str = "under_every_glibc_too";
    if !skip::root(NAME) {
        return;
    }
    let Some(releases) = glibc::all_or_skip(NAME) else {
        return;
    };
    let oldest = &releases[0];
    let scratch = Scratch::new();
    let random = cc::compile("random", cc::Kind::Program, Some(oldest), &scratch);
    for release in &releases {
        compare(&release.shown(), Some(release), &words(&random, "1"), &scratch);
    }
}
