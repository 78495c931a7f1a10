//! What can be concluded from a report, in plain words, and how sure it is.
//!
//! Each rule looks at the finished report and answers with a finding or with nothing. Lost records, frames that could
//! not be checked and entry points that are not watched make what rests on them uncertain, and are named as the reason.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::event::Depth;
use crate::report::{Confidence, Counted, Finding, Report, StepKind};
use crate::rule::DEFAULT_THRESHOLD;
use crate::threshold::grouped;

/// Repetitions from which a pattern is worth a word.
const OFTEN: u64 = 100;

/// What a conclusion rests on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rests {
    /// Counters kept in the kernel.
    OnCounts,
    /// Records of system calls and whose they are.
    OnRecords,
}

pub fn findings(report: &Report) -> Vec<Finding> {
    [
        not_watched(report),
        break_steps(report),
        arena_steps(report),
        foreign_break(report),
        break_blocked(report),
        kept_for_reuse(report),
        trim_thrash(report),
        mapping_churn(report),
        threshold_raised(report),
        threshold_frozen(report),
        trims(report),
        failures(report),
        from_before(report),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn finding(report: &Report, kind: &str, rests: Rests, text: String) -> Finding {
    let because = doubt(report, rests);
    let confidence = if because.is_some() {
        Confidence::Likely
    } else {
        Confidence::Proven
    };
    Finding {
        kind: kind.to_string(),
        text,
        confidence,
        because,
    }
}

/// What makes a conclusion uncertain.
fn doubt(report: &Report, rests: Rests) -> Option<String> {
    let Report { coverage, syscalls, .. } = report;
    if rests == Rests::OnCounts {
        return None;
    }
    if coverage.lost_events > 0 {
        return Some(format!("{} were lost", count(coverage.lost_events, "record")));
    }
    if coverage.lost_threads > 0 {
        return Some("some threads had no slot, so their system calls could not be attributed".to_string());
    }
    if coverage.syscalls_fraction < 1.0 {
        return Some("system calls were not watched all the time".to_string());
    }
    if !coverage.owners_told {
        return None;
    }
    let unknown = syscalls
        .values()
        .fold(0, |sum: u64, calls| sum.saturating_add(calls.unknown));
    if unknown > 0 {
        return Some(format!("who made {} could not be told", count(unknown, "system call")));
    }
    (!coverage.capabilities.frame_check)
        .then(|| "this kernel does not show whether an allocator call is still on the stack".to_string())
}

/// "1 record", "2 records".
fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number))
}

/// Bytes as people say them.
fn bytes(number: u64) -> String {
    if number >= 10 << 20 {
        format!("{} MiB", grouped(number >> 20))
    } else if number >= 10 << 10 {
        format!("{} KiB", grouped(number >> 10))
    } else {
        format!("{} bytes", grouped(number))
    }
}

fn not_watched(report: &Report) -> Option<Finding> {
    (!report.coverage.owners_told).then(|| Finding {
        kind: "allocator_not_watched".to_string(),
        text: "which allocations caused the growth cannot be told: only system calls were watched".to_string(),
        confidence: Confidence::CannotTell,
        because: Some("no entry point of an allocator has a probe".to_string()),
    })
}

fn break_steps(report: &Report) -> Option<Finding> {
    let growth = &report.growth;
    let total = growth.brk_steps_total.saturating_sub(growth.brk_steps_direct);
    // Whose steps they are is not known where no allocator is watched, and so not by which rule they go.
    if total == 0 || !report.coverage.owners_told {
        return None;
    }
    let matching = growth.brk_steps_matching;
    if matching == total {
        let text = match total {
            1 => "the one step of the break that the allocator made is as glibc's rule predicts".to_string(),
            _ => format!(
                "all {} steps of the break that the allocator made are as glibc's rule predicts",
                grouped(total)
            ),
        };
        return Some(finding(report, "break_steps_confirmed", Rests::OnRecords, text));
    }
    let mut text = format!(
        "{} of {} steps of the break that the allocator made are as glibc's rule predicts",
        grouped(matching),
        grouped(total)
    );
    let unpredicted = growth.brk_steps_unpredicted.saturating_sub(growth.brk_steps_direct);
    if unpredicted >= total && report.coverage.depth <= Depth::Syscalls {
        return None;
    }
    if unpredicted >= total.saturating_sub(matching) {
        text.push_str("; the others could not be predicted");
    }
    Some(finding(report, "break_steps_differ", Rests::OnRecords, text))
}

fn arena_steps(report: &Report) -> Option<Finding> {
    let growth = &report.growth;
    if growth.arena_steps_total == 0 {
        return None;
    }
    let (total, matching) = (growth.arena_steps_total, growth.arena_steps_matching);
    let small = growth
        .histogram
        .iter()
        .filter(|bucket| bucket.kind == StepKind::Arena)
        .map(|bucket| bucket.count)
        .max();
    let mut text = format!(
        "thread arenas grew in {} ({} as the rule predicts)",
        count(total, "step"),
        if matching == total {
            "all".to_string()
        } else {
            grouped(matching)
        },
    );
    if small.unwrap_or(0) >= OFTEN {
        text.push_str(": many small mprotect calls, since top_pad does not count there");
    }
    let kind = if matching == total {
        "arena_steps_confirmed"
    } else {
        "arena_steps_differ"
    };
    Some(finding(report, kind, Rests::OnRecords, text))
}

fn foreign_break(report: &Report) -> Option<Finding> {
    let steps = report.growth.brk_steps_direct;
    // Of a heap that is not malloc's, or is not watched, nothing follows.
    if !report.coverage.owners_told {
        return None;
    }
    (steps > 0).then(|| {
        let text = format!(
            "the break was also moved {} outside the allocator: malloc's heap cannot grow or shrink across that",
            if steps == 1 {
                "once".to_string()
            } else {
                format!("{} times", grouped(steps))
            },
        );
        finding(report, "foreign_break", Rests::OnRecords, text)
    })
}

fn break_blocked(report: &Report) -> Option<Finding> {
    let growth = &report.growth;
    (growth.main_pieces > 0).then(|| {
        let text = format!(
            "the break could not be moved, so malloc mapped {} ({}) instead: these are hardly ever given back",
            count(growth.main_pieces, "piece"),
            bytes(growth.main_piece_bytes),
        );
        finding(report, "break_blocked", Rests::OnRecords, text)
    })
}

fn kept_for_reuse(report: &Report) -> Option<Finding> {
    let returned = &report.returned;
    let frees = returned.frees_nothing?;
    if frees == 0 || returned.frees_munmap > 0 || returned.frees_trim > 0 {
        return None;
    }
    let text = format!(
        "none of the {} gave anything back to the system: glibc kept the memory for reuse",
        count(frees, "free")
    );
    Some(finding(report, "kept_for_reuse", Rests::OnRecords, text))
}

/// Many frees that each lower the break, to be raised again soon.
fn trim_thrash(report: &Report) -> Option<Finding> {
    let (returned, growth) = (&report.returned, &report.growth);
    let steps = growth.brk_steps_total.saturating_add(growth.arena_steps_total);
    let led = returned.frees_trim.saturating_add(returned.frees_munmap);
    let frees = returned.frees_nothing.map(|nothing| led.saturating_add(nothing));
    let share = returned.frees_trim.saturating_mul(4);
    if returned.frees_trim < OFTEN || (frees.is_none_or(|frees| share < frees) && steps < returned.frees_trim) {
        return None;
    }
    let text = format!(
        "{} lowered the break or shrank an arena, a system call each: a higher trim threshold would save them",
        match frees {
            Some(frees) => format!("{} of {}", grouped(returned.frees_trim), count(frees, "free")),
            None => count(returned.frees_trim, "free"),
        },
    );
    Some(finding(report, "trim_thrash", Rests::OnRecords, text))
}

/// Blocks that are mapped and unmapped one by one.
fn mapping_churn(report: &Report) -> Option<Finding> {
    let (mapped, unmapped) = (report.growth.mapped_blocks, report.returned.frees_munmap);
    if unmapped < OFTEN || mapped < OFTEN {
        return None;
    }
    let text = format!(
        "{} got a mapping of their own and {} of them were unmapped when freed: two system calls and fresh pages each \
         time{}",
        count(mapped, "block"),
        grouped(unmapped.min(mapped)),
        if report.threshold.dynamic == Some(false) {
            ", since the mmap threshold is fixed"
        } else {
            ""
        },
    );
    Some(finding(report, "mapping_churn", Rests::OnRecords, text))
}

fn threshold_raised(report: &Report) -> Option<Finding> {
    let first = report.threshold.history.first()?;
    let last = report.threshold.history.last()?;
    let by_free = last.cause.starts_with("free of");
    (by_free && last.mmap_threshold > first.mmap_threshold).then(|| {
        let text = format!(
            "freeing mapped blocks has raised the mmap threshold from {} to {}: blocks up to that size now come from \
             the heap, and the top is trimmed only above {}",
            bytes(first.mmap_threshold),
            bytes(last.mmap_threshold),
            bytes(last.trim_threshold),
        );
        finding(report, "threshold_raised", Rests::OnRecords, text)
    })
}

fn threshold_frozen(report: &Report) -> Option<Finding> {
    let last = report.threshold.history.last()?;
    (report.threshold.dynamic == Some(false)).then(|| {
        let own = last.mmap_threshold == DEFAULT_THRESHOLD && last.trim_threshold == DEFAULT_THRESHOLD;
        let text = format!(
            "the thresholds are fixed (mmap {}, trim {}{}): somebody set one of malloc's knobs, which stops glibc from \
             raising them",
            bytes(last.mmap_threshold),
            bytes(last.trim_threshold),
            if own { ", both glibc's own" } else { "" },
        );
        finding(report, "threshold_frozen", Rests::OnRecords, text)
    })
}

fn trims(report: &Report) -> Option<Finding> {
    if report.trims.is_empty() {
        return None;
    }
    let sum = |of: fn(&crate::report::TrimReport) -> u64| {
        report
            .trims
            .iter()
            .fold(0, |sum: u64, trim| sum.saturating_add(of(trim)))
    };
    let returned = sum(|trim| trim.returned_bytes);
    let calls = u64::try_from(report.trims.len())
        .unwrap_or(u64::MAX)
        .saturating_add(report.trims_omitted);
    let resident = sum(|trim| {
        let after = trim.after.and_then(|after| after.resident_bytes);
        trim.before
            .resident_bytes
            .zip(after)
            .map_or(0, |(before, after)| before.saturating_sub(after))
    });
    let text = if returned == 0 {
        format!("{} gave nothing back", count(calls, "malloc_trim call"))
    } else {
        format!(
            "{} gave {} of address space back; the resident size fell by {}",
            count(calls, "malloc_trim call"),
            bytes(returned),
            bytes(resident)
        )
    };
    Some(finding(report, "trimmed", Rests::OnRecords, text))
}

fn failures(report: &Report) -> Option<Finding> {
    let allocated = report.allocated.as_ref()?;
    (allocated.failed > 0).then(|| {
        let inferred = allocated.failed_inferred;
        let mut text = format!("{} returned no memory", count(allocated.failed, "allocator call"));
        if inferred > 0 {
            text.push_str(&format!(", {} of them since the system refused it", grouped(inferred)));
        }
        let rests = if inferred > 0 {
            Rests::OnRecords
        } else {
            Rests::OnCounts
        };
        let mut finding = finding(report, "allocations_failed", rests, text);
        if inferred > 0 && finding.because.is_none() {
            finding.confidence = Confidence::Likely;
            finding.because = Some("told by the last system call of the call having failed".to_string());
        }
        finding
    })
}

fn from_before(report: &Report) -> Option<Finding> {
    // Between windows blocks are made and freed unseen.
    if report.coverage.calls_counted() != Counted::Always {
        return None;
    }
    let before = report.freed.as_ref()?.from_before;
    (before > 0).then(|| {
        let text = format!(
            "at least {} freed had been allocated before the trace began",
            count(before, "block")
        );
        finding(report, "freed_from_before", Rests::OnCounts, text)
    })
}
