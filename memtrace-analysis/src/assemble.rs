//! From the story's books to the report.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};

use crate::coverage;
use crate::event::{Allocator, AllocatorKind, Entry, Realloc, Totals};
use crate::finding;
use crate::report::{Allocated, BlocksBytes, Counted, Freed, REPORT_VERSION, Report, TargetSection};
use crate::story::Story;
use crate::watching;

pub fn report(story: &Story, late_events: u64) -> Report {
    let totals = story.ledger.totals();
    let coverage = coverage::report(story, late_events);
    let counted = coverage.calls_counted() != Counted::Never;
    let always = coverage.calls_counted() == Counted::Always;
    let freed = counted.then(|| freed(story, totals, always));
    let failures = story.threads.failures();
    let mut report = Report {
        report_version: REPORT_VERSION,
        target: target(story),
        coverage,
        calls: counted.then(|| calls(totals)),
        allocated: counted.then(|| allocated(story, totals)),
        live_blocks: always.then(|| story.ledger.live_blocks(failures.blocks)),
        threads: story.life,
        realloc: counted.then(|| Realloc {
            failed: realloc(totals).failed.saturating_add(refused_reallocs(totals)),
            ..realloc(totals)
        }),
        syscalls: story.tally.report(totals),
        growth: story.growth.report(),
        returned: story.returned.report(
            freed
                .as_ref()
                .filter(|_| always)
                .map(|freed| (freed.blocks, freed.chunk_bytes)),
        ),
        freed,
        trims: story.trims.reports().cloned().collect(),
        trims_omitted: story.trims.omitted(),
        threshold: story.threshold.report(),
        direct: story.outside.book.report(),
        findings: alloc::vec::Vec::new(),
        looks: story.looks.report(story.ended, is_glibc(story)),
        cost: story.watch.latest_cost().map(watching::cost_section),
    };
    report.findings = finding::findings(&report);
    report
}

fn target(story: &Story) -> TargetSection {
    let start = story.start.as_ref();
    TargetSection {
        pid: story.pid.unwrap_or(0),
        name: start.map(|start| start.name.clone()).unwrap_or_default(),
        command: start.map(|start| start.command.clone()).unwrap_or_default(),
        threads: story.thread_count,
        from_birth: start.is_some_and(|start| start.from_birth),
        libc: start.map_or_else(unknown_allocator, |start| start.allocator.clone()),
        page_size: story.page_size(),
        resident_bytes_begin: story.resident_begin,
        resident_bytes_end: story.resident_end,
        break_begin: story.break_begin,
        break_end: story.regions.break_end(),
        execs: story.execs,
        exit_status: story.exit_status,
    }
}

/// The books are glibc's alone.
fn is_glibc(story: &Story) -> bool {
    let kind = story.start.as_ref().map(|start| start.allocator.kind);
    matches!(kind, Some(AllocatorKind::Glibc | AllocatorKind::GlibcStatic))
}

fn unknown_allocator() -> Allocator {
    Allocator {
        kind: AllocatorKind::Unknown,
        version: None,
        path: None,
        build_id: None,
        evidence: "the trace does not say".to_string(),
    }
}

/// The figure of each entry point in a table of the totals.
fn by_entry(table: &[u64; 10]) -> impl Iterator<Item = (Entry, u64)> {
    Entry::ALL.into_iter().zip(table.iter().copied())
}

fn calls(totals: Option<&Totals>) -> BTreeMap<String, u64> {
    let table = totals.map_or([0; 10], |totals| totals.calls);
    by_entry(&table)
        .map(|(entry, calls)| (entry.name().to_string(), calls))
        .collect()
}

fn realloc(totals: Option<&Totals>) -> Realloc {
    totals.map(|totals| totals.realloc).unwrap_or_default()
}

/// Calls of realloc that failed by their arguments alone.
fn refused_reallocs(totals: Option<&Totals>) -> u64 {
    let failed = totals.map_or([0; 10], |totals| totals.failed);
    by_entry(&failed)
        .find(|(entry, _)| *entry == Entry::Realloc)
        .map_or(0, |(_, failed)| failed)
}

fn allocated(story: &Story, totals: Option<&Totals>) -> Allocated {
    let latest = story.ledger.latest();
    let failures = story.threads.failures();
    let by_arguments = totals.map_or(0, |totals| {
        totals.failed.iter().fold(0, |sum: u64, n| sum.saturating_add(*n))
    });
    // realloc's results are seen where its return has a probe, and that count includes what is inferred here.
    let reallocs = if realloc(totals).returns > 0 {
        realloc(totals).failed
    } else {
        failures.reallocs
    };
    let inferred = failures.blocks.saturating_add(reallocs);
    let table = totals.map(|totals| by_entry(&totals.blocks).zip(totals.bytes));
    Allocated {
        blocks: latest.allocated_blocks.saturating_sub(failures.blocks),
        requested_bytes: latest.allocated_bytes.saturating_sub(failures.bytes),
        failed: by_arguments.saturating_add(inferred),
        failed_inferred: inferred,
        by_entry: table
            .into_iter()
            .flatten()
            .filter(|((entry, blocks), _)| *blocks > 0 && *entry != Entry::Free)
            .map(|((entry, blocks), bytes)| (entry.name().to_string(), BlocksBytes { blocks, bytes }))
            .collect(),
        sizes: totals.map(|totals| totals.request_sizes.clone()).unwrap_or_default(),
    }
}

fn freed(story: &Story, totals: Option<&Totals>, always: bool) -> Freed {
    let latest = story.ledger.latest();
    Freed {
        blocks: latest.freed_blocks,
        chunk_bytes: latest.freed_bytes,
        // Between windows blocks are made and freed unseen.
        from_before: if always { story.ledger.blocks_from_before() } else { 0 },
        null: totals.map_or(0, |totals| totals.free_null),
        mapped_blocks: totals.map_or(0, |totals| totals.freed_mapped_blocks),
        mapped_bytes: totals.map_or(0, |totals| totals.freed_mapped_bytes),
        sizes: totals.map(|totals| totals.freed_sizes.clone()).unwrap_or_default(),
    }
}
