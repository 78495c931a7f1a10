//! What happened in a pause is not known, and nothing from before it is taken to be so still.

use memtrace_analysis::Analyzer;
use memtrace_analysis::event::{
    Attribution, Depth, Entry, Event, EventKind, Sample, Snapshot, Syscall, SyscallKind, Watching,
};
use memtrace_analysis::report::Report;
use memtrace_analysis::sim::{Program, Settings};

const MILLISECOND: u64 = 1_000_000;

fn watching(depth: Depth) -> EventKind {
    EventKind::Watching(Watching {
        depth,
        followed: true,
        automatic: true,
    })
}

/// The program's own brk.
fn brk(wanted: u64, result: u64) -> EventKind {
    EventKind::Syscall(Box::new(Syscall {
        kind: SyscallKind::Brk,
        args: [wanted, 0, 0, 0, 0, 0],
        result: result.cast_signed(),
        enter_ns: 0,
        attribution: Attribution::None,
        frame: None,
        ip: None,
        stack: [0; 8],
        heap: None,
        snapshot: Snapshot::default(),
        resident_bytes: None,
    }))
}

fn sample(break_end: u64) -> EventKind {
    EventKind::Sample(Sample {
        break_end: Some(break_end),
        threads: 1,
        resident_bytes: 0,
        cpu_ns: 0,
    })
}

/// One event each millisecond.
fn report(kinds: Vec<EventKind>) -> Report {
    let mut analyzer = Analyzer::new();
    for (kind, n) in kinds.into_iter().zip(1..) {
        analyzer.push(Event {
            time_ns: n * MILLISECOND,
            pid: 7,
            tid: 7,
            kind,
        });
    }
    analyzer.report()
}

fn steps(report: &Report) -> Vec<(u64, u64)> {
    report.growth.steps.iter().map(|step| (step.from, step.to)).collect()
}

#[test]
fn a_step_is_not_measured_from_where_the_break_was_before_a_pause() {
    let before = || {
        vec![
            watching(Depth::Syscalls),
            brk(0, 0x5000),
            brk(0x6000, 0x6000),
            watching(Depth::Nothing),
            // Seen from outside in the pause, and old as it ends.
            sample(0x8000),
            watching(Depth::Syscalls),
        ]
    };
    let mut kinds = before();
    kinds.push(brk(0xa000, 0xa000));
    let unknown = report(kinds);
    assert_eq!(steps(&unknown), [(0x5000, 0x6000)]);
    let mut kinds = before();
    kinds.extend([sample(0x9000), brk(0xa000, 0xa000)]);
    let known = report(kinds);
    assert_eq!(steps(&known), [(0x5000, 0x6000), (0x9000, 0xa000)]);
    let coverage = &known.coverage;
    assert_eq!(coverage.depths.nothing_ns, 2 * MILLISECOND);
    assert!((coverage.syscalls_fraction - 5.0 / 7.0).abs() < 1e-9, "{coverage:?}");
}

#[test]
fn without_a_pause_the_break_is_known() {
    let seen = report(vec![
        watching(Depth::Calls),
        brk(0, 0x5000),
        brk(0x6000, 0x6000),
        watching(Depth::Syscalls),
        brk(0xa000, 0xa000),
    ]);
    assert_eq!(steps(&seen), [(0x5000, 0x6000), (0x6000, 0xa000)]);
    assert!((seen.coverage.syscalls_fraction - 1.0).abs() < f64::EPSILON);
}

/// The program's own sbrk in a pause: the next step of malloc's is too long by it.
#[test]
fn a_step_that_an_unseen_sbrk_is_in_says_why_it_is_not_as_predicted() {
    let of = |paused: bool| {
        let mut program = Program::new(Settings::default());
        let tid = 4242;
        program.allocate(tid, Entry::Malloc, 1000, 0);
        program.sbrk(4096);
        program.allocate(tid, Entry::Malloc, 100_000, 0);
        program.allocate(tid, Entry::Malloc, 100_000, 0);
        let (events, _) = program.end();
        let mut analyzer = Analyzer::new();
        for event in events {
            let own_sbrk = matches!(&event.kind, EventKind::Syscall(call) if call.attribution == Attribution::None);
            let around = |kind| Event { kind, ..event.clone() };
            if own_sbrk && paused {
                analyzer.push(around(watching(Depth::Nothing)));
                analyzer.push(around(watching(Depth::Calls)));
            } else {
                analyzer.push(event);
            }
        }
        analyzer.report()
    };
    let differing = |report: &Report| {
        let steps = report.growth.steps.iter();
        let differing = steps.filter(|step| step.predicted_bytes.is_some_and(|predicted| predicted != step.bytes));
        differing.map(|step| step.reason.clone()).collect::<Vec<_>>()
    };
    assert_eq!(differing(&of(false)), []);
    let reasons = differing(&of(true));
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    assert!(
        reasons[0]
            .as_ref()
            .is_some_and(|reason| reason.contains("not watched just before")),
        "{reasons:?}"
    );
}
