//! The oracle is itself checked: against a program that knows its own calls, and against valgrind.

use std::collections::BTreeMap;
use std::process::Command;

use memtrace_test_support::counter::{Counter, Counts};
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::{binary, cc, glibc, skip};

/// Runs a program to its end with the counter preloaded; what it printed and what was counted.
fn count(counter: &Counter, command: &mut Command) -> (String, Counts) {
    let (name, prefix) = counter.environment();
    let child = command
        .env("LD_PRELOAD", counter.library())
        .env(name, prefix)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("starting the program");
    let pid = child.id();
    let output = child.wait_with_output().expect("waiting for the program");
    assert!(output.status.success(), "{output:?}");
    (String::from_utf8(output.stdout).expect("UTF-8"), counter.counts(pid))
}

#[test]
fn the_counter_agrees_with_a_program_that_counts_its_own_calls() {
    let scratch = Scratch::new();
    let counter = Counter::build(None, &scratch);
    let threads = 4;
    let (text, counts) = count(
        &counter,
        Command::new(binary("memtrace-lab")).args(["mixed", "--seed", "3"]),
    );
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("calls "))
        .expect("a line of calls");
    let own: BTreeMap<String, u64> = line
        .split_whitespace()
        .map(|word| word.split_once('=').expect("name=count"))
        .map(|(name, count)| (name.to_owned(), count.parse().expect("a number")))
        .collect();
    for (name, &calls) in &own {
        // libc allocates and frees a little for each thread (its table of thread-local storage).
        let most = if name == "calloc" || name == "free" {
            4 * threads
        } else {
            0
        };
        let extra = counts.calls[name].checked_sub(calls);
        assert!(
            extra.is_some_and(|extra| extra <= most),
            "{name}: {calls} calls, counted {}",
            counts.calls[name]
        );
    }
    assert!(
        counts.realloc_moved > 0 && counts.realloc_in_place > 0 && counts.realloc_null > 0,
        "{counts:?}"
    );
    assert!(
        counts.failed["malloc"] > 0 && counts.failed["calloc"] > 0 && counts.failed["realloc"] > 0,
        "{counts:?}"
    );
}

#[test]
fn the_counter_agrees_with_valgrind() {
    const NAME: &str = "the_counter_agrees_with_valgrind";
    if !skip::program(NAME, "valgrind") {
        return;
    }
    let scratch = Scratch::new();
    let counter = Counter::build(None, &scratch);
    let random = cc::compile("random", cc::Kind::Program, None, &scratch);
    // One thread, so that both runs are the same.
    let words = ["5", "3000", "0", "1", "plain"];
    let (_, counts) = count(&counter, Command::new(&random).args(words));
    let output = Command::new("valgrind")
        .arg(&random)
        .args(words)
        .output()
        .expect("starting valgrind");
    let text = String::from_utf8_lossy(&output.stderr);
    // "==1== total heap usage: 1,234 allocs, 1,234 frees, 5 bytes allocated"
    let line = text
        .lines()
        .find_map(|line| line.split_once("total heap usage: "))
        .expect("valgrind's summary")
        .1;
    let number = |name: &str| -> u64 {
        let part = line
            .split(", ")
            .find_map(|part| part.strip_suffix(name))
            .expect("a count");
        part.trim().replace(',', "").parse().expect("a number")
    };
    // valgrind calls a realloc of a block an allocation and a free.
    let resized = counts.realloc_in_place + counts.realloc_moved;
    let (failed, calls) = (counts.failed.values().sum::<u64>(), counts.calls.values().sum::<u64>());
    let allocations = calls - counts.calls["free"] - counts.calls["malloc_trim"] - failed - counts.realloc_zero;
    assert_eq!(number("allocs"), allocations, "{line} {counts:?}");
    assert_eq!(
        number("frees"),
        counts.calls["free"] - counts.free_null + resized + counts.realloc_zero,
        "{line}"
    );
}

#[test]
fn the_random_program_runs_under_every_release() {
    const NAME: &str = "the_random_program_runs_under_every_release";
    let Some(releases) = glibc::all_or_skip(NAME) else {
        return;
    };
    let oldest = &releases[0];
    let scratch = Scratch::new();
    let random = cc::compile("random", cc::Kind::Program, Some(oldest), &scratch);
    let counter = Counter::build(Some(oldest), &scratch);
    for release in &releases {
        let runner = release.runner(Some(counter.library()));
        let child = Command::new(&runner[0])
            .args(&runner[1..])
            .arg(&random)
            .args(["9", "2000", "4", "2"])
            .env("COUNTER_FILES", counter.environment().1)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("starting the loader");
        let pid = child.id();
        let output = child.wait_with_output().expect("waiting for it");
        assert!(output.status.success(), "{}: {output:?}", release.shown());
        assert_eq!(output.stdout, b"done\n", "{}", release.shown());
        assert!(counter.counts(pid).calls["malloc"] > 1000, "{}", release.shown());
    }
}
