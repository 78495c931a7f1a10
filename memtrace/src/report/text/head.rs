//! Who was traced, how completely, and what it comes to.

use memtrace_analysis::event::{AllocatorKind, Depth, EndReason};
use memtrace_analysis::report::{Confidence, Counted, Coverage, Report, TargetSection};

use crate::report::layout::{Page, Section};
use crate::report::units::{change, count, lasting, pages, percent, plural, regrouped, resident};

pub fn head(page: &mut Page, report: &Report) {
    let Report { target, coverage, .. } = report;
    let facts = [
        allocator(target),
        threads(report),
        lasting(coverage.duration_ns),
        completeness(target, coverage),
    ];
    let first = format!("memtrace: {} (pid {})", target.name, target.pid);
    page.headline(&first, &format!("   {}", facts.join("   ")));
    if target.command != target.name && !target.command.is_empty() {
        page.faint(&format!("          {}", shortened(&target.command)));
    }
    for line in [told_by(target), memory(target), life(report), ending(target, coverage)]
        .into_iter()
        .flatten()
    {
        page.faint(&format!("          {line}"));
    }
}

/// What was found, the most important first, as the analysis ordered it.
pub fn findings(report: &Report) -> Section {
    let mut section = Section::new("IN SHORT");
    for finding in &report.findings {
        let sure = match finding.confidence {
            Confidence::Proven => "",
            Confidence::Likely => "likely: ",
            Confidence::CannotTell => "cannot tell: ",
        };
        let because = finding
            .because
            .as_ref()
            .map_or_else(String::new, |because| format!(" ({because})"));
        section.line(regrouped(&format!("{sure}{}{because}", finding.text)));
    }
    section
}

fn allocator(target: &TargetSection) -> String {
    let name = match target.libc.kind {
        AllocatorKind::Glibc => "glibc",
        AllocatorKind::GlibcStatic => "static glibc",
        AllocatorKind::Musl => "musl",
        AllocatorKind::Jemalloc => "jemalloc",
        AllocatorKind::Tcmalloc => "tcmalloc",
        AllocatorKind::Mimalloc => "mimalloc",
        AllocatorKind::Unknown => "unknown allocator",
    };
    match &target.libc.version {
        Some(version) => format!("{name} {version}"),
        None => name.to_owned(),
    }
}

/// Whose malloc it is, where that is not the plain case.
fn told_by(target: &TargetSection) -> Option<String> {
    let plain = target.libc.kind == AllocatorKind::Glibc || target.libc.evidence.is_empty();
    (!plain).then(|| target.libc.evidence.clone())
}

/// How many threads it has, or had when it had most.
fn threads(report: &Report) -> String {
    let now = report.target.threads.max(1);
    let most = report.threads.most_at_once;
    if most > now {
        format!("up to {}", plural(most.into(), "thread"))
    } else {
        plural(now.into(), "thread")
    }
}

fn completeness(target: &TargetSection, coverage: &Coverage) -> String {
    let lost = format!("{} lost", plural(coverage.lost_events, "event"));
    let counted = match coverage.calls_counted() {
        Counted::Always if target.from_birth => "every call counted".to_owned(),
        Counted::Always => "every call since the attach counted".to_owned(),
        Counted::Sometimes => format!("calls counted in {} of the time", percent(coverage.calls_fraction)),
        Counted::Never if coverage.depth == Depth::SlowPath => "the allocator's slow path only".to_owned(),
        Counted::Never => "system calls only".to_owned(),
    };
    if coverage.syscalls_fraction < 1.0 {
        let watched = percent(coverage.syscalls_fraction);
        return format!("{counted}, system calls watched in {watched} of the time, {lost}");
    }
    format!("{counted}, {lost}")
}

/// Threads and children that came and went.
fn life(report: &Report) -> Option<String> {
    let life = &report.threads;
    let mut parts = Vec::new();
    if life.started > 0 {
        // The first thread is not one that was started, but ends with the process.
        let first = u64::from(report.coverage.ended == Some(EndReason::ProcessExited));
        parts.push(format!(
            "{} started, {} ended",
            plural(life.started, "thread"),
            count(life.exited.saturating_sub(first))
        ));
    }
    if life.forks > 0 {
        let traced = match life.forks_followed {
            0 => " (not traced; --follow does)".to_owned(),
            n if n == life.forks => " (traced)".to_owned(),
            n => format!(" ({} traced)", count(n)),
        };
        parts.push(format!(
            "{} made{traced}",
            if life.forks == 1 {
                "1 child process".to_owned()
            } else {
                format!("{} child processes", count(life.forks))
            }
        ));
    }
    (!parts.is_empty()).then(|| parts.join("   "))
}

fn memory(target: &TargetSection) -> Option<String> {
    let mut parts = Vec::new();
    match (target.resident_bytes_begin, target.resident_bytes_end) {
        // At its birth a process has next to nothing.
        (Some(begin), Some(end)) if !target.from_birth => {
            parts.push(format!("RSS {} -> {}", resident(begin), resident(end)));
        }
        (_, Some(end)) => parts.push(format!("RSS {} at the end", resident(end))),
        (_, None) => {}
    }
    if let (Some(begin), Some(end)) = (target.break_begin, target.break_end)
        && target.execs == 0
    {
        parts.push(format!("break {}", change(begin, end, pages)));
    }
    (!parts.is_empty()).then(|| parts.join("   "))
}

/// How the trace ended, where that is worth a word.
fn ending(target: &TargetSection, coverage: &Coverage) -> Option<String> {
    let mut parts = Vec::new();
    match target.execs {
        0 => {}
        1 => parts.push("replaced its program once (exec)".to_owned()),
        n => parts.push(format!("replaced its program {} times (exec)", count(n.into()))),
    }
    match coverage.ended {
        Some(EndReason::ProcessExited) => parts.push(exit_status(target.exit_status)),
        Some(EndReason::Failed) => parts.push("the trace ended early".to_owned()),
        Some(EndReason::TimeUp | EndReason::Interrupted) => {}
        None => parts.push("the record of this trace has no end".to_owned()),
    }
    (!parts.is_empty()).then(|| parts.join("   "))
}

/// A wait status in words.
fn exit_status(status: Option<i32>) -> String {
    match status {
        None => "the process ended".to_owned(),
        Some(status) if status & 0x7f == 0 => format!("exited with status {}", status >> 8 & 0xff),
        Some(status) => format!("ended by signal {}", status & 0x7f),
    }
}

/// A command line that leaves the rest of the page in sight.
fn shortened(command: &str) -> String {
    const MOST: usize = 100;
    if command.chars().count() <= MOST {
        return command.to_owned();
    }
    let kept: String = command.chars().take(MOST - 4).collect();
    format!("{kept} ...")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_status_is_put_into_words() {
        assert_eq!(exit_status(Some(0)), "exited with status 0");
        assert_eq!(exit_status(Some(3 << 8)), "exited with status 3");
        assert_eq!(exit_status(Some(11)), "ended by signal 11");
        assert_eq!(exit_status(Some(0x80 | 6)), "ended by signal 6");
        assert_eq!(exit_status(None), "the process ended");
    }

    #[test]
    fn a_long_command_is_cut() {
        assert_eq!(shortened("ls -l"), "ls -l");
        assert_eq!(shortened(&"é".repeat(200)).chars().count(), 100);
    }
}
