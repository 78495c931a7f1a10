//! What happens where room runs out, and in a PID namespace of one's own.

use std::fs;
use std::process::Command;

use memtrace::session::{Begin, Options};
use memtrace_analysis::event::{Entry, EventKind, SyscallKind};
use memtrace_test_support::kernel::is_at_least;

use crate::support::{Program, can_trace, skipped_runs, syscalls, target, with_options};

/// Threads of programs/storm.c, and what each does.
const THREADS: u64 = 4;
const ROUNDS: u64 = 1000;

/// All were seen but what the kernel says that it has skipped.
fn assert_all_but_skipped(seen: u64, made: u64) {
    let skipped = skipped_runs();
    assert!(
        seen <= made && seen + skipped >= made,
        "{seen} of {made}, {skipped} runs skipped"
    );
}

#[test]
fn what_the_ring_buffer_has_no_room_for_is_counted_and_the_totals_stay_exact() {
    if !can_trace() {
        return;
    }
    let options = Options {
        ring_bytes: 1 << 16,
        ..Options::default()
    };
    with_options(&options, |_, session| {
        let mut program = Program::build("storm");
        let (target, plan) = target(program.pid());
        session.add(&target, Some(&plan), false, Begin::Now).unwrap();
        program.go();
        program.done();
        let totals = session.totals(program.pid()).unwrap();
        let events = session.pending();
        let made: u64 = totals.syscalls.iter().sum();
        assert_all_but_skipped(totals.syscalls[SyscallKind::Mremap as usize], THREADS * ROUNDS);
        assert_eq!(totals.calls[Entry::Malloc as usize], THREADS * ROUNDS);
        assert!(totals.lost_records > 0);
        let others = events
            .iter()
            .filter(|event| !matches!(event.kind, EventKind::Syscall(_)))
            .count() as u64;
        let life = 2 * THREADS;
        assert_all_but_skipped(
            syscalls(&events).len() as u64 + others + totals.lost_records,
            made + life,
        );
    });
}

#[test]
fn threads_without_room_are_counted_and_their_calls_too() {
    if !can_trace() {
        return;
    }
    let options = Options {
        threads: 2,
        ..Options::default()
    };
    with_options(&options, |_, session| {
        let mut program = Program::build("storm");
        let (target, plan) = target(program.pid());
        session.add(&target, Some(&plan), false, Begin::Now).unwrap();
        program.go();
        program.done();
        let totals = session.totals(program.pid()).unwrap();
        assert!(totals.lost_threads > 0);
        assert_eq!(totals.calls[Entry::Malloc as usize], THREADS * ROUNDS);
        assert_all_but_skipped(totals.syscalls[SyscallKind::Mremap as usize], THREADS * ROUNDS);
        assert!(totals.lost_records <= skipped_runs(), "{} lost", totals.lost_records);
    });
}

/// Turns of programs/same_place.c, in which its two threads call malloc once and three times.
const TURNS: u64 = 1000;

#[test]
fn threads_give_their_room_back_and_two_of_like_ids_are_told_apart() {
    if !can_trace() {
        return;
    }
    let options = Options {
        threads: 8,
        ..Options::default()
    };
    with_options(&options, |_, session| {
        let mut program = Program::build("same_place");
        let (target, plan) = target(program.pid());
        session.add(&target, Some(&plan), false, Begin::Now).unwrap();
        program.go();
        assert_eq!(program.line(), ["found"]);
        // Room for what comes now.
        session.pending();
        program.go();
        let said: Vec<u32> = program.done().iter().map(|word| word.parse().unwrap()).collect();
        let &[one, other, gone] = said.as_slice() else {
            panic!("{said:?}");
        };
        assert!(one != other && (one ^ other).is_multiple_of(1 << 14), "{one}, {other}");
        let totals = session.totals(program.pid()).unwrap();
        assert_eq!(totals.lost_threads, 0, "of {gone} that came and went");
        assert_eq!(totals.calls[Entry::Malloc as usize], u64::from(gone) + 4 * TURNS);
        let events = session.pending();
        for (thread, blocks) in [(one, TURNS), (other, 3 * TURNS)] {
            let last = events.iter().find_map(|event| match &event.kind {
                EventKind::Syscall(call) if event.tid == thread && call.args[..2] == [0x10000, 0] => Some(call),
                _ => None,
            });
            let own = last.map(|call| call.snapshot.thread_allocated_blocks);
            assert_eq!(own, Some(blocks), "of thread {thread}");
        }
    });
}

#[test]
fn the_probes_of_a_process_go_with_it_and_leave_the_others() {
    const NAME: &str = "limits::the_probes_of_a_process_go_with_it_and_leave_the_others";
    const ALONE: &str = "MEMTRACE_TEST_ALONE";
    if !can_trace() {
        return;
    }
    // Links are counted by the descriptors of the process, and other tests run in this one.
    if std::env::var_os(ALONE).is_none() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME])
            .env(ALONE, "1")
            .output()
            .expect("running this test alone");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    with_options(&Options::default(), |_, session| {
        let (one, two) = (Program::build("entries"), Program::build("entries"));
        let links = || {
            let held = fs::read_dir("/proc/self/fd").unwrap();
            held.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
                .filter(|what| {
                    what.to_string_lossy().contains("perf_event") || what.to_string_lossy().contains("bpf_link")
                })
                .count()
        };
        let before = links();
        for program in [&one, &two] {
            let (target, plan) = target(program.pid());
            session.add(&target, Some(&plan), false, Begin::Now).unwrap();
        }
        let both = links();
        assert!(both > before, "probes are links that are held: {before}, then {both}");
        session.detach_process(one.pid());
        let second = links();
        session.detach_process(two.pid());
        assert_eq!(links(), before);
        assert_eq!(second - before, both - second, "each process has as many of its own");
    });
}

#[test]
fn the_kernel_sides_own_log_can_be_switched_on() {
    if !can_trace() {
        return;
    }
    let options = Options {
        debug: true,
        ..Options::default()
    };
    with_options(&options, |_, session| {
        let mut program = Program::build("forks");
        let (target, plan) = target(program.pid());
        session.add(&target, Some(&plan), true, Begin::Now).unwrap();
        program.go();
        program.done();
        assert!(!session.pending().is_empty());
    });
}

#[test]
fn ids_are_those_of_memtraces_own_pid_namespace() {
    if !can_trace() {
        return;
    }
    let tests = [
        "counts::every_entry_point_is_counted_exactly_over_eight_threads",
        "life::a_child_leaves_no_event_unless_it_is_followed",
        "life::threads_come_and_go_and_a_killed_process_ends_with_its_signal",
    ];
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe().unwrap())
        .arg("--exact")
        .args(tests)
        .output()
        .expect("unshare is part of util-linux");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains(&format!("{} passed", tests.len())), "{text}");
}

/// Instructions that the kernel may follow to verify one program: each load pays for it, and each takes some 1 us (in an
/// emulated machine twenty times that). 6.1 follows three times as many as 6.18; no kernel takes more than a million.
const FOLLOWED: u32 = 120_000;

#[test]
fn the_verifier_is_soon_done_with_each_program() {
    if !can_trace() {
        return;
    }
    with_options(&Options::default(), |_, _session| {
        let (mut programs, mut known) = (0, 0);
        for file in fs::read_dir("/proc/self/fdinfo").unwrap() {
            // Other tests' may go meanwhile.
            let Ok(text) = fs::read_to_string(file.unwrap().path()) else {
                continue;
            };
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let Some(id) = field("prog_id:").filter(|_| field("prog_jited:").is_some()) else {
                continue;
            };
            programs += 1;
            // Kernels before 5.16 do not say.
            let Some(followed) = field("verified_insns:") else {
                continue;
            };
            known += 1;
            let followed: u32 = followed.parse().unwrap();
            assert!(followed < FOLLOWED, "{followed} instructions for program {id}");
        }
        assert!(programs > 10);
        assert!(known == programs || !is_at_least(5, 16), "{known} of {programs}");
    });
}
