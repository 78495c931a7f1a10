//! The look in a few lines, for the report of a trace.

use memtrace_analysis::glibc::look::Look;
use memtrace_analysis::glibc::words::{bytes, counted};

use super::text::WIDTH;
use crate::report::layout::{Section, wrap};

/// What the looks at the begin and at the end of a trace come to.
pub fn section(begin: Option<&Look>, end: Option<&Look>) -> Section {
    let mut section = Section::new("MALLOC'S BOOKS");
    match (begin, end) {
        (Some(begin), Some(end)) => {
            level(&mut section, "at the begin", begin);
            level(&mut section, "at the end", end);
            judgement(&mut section, end);
        }
        (Some(only), None) | (None, Some(only)) => {
            let when = if begin.is_some() { "at the begin" } else { "at the end" };
            level(&mut section, when, only);
            judgement(&mut section, only);
        }
        (None, None) => {}
    }
    section
}

fn level(section: &mut Section, when: &str, look: &Look) {
    let Some(heap) = &look.heap else {
        let reason = look.heap_unknown.as_deref().unwrap_or("they could not be read");
        for line in wrap(&format!("{when}: {reason}"), WIDTH) {
            section.faint(line);
        }
        return;
    };
    let about = if look.torn {
        " (about: the heap moved while it was read)"
    } else {
        ""
    };
    section.line(format!(
        "{when:<12}  {} live in {}, {} freed and kept, {} of it malloc_trim(0) would return{about}",
        bytes(heap.live_bytes),
        counted(heap.live_blocks, "block"),
        bytes(look.resident.retained),
        bytes(look.trim_would_return_bytes.unwrap_or(0))
    ));
}

fn judgement(section: &mut Section, look: &Look) {
    for line in wrap(&look.verdict.text, WIDTH) {
        section.line(line);
    }
}
