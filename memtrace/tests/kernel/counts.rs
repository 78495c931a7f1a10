//! Each call once, by entry point.

use memtrace_analysis::event::{Entry, SyscallKind};

use crate::support::{Program, Traced, can_trace, trace};

#[test]
fn every_entry_point_is_counted_exactly_over_eight_threads() {
    if !can_trace() {
        return;
    }
    let traced = trace(Program::build("entries"));
    let totals = &traced.totals;
    let calls = |entry: Entry| totals.calls[entry as usize];
    for (entry, expected) in [
        (Entry::Malloc, 8 * 1000),
        // pthread_create callocs a table for each thread.
        (Entry::Calloc, 8 * 500 + 8),
        (Entry::Realloc, 8 * 300),
        (Entry::PosixMemalign, 8 * 20),
        (Entry::Valloc, 8 * 10),
        (Entry::Pvalloc, 8 * 10),
    ] {
        assert_eq!(calls(entry), expected, "{entry:?}");
    }
    assert_eq!(calls(Entry::Memalign) + calls(Entry::AlignedAlloc), 8 * 40);
    assert_eq!(totals.allocated_blocks, 8 * (1000 + 500 + 100 + 80) + 8);
    assert_eq!(totals.realloc.null, 800);
    assert_eq!(totals.realloc.zero, 800);
    // Up to glibc 2.33 the first malloc and the first realloc of all come by twice; so do the first reallocs of threads that
    // make them at once.
    let first_calls = if traced.plan.hooks.is_some() { 2..=9 } else { 0..=0 };
    let first = totals.second_hits.checked_sub(1600);
    assert!(
        first.is_some_and(|first| first_calls.contains(&first)),
        "{}",
        totals.second_hits
    );
    assert_eq!(totals.second_hits_memalign, 240);
    // A thread's table is freed when its stack is used again, which may or may not happen.
    let own = 8 * (1000 + 500 + 100 + 80);
    assert!(
        (own..=own + 8).contains(&totals.freed_blocks),
        "{}",
        totals.freed_blocks
    );
    assert_eq!(totals.lost_threads + totals.free_unreadable, 0);
    assert!(totals.lost_records <= traced.skipped, "{} lost", totals.lost_records);
    assert_eq!(
        traced.capabilities.probed.len(),
        totals.calls.len() - usize::from(!has_own_aligned_alloc(&traced))
    );
    let seen: u64 = totals.syscalls.iter().sum();
    assert_eq!(traced.syscalls().len() as u64 + totals.lost_records, seen);
    assert!(totals.syscalls[SyscallKind::Mmap as usize] > 0);
    assert!(traced.events.iter().all(|event| event.pid == traced.pid));
    assert_eq!(traced.said, Vec::<String>::new());
}

/// Up to 2.37 aligned_alloc is memalign under another name.
fn has_own_aligned_alloc(traced: &Traced) -> bool {
    traced.capabilities.probed.contains(&Entry::AlignedAlloc)
}
