//! The analysis held against a simulated program whose truth is known.

use crate::script::{MAIN, Op, any_op, plain, run, run_threads, settings};
use memtrace_analysis::Analyzer;
use memtrace_analysis::event::{Attribution, Entry, Event, EventKind};
use memtrace_analysis::report::{Batch, Report, Step, StepKind};
use memtrace_analysis::sim::{Settings, Truth};
use proptest::collection::vec;
use proptest::prelude::*;

fn analyse(events: &[Event]) -> Report {
    let mut analyzer = Analyzer::new();
    events.iter().cloned().for_each(|event| analyzer.push(event));
    analyzer.report()
}

fn steps(truth: &Truth, kind: StepKind) -> (u64, u64) {
    truth
        .steps
        .iter()
        .filter(|step| step.kind == kind)
        .fold((0, 0), |(count, bytes), step| (count + 1, bytes + step.bytes))
}

/// Every call was counted, so each step has its batch.
fn batch(step: &Step) -> Batch {
    step.batch.expect("every call was counted")
}

/// What must agree whatever the program did.
fn agrees(report: &Report, truth: &Truth) -> Result<(), TestCaseError> {
    let growth = &report.growth;
    let listed: Vec<(StepKind, u64)> = growth.steps.iter().map(|step| (step.kind, step.bytes)).collect();
    let made: Vec<(StepKind, u64)> = truth.steps.iter().map(|step| (step.kind, step.bytes)).collect();
    prop_assert_eq!(listed, made, "steps in order");
    prop_assert_eq!((growth.brk_steps_total, growth.brk_bytes), steps(truth, StepKind::Brk));
    prop_assert_eq!(
        (growth.main_pieces, growth.main_piece_bytes),
        steps(truth, StepKind::MmapMain)
    );
    prop_assert_eq!(growth.mapped_blocks, steps(truth, StepKind::Mmap).0);
    let allocated = report.allocated.as_ref().expect("every call was counted");
    prop_assert_eq!(allocated.blocks, truth.blocks);
    prop_assert_eq!(allocated.requested_bytes, truth.requested_bytes);
    prop_assert_eq!(allocated.failed, truth.failed);
    let freed = report.freed.as_ref().expect("every call was counted");
    prop_assert_eq!(freed.blocks, truth.freed_blocks);
    prop_assert_eq!(freed.chunk_bytes, truth.freed_bytes);
    prop_assert_eq!(freed.from_before, 0);
    prop_assert_eq!(report.live_blocks, Some(truth.blocks - truth.freed_blocks));
    prop_assert_eq!(report.returned.by_free_munmap_bytes, truth.freed_by_munmap_bytes);
    prop_assert_eq!(report.returned.by_free_trim_bytes, truth.freed_by_trim_bytes);
    prop_assert_eq!(report.returned.by_trim_bytes, truth.trimmed_bytes);
    let history: Vec<u64> = report
        .threshold
        .history
        .iter()
        .skip(1)
        .map(|change| change.mmap_threshold)
        .collect();
    prop_assert_eq!(history, truth.thresholds.clone());
    prop_assert_eq!(report.threshold.agrees_with_process, Some(true));
    prop_assert!(report.threshold.history.iter().all(|change| change.confirmed));
    prop_assert!(report.coverage.oddities.is_empty());
    Ok(())
}

/// Each growth an allocator call made is as the rule says.
fn all_predicted(report: &Report) -> Result<(), TestCaseError> {
    for step in report.growth.steps.iter().filter(|step| step.cause.entry != "direct") {
        prop_assert_eq!(step.predicted_bytes, Some(step.bytes), "{:?}", step);
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::cases(64))]

    #[test]
    fn every_growth_of_one_thread_is_predicted(settings in settings(), ops in vec(plain(), 0..120)) {
        let (events, truth) = run(settings, &ops);
        let report = analyse(&events);
        agrees(&report, &truth)?;
        all_predicted(&report)?;
        prop_assert_eq!(report.growth.brk_steps_matching, report.growth.brk_steps_total);
        prop_assert_eq!(report.threshold.requests_otherwise, 0);
    }

    #[test]
    fn foreign_breaks_and_refusals_carry_their_reason(settings in settings(), ops in vec(any_op(), 0..120)) {
        let (events, truth) = run(settings, &ops);
        let report = analyse(&events);
        agrees(&report, &truth)?;
        all_predicted(&report)?;
        let by_allocator = truth.steps.iter().filter(|step| step.kind == StepKind::Brk && step.by_allocator).count();
        prop_assert_eq!(report.growth.brk_steps_matching, by_allocator as u64);
        for step in report.growth.steps.iter().filter(|step| step.cause.entry == "direct") {
            prop_assert!(step.reason.is_some());
        }
    }

    #[test]
    fn thread_arenas_are_predicted_too(settings in settings(), ops in vec((0u32..4, plain()), 0..120)) {
        let (events, truth) = run_threads(settings, 3, &ops);
        let report = analyse(&events);
        agrees(&report, &truth)?;
        all_predicted(&report)?;
        prop_assert_eq!(report.growth.arena_steps_matching, report.growth.arena_steps_total);
    }

    /// The batches of one thread are all its blocks up to the last growth, but for the one that it was made for.
    #[test]
    fn batches_leave_nothing_out(settings in settings(), ops in vec(plain(), 0..120)) {
        let (events, _) = run(settings, &ops);
        let report = analyse(&events);
        let Some(last) = report.growth.steps.last() else { return Ok(()) };
        let batches: u64 = report.growth.steps.iter().map(|step| batch(step).blocks).sum();
        let served = events.iter().find_map(|event| match &event.kind {
            EventKind::Syscall(syscall) if event.time_ns == last.time_ns => {
                let own = syscall.frame.is_some_and(|frame| frame.makes_block());
                Some(syscall.snapshot.allocated_blocks - u64::from(own))
            }
            _ => None,
        });
        prop_assert_eq!(Some(batches), served);
    }

    #[test]
    fn order_within_the_window_does_not_matter(
        ops in vec(plain(), 0..60),
        order in vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let (events, _) = run(Settings::default(), &ops);
        let mut shuffled = events.clone();
        // The start stands first, the end last; neighbours of one moment swap.
        for index in order {
            let at = 1 + index.index(shuffled.len().max(4) - 3);
            if at + 2 < shuffled.len() {
                shuffled.swap(at, at + 1);
            }
        }
        prop_assert_eq!(analyse(&shuffled), analyse(&events));
    }
}

#[test]
fn ten_thousand_small_blocks_are_the_story_everybody_knows() {
    let mut ops: Vec<Op> = (0..10_000).map(|_| Op::Allocate(Entry::Malloc, 64, 0)).collect();
    ops.extend((0..10_000).map(|_| Op::Free(any_index())));
    ops.push(Op::Trim(0));
    let (events, truth) = run(
        Settings {
            trim_threshold: u64::MAX,
            dynamic: false,
            ..Settings::default()
        },
        &ops,
    );
    let report = analyse(&events);
    assert_eq!(report.calls.unwrap()["malloc"], 10_000);
    assert_eq!(report.growth.brk_steps_total, 6);
    assert!(
        report
            .growth
            .steps
            .iter()
            .all(|step| step.bytes == 132 << 10 && step.predicted_bytes == Some(132 << 10))
    );
    let batches: Vec<u64> = report.growth.steps.iter().map(|step| batch(step).blocks).collect();
    // As a program sees it that looks at the break after each malloc: blocks 1, 1682, 3371, ... move it.
    assert_eq!(batches, [0, 1681, 1689, 1690, 1689, 1690]);
    assert_eq!(report.returned.frees_nothing, Some(10_000));
    assert_eq!(report.trims.len(), 1);
    assert_eq!(report.trims[0].returned_bytes, truth.trimmed_bytes);
    assert_eq!(
        report.trims[0].before.break_end.unwrap() - report.trims[0].after.unwrap().break_end.unwrap(),
        truth.trimmed_bytes
    );
    assert_eq!(report.target.pid, MAIN);
    assert_eq!(report.live_blocks, Some(0));
}

/// The first of what is left.
fn any_index() -> prop::sample::Index {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    any::<prop::sample::Index>()
        .new_tree(&mut runner)
        .expect("an index")
        .current()
}

/// What a kernel that shows no registers would have recorded: the thread's last frame with every call, unchecked.
fn unchecked(events: &[Event]) -> Vec<Event> {
    let mut last = None;
    let mut events = events.to_vec();
    for event in &mut events {
        if let EventKind::Syscall(syscall) = &mut event.kind {
            last = syscall.frame.or(last);
            syscall.frame = last;
            syscall.attribution = if last.is_some() {
                Attribution::Unchecked
            } else {
                Attribution::None
            };
        }
    }
    events
}

proptest! {
    #![proptest_config(crate::cases(64))]

    #[test]
    fn unchecked_frames_tell_the_same_story_less_surely(settings in settings(), ops in vec(plain(), 0..120)) {
        let (events, _) = run(settings, &ops);
        let (proven, likely) = (analyse(&events), analyse(&unchecked(&events)));
        prop_assert_eq!(likely.returned, proven.returned);
        prop_assert_eq!(&likely.threshold, &proven.threshold);
        prop_assert_eq!(likely.allocated, proven.allocated);
        prop_assert_eq!(likely.growth.steps.len(), proven.growth.steps.len());
        for (one, other) in likely.growth.steps.iter().zip(&proven.growth.steps) {
            prop_assert_eq!((one.kind, one.from, one.predicted_bytes), (other.kind, other.from, other.predicted_bytes));
            prop_assert_eq!((one.cause.attribution.as_str(), other.cause.attribution.as_str()), ("likely", "proven"));
        }
    }

    /// Losing records costs knowledge and nothing else: what is told of the steps that were seen stays true.
    #[test]
    fn lost_records_falsify_no_step(
        settings in settings(),
        ops in vec(plain(), 0..120),
        lost in vec(any::<bool>(), 400),
    ) {
        let (events, _) = run(settings, &ops);
        let kept: Vec<Event> = events
            .iter()
            .zip(lost.iter().chain(std::iter::repeat(&false)))
            .filter(|(event, lost)| !(**lost && matches!(event.kind, EventKind::Syscall(_))))
            .map(|(event, _)| event.clone())
            .collect();
        let report = analyse(&kept);
        let whole = analyse(&events);
        for step in report.growth.steps.iter().filter(|step| step.kind == StepKind::Brk) {
            let true_step = whole.growth.steps.iter().find(|whole| whole.time_ns == step.time_ns);
            prop_assert_eq!(Some((step.from, step.to)), true_step.map(|step| (step.from, step.to)));
        }
        prop_assert_eq!(report.freed.unwrap().blocks, whole.freed.as_ref().unwrap().blocks);
        for (name, count) in &report.syscalls {
            prop_assert_eq!(count.count, whole.syscalls[name].count);
        }
    }
}

#[test]
fn endless_runs_take_bounded_room() {
    let ops: Vec<Op> = (0..9000)
        .map(|i| Op::Allocate(Entry::Malloc, 200_000 + i * 4096, 0))
        .collect();
    let settings = Settings {
        mmap_threshold: 4096,
        dynamic: false,
        ..Settings::default()
    };
    let (events, truth) = run(settings, &ops);
    let report = analyse(&events);
    assert_eq!(report.growth.steps.len(), 4000);
    assert_eq!(report.growth.steps_omitted, truth.steps.len() as u64 - 4000);
    assert_eq!(report.growth.mapped_blocks, 9000);
    assert_eq!(report.growth.mapped_matching, 9000);
    let counted: u64 = report.growth.histogram.iter().map(|bucket| bucket.count).sum();
    assert!(report.growth.histogram.len() <= 512);
    assert_eq!(counted + report.growth.histogram_omitted, truth.steps.len() as u64);
}
