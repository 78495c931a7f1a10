//! Threads and processes that come, change and go.

use memtrace::session::{Begin, Session};
use memtrace_analysis::event::{Entry, Event, EventKind};

use crate::support::{Program, can_trace, skipped_runs, target, with_session};

/// Waits until an event passes the test; all events up to there.
fn until(
    runtime: &tokio::runtime::Runtime,
    session: &mut Session,
    what: &str,
    wanted: impl Fn(&Event) -> bool,
) -> Vec<Event> {
    let limit = std::time::Duration::from_secs(20);
    let mut seen = Vec::new();
    runtime.block_on(async {
        loop {
            match tokio::time::timeout(limit, session.events()).await {
                Ok(events) => seen.extend(events.unwrap()),
                Err(_) => panic!("no {what} among {seen:#?}"),
            }
            if seen.iter().any(&wanted) {
                break;
            }
        }
    });
    seen
}

#[test]
fn a_child_leaves_no_event_unless_it_is_followed() {
    if !can_trace() {
        return;
    }
    for follow in [false, true] {
        with_session(|_, session| {
            let mut program = Program::build("forks");
            let parent = program.pid();
            let (target, plan) = target(parent);
            session.add(&target, Some(&plan), follow, Begin::Now).unwrap();
            program.go();
            let child: u32 = program.done()[0].parse().unwrap();
            let events = session.pending();
            let fork = events.iter().find_map(|event| match event.kind {
                EventKind::Fork { child, followed } => Some((event.pid, child, followed)),
                _ => None,
            });
            assert_eq!(fork, Some((parent, child, follow)));
            let of_child = events.iter().filter(|event| event.pid == child).count();
            let totals = session.totals(parent).unwrap();
            assert_eq!(totals.calls[Entry::Malloc as usize], 10);
            if follow {
                let totals = session.totals(child).unwrap();
                assert_eq!(totals.calls[Entry::Malloc as usize], 1000);
                assert!(session.pids().contains(&child));
                let exit = events.iter().find_map(|event| match event.kind {
                    EventKind::ProcessExit { status } if event.pid == child => Some(status),
                    _ => None,
                });
                assert_eq!(exit, Some(Some(7 << 8)));
            } else {
                assert_eq!(of_child, 0);
                assert_eq!(session.totals(child), None);
            }
        });
    }
}

#[test]
fn an_exec_gives_a_new_address_space_and_goes_on_counting() {
    if !can_trace() {
        return;
    }
    with_session(|_, session| {
        let mut program = Program::build("execs");
        let (target, plan) = target(program.pid());
        session.add(&target, Some(&plan), false, Begin::Now).unwrap();
        program.go();
        assert_eq!(program.line(), ["again"]);
        let before = session.libc_base(program.pid());
        program.go();
        program.done();
        let events = session.pending();
        let execs = events.iter().filter(|event| event.kind == EventKind::Exec).count();
        assert_eq!(execs, 1);
        let after = session.libc_base(program.pid());
        assert!(before.is_some() && after.is_some());
        assert_ne!(before, after, "two address spaces at one place: ASLR is off");
        // 100 before, 200 by the new program, of which nothing else allocates.
        let totals = session.totals(program.pid()).unwrap();
        assert_eq!(totals.calls[Entry::Malloc as usize], 300);
    });
}

#[test]
fn threads_come_and_go_and_a_killed_process_ends_with_its_signal() {
    if !can_trace() {
        return;
    }
    with_session(|runtime, session| {
        let mut program = Program::build("entries");
        let pid = program.pid();
        let (target, plan) = target(pid);
        session.add(&target, Some(&plan), false, Begin::Now).unwrap();
        program.go();
        program.done();
        let mut events = session.pending();
        program.child.kill().unwrap();
        let is_exit = |event: &Event| matches!(event.kind, EventKind::ProcessExit { .. });
        events.extend(until(runtime, session, "end of the process", is_exit));
        // A thread that was joined may still be on its way out when the process has ended, and nobody can wait for a process
        // before all of its threads are gone.
        program.child.wait().unwrap();
        events.extend(session.pending());
        let born: Vec<u32> = events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::ThreadStart { child } => Some(child),
                _ => None,
            })
            .collect();
        assert_eq!(born.len(), 8);
        let mut gone: Vec<u32> = events
            .iter()
            .filter(|event| event.kind == EventKind::ThreadExit)
            .map(|event| event.tid)
            .collect();
        gone.sort_unstable();
        let mut all = born.clone();
        all.push(pid);
        all.sort_unstable();
        // A kernel that can preempt programs skips some.
        let missed = all.iter().filter(|id| !gone.contains(id)).count() as u64;
        assert!(gone.iter().all(|id| all.contains(id)), "{gone:?} of {all:?}");
        assert!(missed <= skipped_runs(), "{gone:?} of {all:?}");
        let status = events.iter().find_map(|event| match event.kind {
            EventKind::ProcessExit { status } => status,
            _ => None,
        });
        assert_eq!(status, Some(9));
    });
}
