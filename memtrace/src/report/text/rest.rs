//! The threshold, the system calls, who else made them, and what this trace cannot say.

use std::collections::BTreeMap;

use memtrace_analysis::event::{AllocatorKind, SyscallKind};
use memtrace_analysis::report::{DirectGroup, DirectKind, Report, ThresholdChange, ThresholdSection};

use crate::report::layout::{Align, Section, Table};
use crate::report::units::{at, count, pages, percent, plural, regrouped};

/// Changes of the threshold shown at the head and the tail of a long history.
const HEAD: usize = 8;
const TAIL: usize = 2;

pub fn threshold(report: &Report) -> Section {
    let mut section = Section::new("MMAP THRESHOLD");
    let threshold = &report.threshold;
    match threshold.history.as_slice() {
        [] => {
            if threshold.dynamic.is_none() {
                return section;
            }
            section.line("not known");
        }
        [only] => section.line(format!(
            "{} throughout (trim threshold {})",
            pages(only.mmap_threshold),
            pages(only.trim_threshold)
        )),
        [first, .., last] => {
            section.line(format!(
                "{} -> {} (trim threshold {} -> {})",
                pages(first.mmap_threshold),
                pages(last.mmap_threshold),
                pages(first.trim_threshold),
                pages(last.trim_threshold)
            ));
            section.table(&history(threshold, report.coverage.begin_ns));
        }
    }
    if threshold.dynamic == Some(false) {
        section.line("fixed: a knob (mallopt, environment or tunable) switched the dynamic rule off");
    }
    let (as_predicted, otherwise) = (threshold.requests_as_predicted, threshold.requests_otherwise);
    if as_predicted + otherwise > 0 {
        section.line(format!(
            "{} went as the threshold says, {} otherwise",
            plural(as_predicted, "large request"),
            count(otherwise)
        ));
    }
    if threshold.agrees_with_process == Some(false) {
        section.warning("what events say of the thresholds differs from what the process holds");
    }
    section
}

fn history(threshold: &ThresholdSection, begin: u64) -> Table {
    let history = threshold.history.as_slice();
    let mut table = Table::new(&[
        ("at", Align::Right),
        ("mmap", Align::Right),
        ("trim", Align::Right),
        ("cause", Align::Left),
    ]);
    let row = |change: &ThresholdChange| {
        vec![
            at(change.time_ns.saturating_sub(begin)),
            pages(change.mmap_threshold),
            pages(change.trim_threshold),
            regrouped(&change.cause),
        ]
    };
    if history.len() <= HEAD + TAIL + 1 && threshold.history_omitted == 0 {
        history.iter().for_each(|change| table.row(row(change)));
        return table;
    }
    history.iter().take(HEAD).for_each(|change| table.row(row(change)));
    let hidden = history.len().saturating_sub(HEAD + TAIL) as u64;
    table.remark(format!(
        "... {} more changes",
        count(hidden.saturating_add(threshold.history_omitted))
    ));
    let tail = history.len().saturating_sub(TAIL).max(HEAD);
    history.iter().skip(tail).for_each(|change| table.row(row(change)));
    table
}

pub fn system_calls(report: &Report) -> Section {
    let mut section = Section::new("SYSTEM CALLS");
    let mut table = Table::new(&[
        ("call", Align::Left),
        ("count", Align::Right),
        ("failed", Align::Right),
        ("by the allocator", Align::Right),
        ("by others", Align::Right),
        ("unknown", Align::Right),
    ]);
    let mut total = 0;
    for kind in SyscallKind::ALL {
        let Some(calls) = report.syscalls.get(kind.name()).filter(|calls| calls.count > 0) else {
            continue;
        };
        total += calls.count;
        table.row(vec![
            kind.name().to_owned(),
            count(calls.count),
            count(calls.failed),
            count(calls.attributed),
            count(calls.direct),
            count(calls.unknown),
        ]);
    }
    let watched = report.coverage.syscalls_fraction;
    section.line(format!(
        "{} that move memory{}",
        plural(total, "call"),
        if watched < 1.0 {
            format!(
                ", in the {} of the time in which system calls were watched",
                percent(watched)
            )
        } else {
            String::new()
        }
    ));
    if total > 0 {
        section.table(&table);
    }
    section
}

pub fn direct(report: &Report) -> Section {
    let mut section = Section::new("DIRECT");
    for group in &report.direct {
        section.line(one_group(group, unwatched(report)));
    }
    section
}

/// The allocator that is in the program or in libc, and whose calls are not watched.
fn unwatched(report: &Report) -> Option<AllocatorKind> {
    let kind = report.target.libc.kind;
    let inside = matches!(
        kind,
        AllocatorKind::Glibc | AllocatorKind::GlibcStatic | AllocatorKind::Musl | AllocatorKind::Unknown
    );
    (inside && report.coverage.capabilities.probed.is_empty()).then_some(kind)
}

fn one_group(group: &DirectGroup, unwatched: Option<AllocatorKind>) -> String {
    let DirectGroup {
        kind,
        module,
        syscalls,
        net_bytes,
    } = group;
    let who = match kind {
        DirectKind::Libc if unwatched == Some(AllocatorKind::Musl) => {
            "musl's C library, its malloc and its loader among it"
        }
        DirectKind::Libc if unwatched.is_some() => "libc, its malloc among it",
        DirectKind::Program if unwatched.is_some() => "the program's own calls, or an allocator's inside it",
        DirectKind::Loader => "the loader (program start, dlopen)",
        DirectKind::ThreadStack => "thread stacks",
        DirectKind::Program => "the program's own calls",
        DirectKind::ProgramBreak => "the program's own brk or sbrk",
        DirectKind::Libc => "libc outside malloc",
        DirectKind::OtherAllocator => "another allocator",
        DirectKind::Runtime => "a language runtime",
        DirectKind::SignalHandler => "a signal handler",
        DirectKind::Unknown => "unknown",
    };
    let module = module
        .as_ref()
        .map_or_else(String::new, |module| format!(" in {module}"));
    let sign = if *net_bytes < 0 { "-" } else { "+" };
    format!(
        "{who}{module}: {} (net {sign}{})",
        list(syscalls),
        pages(net_bytes.unsigned_abs())
    )
}

fn list(calls: &BTreeMap<String, u64>) -> String {
    let parts: Vec<String> = calls.iter().map(|(name, n)| format!("{} {name}", count(*n))).collect();
    parts.join(", ")
}

/// What was lost, then what could not be seen at all; the analysis has put it into sentences.
pub fn not_seen(report: &Report) -> Section {
    let mut section = Section::new("NOT SEEN");
    let coverage = &report.coverage;
    let lost = coverage.lost_events + coverage.lost_threads + coverage.unreadable;
    if lost == 0 && coverage.oddities.is_empty() {
        let unknown: u64 = report.syscalls.values().map(|calls| calls.unknown).sum();
        section.line(format!(
            "nothing lost; {} whose cause is unknown",
            plural(unknown, "system call")
        ));
    }
    for sentence in &coverage.not_seen {
        section.line(regrouped(sentence));
    }
    if coverage.lost_events > 0 {
        section.warning("a larger buffer loses less: --buffer 64M");
    }
    for (kind, n) in &coverage.oddities {
        section.warning(format!("{} x {}", count(*n), kind.replace('_', " ")));
    }
    let ignored = [
        (coverage.second_hits, "second hits of one call"),
        (
            coverage.spurious_frees_thread_exit,
            "frees by libc itself when a thread ends",
        ),
        (
            coverage.spurious_frees_first_free,
            "frees seen twice at a thread's first free",
        ),
    ];
    let ignored: Vec<String> = ignored
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{} {what}", count(n)))
        .collect();
    if !ignored.is_empty() {
        section.faint(format!("rightly left out: {}", ignored.join(", ")));
    }
    section
}
