//! What went back to the system, and by whose doing.

use memtrace_analysis::event::Entry;
use memtrace_analysis::report::{Report, TrimReport};

use super::calls::called;
use crate::report::layout::Section;
use crate::report::units::{at, change, count, pages, plural, resident};

/// malloc_trim calls shown one by one at the head and at the tail of a long list.
const HEAD: usize = 5;
const TAIL: usize = 1;

pub fn returned(report: &Report) -> Section {
    let mut section = Section::new("RETURNED");
    let returned = &report.returned;
    let led = returned.frees_munmap + returned.frees_trim;
    let frees = led + returned.frees_nothing.unwrap_or(0);
    if frees > 0 {
        let mut parts = Vec::new();
        if returned.frees_munmap > 0 {
            parts.push(format!(
                "{} unmapped {}",
                count(returned.frees_munmap),
                pages(returned.by_free_munmap_bytes)
            ));
        }
        if returned.frees_trim > 0 {
            parts.push(format!(
                "{} trimmed the heap by {}",
                count(returned.frees_trim),
                pages(returned.by_free_trim_bytes)
            ));
        }
        if let Some(nothing) = returned.frees_nothing {
            parts.push(match (nothing, parts.is_empty()) {
                (n, true) if n == frees => "none gave anything back: glibc kept all of it for reuse".to_owned(),
                (0, _) => "none without effect on the system".to_owned(),
                (n, _) => format!("{} gave nothing back", count(n)),
            });
        }
        let blocks = report.freed.as_ref().filter(|_| returned.frees_nothing.is_some());
        section.line(match blocks {
            Some(freed) => format!("free {}: {}", plural(freed.blocks, "block"), parts.join(", ")),
            None => format!("free: {} (others were not counted)", parts.join(", ")),
        });
    } else if called(report, Entry::Free) > 0 {
        section.line("free: no block");
    }
    let others = [
        ("realloc", returned.by_realloc_bytes),
        ("allocating calls", returned.by_other_calls_bytes),
    ];
    for (who, bytes) in others {
        if bytes > 0 {
            section.line(format!("{who}: {}", pages(bytes)));
        }
    }
    trims(&mut section, report);
    if section.is_empty() {
        section.line(if report.freed.is_some() {
            "nothing: no free, no malloc_trim"
        } else {
            "nothing"
        });
    }
    section
}

fn trims(section: &mut Section, report: &Report) {
    let trims = &report.trims;
    let begin = report.coverage.begin_ns;
    if trims.len() <= HEAD + TAIL + 1 && report.trims_omitted == 0 {
        for trim in trims {
            section.line(one(trim, begin));
        }
        return;
    }
    for trim in trims.iter().take(HEAD) {
        section.line(one(trim, begin));
    }
    section.faint(format!(
        "... {} more calls of malloc_trim",
        count((trims.len().saturating_sub(HEAD + TAIL) as u64).saturating_add(report.trims_omitted))
    ));
    for trim in trims.iter().skip(trims.len().saturating_sub(TAIL).max(HEAD)) {
        section.line(one(trim, begin));
    }
    section.line(format!(
        "in all {} by malloc_trim",
        pages(report.returned.by_trim_bytes)
    ));
}

fn one(trim: &TrimReport, begin: u64) -> String {
    let mut parts = Vec::new();
    if let Some(after) = &trim.after {
        match (trim.before.break_end, after.break_end) {
            (Some(from), Some(to)) if from != to => parts.push(format!("break {}", change(from, to, pages))),
            (Some(_), Some(_)) => parts.push("break unchanged".to_owned()),
            _ if trim.break_lowered_bytes > 0 => {
                parts.push(format!("break -{}", pages(trim.break_lowered_bytes)));
            }
            _ => {}
        }
    } else {
        parts.push("its return was not seen".to_owned());
        if trim.break_lowered_bytes > 0 {
            parts.push(format!("break -{}", pages(trim.break_lowered_bytes)));
        }
    }
    if trim.madvise_calls > 0 {
        parts.push(format!(
            "{} of madvise over {}",
            plural(trim.madvise_calls, "call"),
            pages(trim.madvised_bytes)
        ));
    }
    if trim.unmapped_bytes > 0 {
        parts.push(format!("{} unmapped", pages(trim.unmapped_bytes)));
    }
    if let Some(after) = &trim.after
        && let (Some(from), Some(to)) = (trim.before.resident_bytes, after.resident_bytes)
    {
        parts.push(format!("RSS {}", change(from, to, resident)));
    }
    if trim.returned_bytes == 0 && trim.result == Some(1) {
        parts.push("though it says that it gave something back".to_owned());
    }
    format!(
        "malloc_trim({}) at {}: {}",
        trim.pad,
        at(trim.time_ns.saturating_sub(begin)),
        parts.join(", ")
    )
}
