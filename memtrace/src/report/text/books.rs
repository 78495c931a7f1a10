//! What malloc's own books said at both ends of the trace.

use memtrace_analysis::event::AllocatorKind;
use memtrace_analysis::glibc::words::{bytes, counted};
use memtrace_analysis::report::{Report, TimedLook};

use crate::report::layout::Section;

pub fn books(report: &Report) -> Section {
    let mut section = Section::new("MALLOC'S BOOKS");
    let looks = &report.looks;
    if let Some(other) = another(report.target.libc.kind) {
        section.line(format!(
            "glibc's, though the program's malloc is {other}'s, whose books are not read"
        ));
    }
    for (when, look) in [("at the begin", &looks.begin), ("at the end", &looks.end)] {
        if let Some(look) = look {
            level(&mut section, when, look);
        }
    }
    if let Some(reason) = &looks.no_end {
        section.faint(format!("not known at the end: {reason}"));
    }
    let latest = looks.end.as_ref().or(looks.begin.as_ref());
    if let Some(verdict) = latest.and_then(|look| look.look.verdict.as_ref()) {
        section.line(verdict.text.clone());
    }
    if looks.end.as_ref().is_some_and(|end| end.look.heap.is_some()) {
        section.faint(format!(
            "more, while it runs: memtrace explain --pid {}",
            report.target.pid
        ));
    }
    section
}

/// The allocator that serves instead of glibc's.
const fn another(kind: AllocatorKind) -> Option<&'static str> {
    match kind {
        AllocatorKind::Jemalloc => Some("jemalloc"),
        AllocatorKind::Tcmalloc => Some("tcmalloc"),
        AllocatorKind::Mimalloc => Some("mimalloc"),
        AllocatorKind::Glibc | AllocatorKind::GlibcStatic | AllocatorKind::Musl | AllocatorKind::Unknown => None,
    }
}

fn level(section: &mut Section, when: &str, look: &TimedLook) {
    let look = &look.look;
    let Some(heap) = &look.heap else {
        let reason = look.heap_unknown.as_deref().unwrap_or("they could not be read");
        section.faint(format!("not known {when}: {reason}"));
        return;
    };
    let about = if look.torn { " (about: it moved meanwhile)" } else { "" };
    section.line(format!(
        "{when:<12}  {} live in {}, {} freed and kept; malloc_trim(0) would return {}{about}",
        bytes(heap.live_bytes),
        counted(heap.live_blocks, "block"),
        bytes(look.resident.map_or(0, |resident| resident.retained)),
        bytes(look.trim_would_return_bytes.unwrap_or(0))
    ));
}
