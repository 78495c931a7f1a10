//! The programs do what their descriptions say, as far as they can tell themselves.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

fn lab(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memtrace-lab"))
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("running the lab")
}

type Facts = BTreeMap<String, String>;

fn facts(line: &str) -> Facts {
    line.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Every phase of a run, in order, with its facts.
fn phases(words: &[&str]) -> Vec<(String, Facts)> {
    let output = lab(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    let text = String::from_utf8(output.stdout).expect("lines are UTF-8");
    let lines = text.lines().filter(|line| line.starts_with("phase=")).map(facts);
    lines.map(|facts| (facts["phase"].clone(), facts)).collect()
}

fn number(facts: &Facts, key: &str) -> i64 {
    facts[key]
        .parse()
        .unwrap_or_else(|_| panic!("{key} is no number in {facts:?}"))
}

fn names(phases: &[(String, Facts)]) -> Vec<&str> {
    phases.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn what_cannot_be_done_is_told_in_words() {
    // Nobody can make a file there.
    let mut command = Command::new(env!("CARGO_BIN_EXE_memtrace-lab"));
    let output = command.arg("random-reads").current_dir("/proc").output();
    let output = output.expect("running the lab");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    let no_such_file = std::io::Error::from_raw_os_error(libc::ENOENT).to_string();
    let words = no_such_file.split(" (os error").next().unwrap();
    assert_eq!(
        said,
        format!("memtrace-lab: making a file in this directory: {words}\n")
    );
}

#[test]
fn brk_steps_holds_and_frees_every_block() {
    let phases = phases(&["brk-steps"]);
    assert_eq!(names(&phases), ["base", "peak", "freed", "trimmed"]);
    let [base, peak, freed, trimmed] = [0, 1, 2, 3].map(|i| &phases[i].1);
    assert_eq!(number(base, "brk"), 0);
    assert_eq!(number(peak, "live_blocks"), 10_000);
    assert_eq!(number(peak, "live_bytes"), 640_000);
    assert!(
        number(peak, "brk") >= 800_000,
        "10,000 chunks of 80 bytes lie below the break: {peak:?}"
    );
    assert_eq!(number(freed, "live_blocks"), 0);
    assert!(
        number(trimmed, "brk") < number(peak, "brk"),
        "the trim lowers the break: {trimmed:?}"
    );
}

#[test]
fn large_block_is_mapped_at_first() {
    let phases = phases(&["large-block"]);
    assert_eq!(
        names(&phases),
        ["base", "first-held", "first-freed", "second-held", "second-freed"]
    );
    assert_eq!(number(&phases[1].1, "hblks"), 1, "a mapping of its own");
    assert_eq!(number(&phases[2].1, "hblks"), 0, "gone when it is freed");
    assert_eq!(number(&phases[3].1, "hblks"), 0, "its successor comes from the heap");
}

#[test]
fn threshold_ends_with_nothing_held() {
    let phases = phases(&["threshold", "--rounds", "50"]);
    assert_eq!(names(&phases), ["base", "first", "done"]);
    assert!(phases.iter().all(|(_, facts)| number(facts, "live_blocks") == 0));
}

#[test]
fn mixed_makes_the_same_calls_for_the_same_seed() {
    let calls = |seed: &str| {
        let output = lab(&["mixed", "--seed", seed, "--rounds", "2000"]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("lines are UTF-8");
        facts(
            text.lines()
                .find(|line| line.starts_with("calls "))
                .expect("a line of calls"),
        )
    };
    let first = calls("7");
    assert_eq!(first, calls("7"));
    assert_ne!(first, calls("8"));
    assert!(
        first.iter().all(|(name, count)| count != "0" || name == "malloc_trim"),
        "every entry point: {first:?}"
    );
}

#[test]
fn waits_at_each_phase_until_a_line_comes() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_memtrace-lab"))
        .args(["large-block", "--wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starting the lab");
    let mut answers = child.stdin.take().expect("its stdin");
    let mut lines = BufReader::new(child.stdout.take().expect("its stdout")).lines();
    for name in ["base", "first-held"] {
        let line = lines.next().expect("a line").expect("readable");
        assert_eq!(facts(&line)["phase"], name);
        assert_eq!(facts(&line)["pid"], child.id().to_string());
        assert!(child.try_wait().expect("its state").is_none(), "it waits in {name}");
        answers.write_all(b"go on\n").expect("answering");
    }
    drop(answers);
    assert_eq!(
        lines.count(),
        1,
        "it stops at the phase it is in when nobody answers any more"
    );
    assert_eq!(child.wait().expect("its end").code(), Some(3));
}

#[test]
fn a_wrong_command_line_is_refused() {
    for words in [
        &["no-such"][..],
        &[],
        &["brk-steps", "--rounds", "3"],
        &["threshold", "--rounds", "-1"],
        &["list", "x"],
    ] {
        let output = lab(words);
        assert_eq!(output.status.code(), Some(64), "{words:?}: {output:?}");
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{words:?}: {output:?}"
        );
    }
    assert!(lab(&["list"]).status.success());
}

/// What a program that is told to work in windows answers.
fn windows(words: &[&str], milliseconds: &[u64]) -> Vec<Facts> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_memtrace-lab"))
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starting the lab");
    let mut input = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = || lines.next().expect("a line").expect("a line");
    assert!(next().starts_with("ready pid="));
    let answers = milliseconds
        .iter()
        .map(|milliseconds| {
            writeln!(input, "{milliseconds}").expect("it listens");
            facts(&next())
        })
        .collect();
    drop(input);
    assert!(child.wait().expect("its end").success());
    answers
}

#[test]
fn work_is_done_in_windows_and_counted() {
    for words in [
        &["churn"][..],
        &[
            "churn",
            "--threads",
            "5",
            "--slots",
            "40",
            "--low",
            "16",
            "--high",
            "2000",
        ],
        &["system-calls"],
        &["system-calls", "--memory", "1", "--rate", "2000"],
    ] {
        for window in windows(words, &[30, 60]) {
            assert!(number(&window, "work") > 0, "{words:?}: {window:?}");
            assert!(number(&window, "ns") >= 30_000_000, "{words:?}: {window:?}");
            assert!(
                number(&window, "gap_ns") <= number(&window, "ns"),
                "{words:?}: {window:?}"
            );
        }
    }
}

#[test]
fn a_rate_is_not_exceeded() {
    for window in windows(&["system-calls", "--rate", "1000"], &[200, 200]) {
        let due = number(&window, "ns") / 1_000_000 + 1;
        assert!(number(&window, "work") <= due, "{window:?}");
    }
}

#[test]
fn checking_verifies_its_children_and_ends_at_the_end_of_its_input() {
    let output = lab(&["checking", "--exchanges", "3000"]);
    assert!(output.status.success(), "{output:?}");
    let output = lab(&["checking"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("lines are UTF-8");
    assert!(text.contains("\nintact blocks="), "{text}");
}
