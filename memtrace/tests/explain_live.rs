//! Processes that do not wait to be looked at: torn looks say so, stopped ones are let go, large ones are fast.

mod explain_support;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use explain_support::{Heaps, Process, sum_of_parts};
use memtrace_analysis::glibc::look::Look;
use memtrace_test_support::binary;
use memtrace_test_support::scratch::Scratch;

fn churning(threads: u32) -> Process {
    let heaps = Heaps::under_own_glibc();
    let mut process = heaps.start(&format!("churn {threads}"));
    assert!(process.talker.line().starts_with("turns="));
    process
}

fn turns(process: &mut Process) -> u64 {
    process.talker.go_on();
    let line = process.talker.line();
    line.strip_prefix("turns=")
        .and_then(|turns| turns.parse().ok())
        .unwrap_or_else(|| panic!("it said {line:?}"))
}

/// State letters of all threads, as /proc shows them: t for a thread that a tracer has stopped.
fn states(pid: u32) -> Vec<char> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("stat")).ok())
        .filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next())
        .collect()
}

fn is_consistent(look: &Look) -> bool {
    let resident = &look.resident;
    let sum = sum_of_parts(resident);
    sum == resident.total && look.torn != look.problems.is_empty()
}

/// Each thread holds at most 500 blocks; what a clean look says lies near that, a torn one says that it is torn.
#[test]
fn looks_at_full_churn_are_clean_or_called_torn() {
    for threads in [1, 4] {
        let mut process = churning(threads);
        let mut clean = 0;
        for _ in 0..30 {
            let look = process.look();
            assert!(is_consistent(&look), "{look:#?}");
            let blocks = look.heap.as_ref().expect("the heap was read").live_blocks;
            let most = u64::from(threads) * 520 + 30;
            if !look.torn {
                clean += 1;
                assert!(
                    blocks <= most,
                    "a look that is called clean has {blocks} live blocks of {most} at most"
                );
            }
            assert!(!look.damaged, "motion was called damage: {:#?}", look.problems);
        }
        eprintln!("{threads} threads at full churn: {clean} of 30 looks clean");
        let before = turns(&mut process);
        let after = turns(&mut process);
        assert!(after >= before, "it goes on");
    }
}

#[test]
fn a_stopped_process_is_seen_clean_and_goes_on() {
    for threads in [1, 4] {
        let mut process = churning(threads);
        let mut clean = 0;
        for _ in 0..15 {
            let look = process.look_stopped();
            assert!(is_consistent(&look), "{look:#?}");
            assert!(look.taken.stopped);
            assert!(
                !look.damaged,
                "a thread inside malloc was called damage: {:#?}",
                look.problems
            );
            let blocks = look.heap.as_ref().expect("the heap was read").live_blocks;
            if !look.torn {
                clean += 1;
                assert!(blocks <= u64::from(threads) * 501 + 30, "{blocks}");
            }
            assert!(!states(process.pid()).contains(&'t'), "it was left stopped");
        }
        assert!(clean >= 10, "only {clean} of 15 looks at a stopped process were clean");
        let before = turns(&mut process);
        while turns(&mut process) == before {}
    }
}

/// A memtrace that is killed while the process stands still lets it go all the same.
#[test]
fn a_killed_memtrace_leaves_nothing_stopped() {
    let mut process = churning(4);
    let scratch = Scratch::new();
    let mut stopped = 0;
    for attempt in 0..40 {
        let mut memtrace = Command::new(binary("memtrace"))
            .args(["explain", "--stop", "--output", "json", "-o"])
            .arg(scratch.file("look.json"))
            .args(["--pid", &process.pid().to_string()])
            .stderr(Stdio::null())
            .spawn()
            .expect("starting memtrace");
        // Killed as soon as a thread is seen stopped; some runs are over before that is seen.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) && matches!(memtrace.try_wait(), Ok(None)) {
            if states(process.pid()).contains(&'t') {
                stopped += 1;
                break;
            }
        }
        memtrace.kill().expect("killing memtrace");
        memtrace.wait().expect("waiting for memtrace");
        assert!(
            !states(process.pid()).contains(&'t'),
            "attempt {attempt} left a thread stopped"
        );
        let before = turns(&mut process);
        while turns(&mut process) == before {}
        if stopped >= 3 {
            return;
        }
    }
    assert!(stopped > 0, "memtrace was never seen while the process stood still");
}

/// Minor and major page faults of a process.
fn faults(pid: u32) -> (u64, u64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<u64> = stat
        .rsplit_once(") ")
        .expect("a name")
        .1
        .split(' ')
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    (fields[7], fields[9])
}

/// Resident KiB, by the page tables: the counters of statm lag by some pages on each processor.
fn resident(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse().ok()).expect("a resident size")
}

/// A million chunks over a gibibyte, with pages given back in between: no page comes back by being looked at.
#[test]
fn a_million_chunks_are_read_without_a_fault() {
    let heaps = Heaps::under_own_glibc();
    let mut process = heaps.start("many 1000000");
    process.skip_to("trimmed");
    let (faults_before, resident_before) = (faults(process.pid()), resident(process.pid()));
    let begun = Instant::now();
    let look = process.look();
    let elapsed = begun.elapsed();
    assert_eq!(faults(process.pid()), faults_before, "page faults in the process");
    // A machine that is short of memory may take some away meanwhile.
    let resident_after = resident(process.pid());
    assert!(
        resident_after <= resident_before,
        "{resident_after} KiB are resident instead of {resident_before}"
    );
    let heap = look.heap.as_ref().expect("the heap was read");
    assert_eq!(heap.live_blocks, process.facts["blocks"]);
    eprintln!("a look at {} live blocks took {elapsed:?}", heap.live_blocks);
    // A release build takes a quarter of a second; this one has no optimisation, and other tests beside it.
    let bound = if cfg!(debug_assertions) {
        Duration::from_secs(15)
    } else {
        Duration::from_millis(500)
    };
    assert!(elapsed < bound, "it took {elapsed:?}");
}
