//! What the program asked of the allocator: blocks taken and blocks freed.

use memtrace_analysis::event::Entry;
use memtrace_analysis::report::{Counted, Estimate, Report};

use crate::report::layout::Section;
use crate::report::units::{asked, count, percent, plural};

pub fn allocations(report: &Report) -> Section {
    let mut section = Section::new("ALLOCATIONS");
    let Some(allocated) = &report.allocated else {
        section.line(if report.coverage.owners_told {
            "not counted at this depth (--depth calls counts every call)"
        } else {
            "not counted: no entry point of the allocator could be probed"
        });
        return section;
    };
    // A block is counted with what it was made for; what realloc made of it later shows when it is freed.
    let resized = report
        .realloc
        .is_some_and(|realloc| realloc.in_place + realloc.moved > 0);
    section.line(format!(
        "{}, {} asked{}",
        plural(allocated.blocks, "block"),
        asked(allocated.requested_bytes),
        if resized {
            ", before realloc changed their sizes"
        } else {
            ""
        }
    ));
    let calls: Vec<String> = Entry::ALL
        .iter()
        .filter(|entry| !matches!(entry, Entry::Free | Entry::MallocTrim))
        .filter_map(|entry| {
            let calls = called(report, *entry);
            (calls > 0).then(|| format!("{} {}", entry.name(), count(calls)))
        })
        .collect();
    for row in calls.chunks(5) {
        section.line(row.join("   "));
    }
    if let Some(outcomes) = realloc(report) {
        section.faint(outcomes);
    }
    if allocated.failed > 0 {
        section.warning(format!("{} failed", plural(allocated.failed, "call")));
    }
    if let Some(estimates) = &report.coverage.estimates {
        let about = if estimates.lower_bound { "at least" } else { "about" };
        section.line(format!(
            "these are of {} in which calls were counted, {} of the time; {about} {} in all, {} of them freed{}",
            plural(report.coverage.windows, "window"),
            percent(report.coverage.calls_fraction),
            estimate(&estimates.allocated_blocks, "block"),
            estimate(&estimates.freed_blocks, "block"),
            if estimates.lower_bound {
                ": counting slows such a storm down, so that windows show less than there is"
            } else {
                ""
            },
        ));
    }
    section
}

/// What is left, which only a trace from birth can say exactly.
pub fn live(report: &Report) -> Section {
    let mut section = Section::new("LIVE");
    if report.target.execs > 0 {
        return section;
    }
    let Some(live_blocks) = report.live_blocks else {
        if report.coverage.calls_counted() == Counted::Sometimes {
            section.line("not known from calls, since not all of them were counted; malloc's books say it");
        }
        return section;
    };
    let live = plural(live_blocks, "block");
    if report.target.from_birth {
        section.line(format!("{live} not freed"));
    } else if live_blocks > 0 {
        section.line(format!("at least {live} of this trace not freed"));
    }
    section
}

pub fn freed(report: &Report) -> Section {
    let mut section = Section::new("FREED");
    let Some(freed) = &report.freed else { return section };
    section.line(format!(
        "{}, {} of chunks",
        plural(freed.blocks, "block"),
        asked(freed.chunk_bytes)
    ));
    let to_system = report.returned.frees_munmap + report.returned.frees_trim;
    let mut line = format!(
        "free {} (to the system: {})",
        count(called(report, Entry::Free)),
        count(to_system)
    );
    if freed.null > 0 {
        line += &format!("   of NULL {}", count(freed.null));
    }
    if freed.from_before > 0 {
        line += &format!("   at least {} from before the attach", count(freed.from_before));
    }
    if freed.mapped_blocks > 0 {
        line += &format!(
            "   with a mapping of their own {} ({})",
            count(freed.mapped_blocks),
            asked(freed.mapped_bytes)
        );
    }
    section.line(line);
    section
}

/// A figure with its standard error.
fn estimate(figure: &Estimate, noun: &str) -> String {
    let value = plural(figure.value.round() as u64, noun);
    match figure.standard_error {
        Some(error) => format!("{value} (+-{})", count(error.round() as u64)),
        None => format!("{value} (how surely is not known: one window)"),
    }
}

pub fn called(report: &Report, entry: Entry) -> u64 {
    report
        .calls
        .as_ref()
        .map_or(0, |calls| calls.get(entry.name()).copied().unwrap_or(0))
}

/// What became of reallocated blocks, where returns were seen.
fn realloc(report: &Report) -> Option<String> {
    let realloc = report.realloc.as_ref()?;
    let parts: Vec<String> = [
        ("of NULL", realloc.null),
        ("to size 0", realloc.zero),
        ("in place", realloc.in_place),
        ("moved", realloc.moved),
        ("failed", realloc.failed),
        ("of a mapped block", realloc.mapped),
    ]
    .into_iter()
    .filter(|(_, n)| *n > 0)
    .map(|(what, n)| format!("{} {what}", count(n)))
    .collect();
    (!parts.is_empty()).then(|| format!("realloc: {}", parts.join(", ")))
}
