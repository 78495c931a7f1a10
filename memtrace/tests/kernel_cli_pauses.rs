//! The budget, on a program that does little but system calls, each of which is made longer by watching a few: memtrace pauses,
//! watches them in windows, says so, and claims nothing across a pause. When the storm is over it watches everything again.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use common::run::{finish, memtrace, run};
use common::schema;
use memtrace_test_support::child::Talker;
use memtrace_test_support::kernel::shows_registers;
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::{cc, skip};
use serde_json::Value;

/// Makes system calls and grows its heap, by malloc and by sbrk of its own, until it is told to stop; then it is at rest until
/// its input ends. At last it tells each step of the break, all of which it makes itself.
const STORM: &str = include_str!("programs/getppid_storm.c");

/// How long it storms while it is traced.
const STORMING: Duration = Duration::from_secs(10);

fn start() -> (Talker, Scratch) {
    let scratch = Scratch::new();
    let program = cc::build("cc", "getppid_storm", STORM, &[], &scratch).unwrap_or_else(|problem| panic!("{problem}"));
    let mut talker = Talker::start(&mut Command::new(program));
    assert_eq!(talker.line(), "ready");
    (talker, scratch)
}

fn json(document: &str) -> Value {
    schema::check(document);
    serde_json::from_str(document).expect("a document")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number: {value}"))
}

#[test]
fn a_storm_of_system_calls_is_watched_in_windows_and_nothing_wrong_is_said_of_it() {
    if !skip::root("a_storm_of_system_calls_is_watched_in_windows_and_nothing_wrong_is_said_of_it") {
        return;
    }
    let (mut talker, scratch) = start();
    let record = scratch.file("trace");
    let record = record.to_str().expect("a path in UTF-8");
    let pid = talker.pid().to_string();
    let mut command = memtrace(&["--pid", &pid, "--for", "30s", "--output", "json", "--record", record]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("starting memtrace");
    let mut said = BufReader::new(child.stderr.take().expect("its standard error"));
    let mut line = String::new();
    said.read_line(&mut line).expect("reading what it says");
    assert!(line.contains("attached to getppid_storm"), "{line}");
    thread::sleep(STORMING);
    talker.go_on();
    assert_eq!(talker.line(), "rests");
    let ran = finish(child);
    assert_eq!(ran.code, Some(0));
    let report = json(&ran.stdout);
    let coverage = &report["coverage"];
    let paused = number(&coverage["depths"]["nothing_ns"]) > 0;
    if paused {
        assert!(number(&coverage["depths"]["syscalls_ns"]) > 0, "{coverage:#}");
        let watched = coverage["syscalls_fraction"].as_f64().unwrap();
        assert!(watched > 0.0 && watched < 1.0, "{coverage:#}");
        assert!(
            coverage["not_seen"]
                .to_string()
                .contains("memory system calls were watched in"),
            "{coverage:#}"
        );
        assert_eq!(report["live_blocks"], Value::Null);
        for finding in report["findings"].as_array().unwrap() {
            assert_ne!(finding["confidence"], "proven", "{finding:#}");
        }
        let text = run(&["replay", record]).stdout;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in [
            "system calls watched in ",
            "while system calls were watched",
            ", nothing for ",
        ] {
            assert!(text.contains(words), "{words:?} is missing: {text}");
        }
    } else {
        // Where another tracer is at the system calls already, nothing is left to add to them.
        let cost = &report["cost"];
        let most = cost["max_share"].as_f64().unwrap() * number(&cost["cpu_ns"]) as f64;
        assert!(number(&cost["syscalls_ns"]) as f64 <= most, "{cost:#}");
        eprintln!("there was no pause, since another tracer makes every system call longer already");
    }
    // The storm has been over for long.
    assert_eq!(coverage["depth"], "calls", "{coverage:#}");
    // What was on its way when a pause began or ended is not lost, and makes no sense of its own.
    assert_eq!(number(&coverage["lost_events"]), 0, "{coverage:#}");
    assert_eq!(coverage["oddities"], serde_json::json!({}));
    let again = run(&["replay", record, "--output", "json"]);
    assert!(again.stdout == ran.stdout, "a record of it replays to the same report");
    let (told, status) = talker.finish();
    assert!(status.success(), "the program ended with {status}");
    let steps: Vec<(u64, u64)> = told
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(from, to)| (from.parse().unwrap(), to.parse().unwrap()))
        .collect();
    let growth = &report["growth"];
    let seen = growth["steps"].as_array().unwrap();
    assert!(!seen.is_empty(), "{growth:#}");
    for step in seen.iter().filter(|step| step["kind"] == "brk") {
        let (from, to) = (number(&step["from"]), number(&step["to"]));
        // Without registers what made a call, and so from where it moved the break, is likely only: malloc and sbrk take turns.
        if !shows_registers() && step["cause"]["attribution"] == "likely" {
            assert!(steps.iter().any(|whole| whole.0 < to && to <= whole.1), "{step:#}");
            continue;
        }
        // malloc takes two where somebody else has moved the break.
        let whole = steps.iter().find(|whole| whole.0 <= from && to <= whole.1);
        let whole = whole.unwrap_or_else(|| panic!("no step of the program's: {step:#}"));
        let own = whole.1 - whole.0 == 4096;
        assert_eq!(step["cause"]["entry"] == "direct", own, "{step:#}");
    }
    assert!(number(&growth["brk_steps_total"]) <= 2 * steps.len() as u64);
    assert!(number(&report["syscalls"]["brk"]["count"]) <= 2 * steps.len() as u64);
}
