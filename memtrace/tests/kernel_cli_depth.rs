//! The budget, on a program that does nothing but allocate and free: by itself memtrace steps down, asked for a depth it
//! stays, and either way it says what it cost.

mod common;

use std::process::Command;

use common::run::{Ran, run, said};
use common::schema;
use memtrace_test_support::child::Talker;
use memtrace_test_support::kernel::shows_registers;
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::{binary, cc, skip};
use serde_json::Value;

const STORM: &str = include_str!("programs/pairs.c");
const FEW: &str = include_str!("programs/few.c");

struct Storm {
    talker: Talker,
    scratch: Scratch,
}

impl Storm {
    fn start() -> Self {
        let scratch = Scratch::new();
        let program = cc::build("cc", "pairs", STORM, &[], &scratch).unwrap_or_else(|problem| panic!("{problem}"));
        let mut talker = Talker::start(&mut Command::new(program));
        assert_eq!(talker.line(), "ready");
        Self { talker, scratch }
    }

    fn traced(&self, args: &[&str]) -> Ran {
        let pid = self.talker.pid().to_string();
        let ran = run(&[&["--pid", &pid], args].concat());
        said(&ran, 0, &["attached to pairs"]);
        ran
    }

    fn end(self) {
        let (_, status) = self.talker.finish();
        assert!(status.success(), "the program ended with {status}");
    }
}

fn json(ran: &Ran) -> Value {
    schema::check(&ran.stdout);
    serde_json::from_str(&ran.stdout).expect("a document")
}

#[test]
fn a_storm_is_watched_at_a_lesser_depth() {
    if !skip::root("a_storm_is_watched_at_a_lesser_depth") {
        return;
    }
    let storm = Storm::start();
    let record = storm.scratch.file("trace");
    let record = record.to_str().expect("a path in UTF-8");
    let ran = storm.traced(&["--for", "8s", "--output", "json", "--record", record]);
    let report = json(&ran);
    let coverage = &report["coverage"];
    assert_eq!(coverage["depth_automatic"], true);
    let lesser =
        coverage["depths"]["slow_path_ns"].as_u64().unwrap() + coverage["depths"]["syscalls_ns"].as_u64().unwrap();
    assert!(lesser > 0, "{coverage:#}");
    let fraction = coverage["calls_fraction"].as_f64().unwrap();
    assert!(fraction > 0.0 && fraction < 1.0, "{coverage:#}");
    assert!(coverage["windows"].as_u64().unwrap() > 0);
    // Of calls that were not counted nothing is claimed.
    assert_eq!(report["live_blocks"], Value::Null);
    assert_eq!(report["returned"]["frees_nothing"], Value::Null);
    let counted = report["allocated"]["blocks"].as_u64().unwrap();
    let estimated = coverage["estimates"]["allocated_blocks"]["value"].as_f64().unwrap();
    assert!(counted > 0 && estimated > counted as f64, "{coverage:#}");
    assert!(
        coverage["not_seen"].to_string().contains("outside the windows"),
        "{coverage:#}"
    );
    let cost = &report["cost"];
    assert!(cost["hits"].as_u64().unwrap() >= 2 * counted - 2, "{cost:#}");
    assert!(cost["hit_ns"].as_f64().unwrap() > 0.0, "{cost:#}");
    assert!(cost["share"].as_f64().unwrap() > 0.0, "{cost:#}");
    assert_eq!(cost["max_share"], 0.05);
    assert!(cost["syscall_ns"].as_f64().is_some() && cost["syscalls_ns"].as_u64().is_some());
    assert!(cost["pause_ns"].as_u64().is_some() && cost["attach_ns"].as_u64().unwrap() > 0);
    assert_eq!(coverage["oddities"], serde_json::json!({}));
    let again = run(&["replay", record, "--output", "json"]);
    assert!(again.stdout == ran.stdout, "a record of it replays to the same report");
    // Lines are folded.
    let text = run(&["replay", record]).stdout;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["calls counted in ", "of the time; ", "COST", "limit is 5.0 %"] {
        assert!(text.contains(words), "{words:?} is missing: {text}");
    }
    storm.end();
}

#[test]
fn a_depth_that_is_asked_for_stays() {
    if !skip::root("a_depth_that_is_asked_for_stays") {
        return;
    }
    let storm = Storm::start();
    for (asked, key) in [
        ("calls", "calls_ns"),
        ("slow-path", "slow_path_ns"),
        ("syscalls", "syscalls_ns"),
    ] {
        let report = json(&storm.traced(&["--for", "1s", "--depth", asked, "--output", "json"]));
        let coverage = &report["coverage"];
        // Whose a system call is, is not to be told then.
        let key = if asked == "slow-path" && !shows_registers() {
            let limits = coverage["capabilities"]["limits"].to_string();
            assert!(limits.contains("slow path is not watched"), "{limits}");
            "syscalls_ns"
        } else {
            key
        };
        assert_eq!(coverage["depth_automatic"], false);
        for depth in ["calls_ns", "slow_path_ns", "syscalls_ns"] {
            let watched = coverage["depths"][depth].as_u64().unwrap() > 0;
            assert_eq!(watched, depth == key, "{asked}: {coverage:#}");
        }
        assert_eq!(coverage["estimates"], Value::Null);
        let over = report["cost"]["share"].as_f64().unwrap() > report["cost"]["max_share"].as_f64().unwrap();
        assert_eq!(over, asked == "calls", "{asked}: {:#}", report["cost"]);
    }
    storm.end();
}

/// Where nothing tells who moved the break, nobody is named.
#[test]
fn without_a_probe_what_malloc_does_is_not_called_the_programs_own() {
    if !skip::root("without_a_probe_what_malloc_does_is_not_called_the_programs_own") {
        return;
    }
    let lab = binary("memtrace-lab");
    let lab = lab.to_str().unwrap();
    let report = json(&run(&[
        "--depth",
        "syscalls",
        "--output",
        "json",
        "--",
        lab,
        "brk-steps",
    ]));
    let steps = report["growth"]["steps"].as_array().unwrap();
    let unknown = steps.iter().filter(|step| step["cause"]["entry"] == "unknown").count();
    assert!(steps.len() >= 6, "{:#}", report["growth"]);
    assert_eq!(unknown, if shows_registers() { 0 } else { steps.len() }, "{steps:#?}");
    assert!(
        steps.iter().all(|step| step["cause"]["entry"] != "direct"),
        "{steps:#?}"
    );
}

#[test]
fn what_is_cheap_is_counted_in_full() {
    if !skip::root("what_is_cheap_is_counted_in_full") {
        return;
    }
    let scratch = Scratch::new();
    let program = cc::build("cc", "few", FEW, &[], &scratch).unwrap_or_else(|problem| panic!("{problem}"));
    let program = program.to_str().expect("a path in UTF-8");
    let ran = run(&["--max-overhead", "5%", "--output", "json", "--", program]);
    said(&ran, 0, &["started few"]);
    let report = json(&ran);
    assert_eq!(report["coverage"]["calls_fraction"], 1.0, "{:#}", report["coverage"]);
    assert_eq!(report["coverage"]["depth_automatic"], true);
    assert!(report["live_blocks"].is_u64());
}

/// However busy it is: what is live is known only where every call since the first allocation was counted.
#[test]
fn a_command_is_counted_in_full_if_nothing_is_said() {
    if !skip::root("a_command_is_counted_in_full_if_nothing_is_said") {
        return;
    }
    let lab = binary("memtrace-lab");
    let ran = run(&["--output", "json", "--", lab.to_str().unwrap(), "mixed"]);
    said(&ran, 0, &["started memtrace-lab"]);
    let report = json(&ran);
    assert_eq!(report["coverage"]["calls_fraction"], 1.0, "{:#}", report["coverage"]);
    assert_eq!(report["coverage"]["depth_automatic"], false);
    assert!(report["live_blocks"].is_u64());
}
