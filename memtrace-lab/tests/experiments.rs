//! The programs that experiments are made of say what the experiments read.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

struct Said {
    kind: String,
    values: BTreeMap<String, String>,
}

impl Said {
    fn number(&self, key: &str) -> f64 {
        self.values[key]
            .parse()
            .unwrap_or_else(|_| panic!("{key} of {} is no number: {:?}", self.kind, self.values))
    }
}

/// Every line of a run; phases under their own name. Files are made in the build's own directory.
fn run(words: &[&str]) -> Vec<Said> {
    let output = Command::new(env!("CARGO_BIN_EXE_memtrace-lab"))
        .args(words)
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null())
        .output()
        .expect("running the lab");
    assert!(output.status.success(), "{words:?}: {output:?}");
    let text = String::from_utf8(output.stdout).expect("lines are UTF-8");
    text.lines().map(said).collect()
}

fn said(line: &str) -> Said {
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    let kind = first.strip_prefix("phase=").unwrap_or(first).to_owned();
    let values = words
        .filter_map(|word| word.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
    Said {
        kind,
        values: values.collect(),
    }
}

fn of<'a>(lines: &'a [Said], kind: &'a str) -> Vec<&'a Said> {
    lines.iter().filter(|said| said.kind == kind).collect()
}

#[test]
fn each_step_of_the_break_is_told_where_it_happens() {
    let lines = run(&["brk-steps"]);
    let steps = of(&lines, "step");
    assert_eq!(steps[0].number("blocks"), 1.0, "the first malloc makes the heap");
    assert!(
        steps
            .windows(2)
            .all(|pair| pair[0].number("brk") < pair[1].number("brk"))
    );
    assert_eq!(steps.last().unwrap().number("brk"), of(&lines, "peak")[0].number("brk"));
}

#[test]
fn blocks_come_one_at_a_time() {
    let lines = run(&[
        "one-at-a-time",
        "--first",
        "1048576",
        "--last",
        "4194304",
        "--times",
        "2",
    ]);
    let sizes: Vec<_> = of(&lines, "held")
        .iter()
        .map(|held| held.number("bytes") as u64 >> 20)
        .collect();
    assert_eq!(sizes, [1, 1, 2, 2, 4, 4]);
    assert!(of(&lines, "held").iter().all(|held| held.number("live_blocks") == 1.0));
    assert!(
        of(&lines, "freed")
            .iter()
            .all(|freed| freed.number("live_blocks") == 0.0)
    );
}

#[test]
fn what_is_lost_is_what_stays_alive() {
    let lines = run(&["leak-beside-retention", "--rounds", "3"]);
    let rounds = of(&lines, "round");
    assert_eq!(rounds.len(), 3);
    for round in rounds {
        assert_eq!(round.number("lost_blocks"), round.number("live_blocks"));
        assert_eq!(round.number("lost_bytes"), round.number("live_bytes"));
    }
}

#[test]
fn a_child_takes_its_memory_along() {
    let (child, own) = (run(&["child-job"]), run(&["child-job", "--fork", "0"]));
    let grown = |lines: &[Said]| of(lines, "done")[0].number("rss") - of(lines, "base")[0].number("rss");
    assert!(grown(&child) < 1e6, "{}", grown(&child));
    assert!(grown(&own) > 100e6, "{}", grown(&own));
}

#[test]
fn every_size_is_timed_in_both_ways() {
    let lines = run(&["pairs", "--rounds", "1"]);
    let pairs = of(&lines, "pair");
    assert!(pairs.len() >= 20 && pairs.len().is_multiple_of(2));
    assert!(pairs.iter().all(|pair| pair.number("ns") > 0.0));
    assert_eq!(of(&run(&["pairs", "--rounds", "1", "--bytes", "48"]), "pair").len(), 2);
}

#[test]
fn blocks_alive_at_once_fault_on_each_page() {
    let lines = run(&["large-alive", "--blocks", "8", "--rounds", "2"]);
    assert!(of(&lines, "alive")[0].number("faults") >= 1.0);
    assert!(of(&lines, "reuse")[1].number("faults") < 1.0);
}

#[test]
fn threads_leave_one_block_each() {
    let lines = run(&["arenas", "--threads", "4"]);
    assert!(of(&lines, "full")[0].number("uordblks") > 4e6);
    assert!(of(&lines, "freed")[0].number("uordblks") < 1e6);
}

#[test]
fn mallopt_says_whether_it_took() {
    let lines = run(&["knobs", "--parameter", "3", "--value", "65536"]);
    assert_eq!(of(&lines, "mallopt")[0].number("result"), 1.0);
    assert!(of(&run(&["knobs"]), "mallopt").is_empty());
}

#[test]
fn reads_are_timed_past_the_cache_or_refused_aloud() {
    let lines = run(&["random-reads", "--bytes", "8388608", "--reads", "50", "--rounds", "1"]);
    let ways: Vec<_> = of(&lines, "reads")
        .iter()
        .map(|reads| reads.values["way"].as_str())
        .collect();
    let refused = of(&lines, "refused");
    assert!(
        ways == ["cached", "direct", "cold"] || (refused.len() == 1 && ways == ["cached", "cold"]),
        "{ways:?}"
    );
}

#[test]
fn files_leave_no_name_behind() {
    for words in [
        &["file-cache", "--bytes", "4194304", "--neighbour-bytes", "4194304"][..],
        &["files-held", "--bytes", "4194304"],
    ] {
        run(words);
        let left = std::fs::read_dir(env!("CARGO_TARGET_TMPDIR"))
            .unwrap()
            .filter_map(Result::ok);
        let left: Vec<_> = left
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("memtrace-lab-"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
