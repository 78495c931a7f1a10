//! A recorded trace gives the same report as the live one, byte for byte, and the report keeps its schema.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use common::run::{Ran, run, said};
use common::schema;
use memtrace_test_support::child::Talker;
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::{binary, skip};
use serde_json::Value;

fn lab(words: &[&str]) -> Vec<String> {
    let program = binary("memtrace-lab").to_str().expect("a path in UTF-8").to_owned();
    std::iter::once(program)
        .chain(words.iter().map(|word| (*word).to_owned()))
        .collect()
}

/// Traces a command with a record; gives the JSON as it was printed.
fn traced(record: &Path, words: &[&str]) -> String {
    let mut args: Vec<String> = ["--output", "json", "--follow", "--record"].map(str::to_owned).to_vec();
    args.push(record.to_str().expect("a path in UTF-8").to_owned());
    args.push("--".to_owned());
    args.extend(lab(words));
    let ran = run(&args);
    said(&ran, 0, &["memtrace: started memtrace-lab"]);
    ran.stdout
}

fn replayed(record: &Path, more: &[&str]) -> Ran {
    let mut args = vec!["replay", record.to_str().expect("a path in UTF-8")];
    args.extend(more);
    run(&args)
}

#[test]
fn a_replay_is_the_trace_again() {
    if !skip::root("a_replay_is_the_trace_again") {
        return;
    }
    let scratch = Scratch::new();
    for (name, words) in [
        ("brk-steps", &["brk-steps"][..]),
        ("threshold", &["threshold", "--rounds", "20"]),
        ("mixed", &["mixed"]),
        ("child-job", &["child-job", "--megabytes", "4"]),
    ] {
        let record = scratch.file(name);
        let live = traced(&record, words);
        let again = replayed(&record, &["--output", "json"]);
        said(&again, 0, &[]);
        assert!(
            live == again.stdout,
            "{name}:\n--- live\n{live}\n--- replayed\n{}",
            again.stdout
        );
        schema::check(&live);
        let document: Value = serde_json::from_str(&live).unwrap();
        let report = document.pointer("/processes/0").unwrap_or(&document);
        // What ends by itself has no books any more, and began without any.
        assert_eq!(report["looks"]["begin"], Value::Null, "{name}");
        assert!(report["looks"]["no_end"].is_string(), "{name}: {}", report["looks"]);
    }
}

#[test]
fn a_replay_is_the_trace_again_when_attached() {
    if !skip::root("a_replay_is_the_trace_again_when_attached") {
        return;
    }
    let scratch = Scratch::new();
    let record = scratch.file("attached");
    let mut lab = Talker::start(std::process::Command::new(binary("memtrace-lab")).args(["brk-steps", "--wait"]));
    lab.line_with("phase=base");
    let pid = lab.pid().to_string();
    let args = [
        "--pid",
        &pid,
        "--for",
        "3s",
        "--output",
        "json",
        "--record",
        record.to_str().unwrap(),
    ];
    let child = common::run::memtrace(&args).spawn().unwrap();
    // It traces three seconds; whatever of this falls into them is the same both times.
    for phase in ["phase=peak", "phase=freed", "phase=trimmed"] {
        lab.go_on();
        lab.line_with(phase);
    }
    let live = common::run::finish(child);
    said(&live, 0, &["memtrace: attached to memtrace-lab"]);
    assert_eq!(live.stdout, replayed(&record, &["--output", "json"]).stdout);
    let report: Value = serde_json::from_str(&live.stdout).unwrap();
    assert_eq!(report["coverage"]["ended"], "time_up");
    let live_blocks = |end: &str| report["looks"][end]["look"]["heap"]["live_blocks"].as_u64();
    assert!(live_blocks("begin").is_some(), "{}", report["looks"]);
    assert!(live_blocks("end").is_some(), "{}", report["looks"]);
    assert_eq!(report["looks"]["no_end"], Value::Null);
    let text = replayed(&record, &[]).stdout;
    assert!(text.contains("MALLOC'S BOOKS  at the begin"), "{text}");
    schema::check(&live.stdout);
}

/// Bytes of the heap in a phase, as the lab's program says itself.
fn break_at(phase: &str, talk: &str) -> u64 {
    let line = talk.lines().find(|line| line.contains(&format!("phase={phase} ")));
    let line = line.unwrap_or_else(|| panic!("no phase {phase}: {talk}"));
    let figure = line.split(' ').find_map(|word| word.strip_prefix("brk="));
    figure.expect("it says its break").parse().expect("a number")
}

#[test]
fn a_stream_tells_what_the_report_tells() {
    if !skip::root("a_stream_tells_what_the_report_tells") {
        return;
    }
    let scratch = Scratch::new();
    let record = scratch.file("stream");
    let mut args: Vec<String> = ["--output", "json", "--events", "--record"].map(str::to_owned).to_vec();
    args.push(record.to_str().unwrap().to_owned());
    args.push("--".to_owned());
    args.extend(lab(&["brk-steps"]));
    let ran = run(&args);
    said(&ran, 0, &[]);
    let lines: Vec<Value> = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let Some((last, events)) = lines.split_last() else {
        panic!("no line at all")
    };
    assert_eq!(last["event"], "report");
    let report = &last["report"];
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).collect::<Vec<_>>();
    let steps = report["growth"]["steps"].as_array().unwrap();
    assert_eq!(of("growth").len(), steps.len());
    for (event, step) in of("growth").iter().zip(steps) {
        for key in step.as_object().unwrap().keys() {
            assert_eq!(event[key], step[key], "{key}");
        }
    }
    assert_eq!(of("trim").len(), 1);
    // What lies on top of the heap (from 2.43 on the thread cache) keeps pages below it, which are given back by another way;
    // where pages are large, that may be all.
    let lowered = of("returned").iter().filter(|event| event["way"] == "break").count();
    let by_trim = usize::from(break_at("freed", &ran.stderr) != break_at("trimmed", &ran.stderr));
    assert_eq!(lowered, by_trim, "malloc_trim lowers the break once, or not at all");
    let pids: BTreeSet<u64> = events.iter().filter_map(|event| event["pid"].as_u64()).collect();
    assert_eq!(pids.len(), 1);

    // In text form the stream keeps standard output for itself.
    let again = replayed(&record, &["--events"]);
    said(&again, 0, &["HEAP GROWTH"]);
    assert!(
        again.stdout.lines().all(|line| line.starts_with("{\"pid\":")),
        "{}",
        again.stdout
    );
}

#[test]
fn what_a_cut_trace_holds_is_shown() {
    if !skip::root("what_a_cut_trace_holds_is_shown") {
        return;
    }
    let scratch = Scratch::new();
    let record = scratch.file("whole");
    traced(&record, &["brk-steps"]);
    let whole = fs::read(&record).unwrap();

    let cut = scratch.file("cut");
    fs::write(&cut, &whole[..whole.len() * 3 / 4]).unwrap();
    let ran = replayed(&cut, &["--output", "json"]);
    said(&ran, 1, &["cut short at byte", "events only"]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["coverage"]["ended"], Value::Null);
    assert!(report["syscalls"]["brk"]["count"].as_u64().unwrap() > 0);

    let damaged = scratch.file("damaged");
    let mut bytes = whole;
    let payload = payload_behind(&bytes, bytes.len() / 2);
    bytes[payload] ^= 0x40;
    fs::write(&damaged, bytes).unwrap();
    let ran = replayed(&damaged, &[]);
    said(&ran, 1, &["damaged at byte"]);
    assert!(
        ran.stdout.contains("the record of this trace has no end"),
        "{}",
        ran.stdout
    );
}

/// Where the payload of the first frame that begins at or behind `place` begins. A damaged length reads as a cut, so what is
/// to be damaged must be known (docs/trace-format.md).
fn payload_behind(trace: &[u8], place: usize) -> usize {
    let word = |at: usize| u32::from_le_bytes(trace[at..at + 4].try_into().unwrap()) as usize;
    let mut frame = 20 + word(12);
    while frame < place {
        frame += 9 + word(frame + 1);
    }
    frame + 9
}
