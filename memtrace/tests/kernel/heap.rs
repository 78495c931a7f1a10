//! glibc's books at the moment of a system call, held against its own rules.

use memtrace_analysis::event::{Attribution, Entry, EventKind, Syscall, SyscallKind};
use memtrace_test_support::kernel::shows_registers;

use crate::support::{Program, Traced, can_trace, page, trace};

const MIN_CHUNK: u64 = 32;

/// The chunk that a request needs (request2size).
fn chunk(request: u64) -> u64 {
    ((request + 8 + 15) & !15).max(MIN_CHUNK)
}

fn page_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(page())
}

/// The break after each brk call, and the one before the first.
fn steps(calls: &[&Syscall], first_break: u64) -> Vec<i64> {
    let mut before = first_break;
    let mut steps = Vec::new();
    for call in calls {
        steps.push(call.result - before as i64);
        before = call.result as u64;
    }
    steps
}

#[test]
fn every_step_of_the_break_follows_from_the_books_seen_with_it() {
    if !can_trace() {
        return;
    }
    let traced = trace(Program::build("brk_steps"));
    let first_break: u64 = traced.said[0].parse().unwrap();
    let growths: Vec<&Syscall> = traced
        .syscalls()
        .into_iter()
        .filter(|call| call.kind == SyscallKind::Brk && call.frame.is_some_and(|frame| frame.entry == Entry::Malloc))
        .collect();
    assert!(growths.len() >= 5, "{growths:#?}");
    for (call, step) in growths.iter().zip(steps(&growths, first_break)) {
        let frame = call.frame.unwrap();
        let heap = call.heap.unwrap();
        let thresholds = heap.thresholds.unwrap();
        assert_eq!(call.attribution, expected_attribution(&traced));
        assert!(heap.main);
        assert_eq!(frame.request, 64);
        let rule = page_up(chunk(frame.request) + thresholds.top_pad + MIN_CHUNK - heap.top_size);
        assert_eq!(step, rule as i64, "{call:#?}");
        assert_eq!(
            (thresholds.mmap_threshold, thresholds.trim_threshold),
            (131_072, 131_072)
        );
    }
    // Each batch is known to the block.
    let last = growths.last().unwrap();
    assert!(last.snapshot.allocated_blocks <= traced.totals.allocated_blocks);
    assert_eq!(last.snapshot.allocated_bytes, last.snapshot.allocated_blocks * 64);
    assert_eq!(last.snapshot.thread_allocated_blocks, last.snapshot.allocated_blocks);
    assert_eq!(traced.totals.allocated_blocks, 10_000);
    assert_eq!(traced.totals.freed_blocks, 10_000);
    assert_eq!(traced.totals.freed_bytes, 10_000 * chunk(64));
}

#[test]
fn malloc_trim_is_seen_from_both_sides() {
    if !can_trace() {
        return;
    }
    let traced = trace(Program::build("brk_steps"));
    let begin = traced.events.iter().find_map(|event| match &event.kind {
        EventKind::TrimBegin(trim) => Some(*trim),
        _ => None,
    });
    let begin = begin.expect("the entry of malloc_trim");
    assert_eq!((begin.pad, begin.result), (0, None));
    let heap = begin.heap.unwrap();
    assert!(heap.main && heap.top != 0);
    if !traced.capabilities.trim_returns {
        return;
    }
    let end = traced.events.iter().find_map(|event| match &event.kind {
        EventKind::TrimEnd(trim) => Some(*trim),
        _ => None,
    });
    let end = end.expect("the return of malloc_trim");
    assert_eq!((end.pad, end.result, end.call), (0, Some(1), begin.call));
    let (Some(before), Some(after)) = (begin.resident_bytes, end.resident_bytes) else {
        assert!(!traced.capabilities.resident);
        return;
    };
    // What the program has measured itself, page by page with mincore, is what went.
    let gone: u64 = traced.said[1].parse().unwrap();
    let seen = before.saturating_sub(after);
    assert!(
        seen.abs_diff(gone) <= 16 * page(),
        "{seen} bytes seen to go, {gone} measured"
    );
}

#[test]
fn a_thread_arena_grows_in_the_books_of_its_own() {
    if !can_trace() {
        return;
    }
    let traced = trace(Program::build("thread_arena"));
    let growths: Vec<&Syscall> = traced
        .syscalls()
        .into_iter()
        .filter(|call| call.kind == SyscallKind::Mprotect && call.attribution == expected_attribution(&traced))
        .collect();
    // Each is of a page, and there are 3,000 blocks of 1,008 bytes.
    assert!(growths.len() as u64 > 2_000_000 / page(), "{} growths", growths.len());
    let mut arenas = std::collections::BTreeSet::new();
    for call in &growths {
        let frame = call.frame.unwrap();
        assert_eq!(frame.entry, Entry::Malloc);
        // The first one makes the arena, whose books are not there yet.
        let Some(heap) = call.heap.filter(|heap| !heap.main) else {
            continue;
        };
        arenas.insert(heap.arena.unwrap());
        let grown = page_up(chunk(frame.request) + MIN_CHUNK - heap.top_size);
        assert_eq!(call.args[1], grown, "{call:#x?}");
    }
    assert_eq!(arenas.len(), 1);
}

/// Proven, where the kernel shows what it takes.
fn expected_attribution(traced: &Traced) -> Attribution {
    assert_eq!(traced.capabilities.frame_check, shows_registers());
    if shows_registers() {
        Attribution::Proven
    } else {
        Attribution::Unchecked
    }
}
