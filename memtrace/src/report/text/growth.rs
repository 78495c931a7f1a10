//! What the allocator took from the system: steps by kind and size, each with its cause, and what the rule does not
//! explain.

use std::collections::BTreeMap;

use memtrace_analysis::report::{Growth, Report, Step, StepBucket, StepKind};

use super::steps;
use crate::report::layout::{Align, Section, Table};
use crate::report::units::{at, count, pages, plural, regrouped};

/// Sizes named in one line; more get a table.
const BUCKETS_IN_LINE: usize = 4;
/// Rows of that table.
const BUCKETS_IN_TABLE: usize = 8;

pub fn growth(report: &Report) -> Section {
    let mut section = Section::new("HEAP GROWTH");
    let growth = &report.growth;
    for line in headlines(growth) {
        section.line(line);
    }
    if section.is_empty() {
        section.line(if !report.coverage.owners_told {
            "cannot be told: the allocator's calls are not watched here; SYSTEM CALLS has what moved memory"
        } else if report.allocated.as_ref().is_some_and(|allocated| allocated.blocks == 0) {
            "none: no block was allocated"
        } else {
            "none: every block was served from memory the allocator already had"
        });
    }
    if growth.histogram.len() > BUCKETS_IN_LINE {
        section.table(&buckets(&growth.histogram, growth.histogram_omitted));
    }
    if !growth.steps.is_empty() {
        section.table(&steps::table(report));
    }
    mismatches(&mut section, report);
    section
}

/// A line for the break, one for mapped blocks, one for thread arenas, where there was any.
fn headlines(growth: &Growth) -> Vec<String> {
    let mut lines = Vec::new();
    if growth.brk_steps_total > 0 {
        lines.push(format!(
            "{} of the break, {}{}, {}",
            plural(growth.brk_steps_total, "step"),
            pages(growth.brk_bytes),
            in_line(&growth.histogram, &[StepKind::Brk]),
            verdict(
                growth.brk_steps_total,
                growth.brk_steps_matching,
                growth.brk_steps_unpredicted,
                growth.brk_steps_direct
            )
        ));
    }
    if growth.mapped_blocks > 0 {
        lines.push(format!(
            "{} with a mapping of {} own, {}{}, {}",
            plural(growth.mapped_blocks, "block"),
            if growth.mapped_blocks == 1 { "its" } else { "their" },
            pages(growth.mapped_bytes),
            in_line(&growth.histogram, &[StepKind::Mmap]),
            verdict(growth.mapped_blocks, growth.mapped_matching, 0, 0)
        ));
    }
    if growth.main_pieces > 0 {
        lines.push(format!(
            "{} of the main arena mapped, {}, since the break is blocked",
            plural(growth.main_pieces, "piece"),
            pages(growth.main_piece_bytes)
        ));
    }
    if growth.arena_steps_total > 0 {
        lines.push(format!(
            "{} of thread arenas, {}{}, {}",
            plural(growth.arena_steps_total, "step"),
            pages(growth.arena_bytes),
            in_line(&growth.histogram, &[StepKind::Arena]),
            verdict(growth.arena_steps_total, growth.arena_steps_matching, 0, 0)
        ));
    }
    lines
}

/// `: 6 x 132 KiB`, where few sizes occur.
fn in_line(histogram: &[StepBucket], kinds: &[StepKind]) -> String {
    let of_kind: Vec<&StepBucket> = histogram.iter().filter(|b| kinds.contains(&b.kind)).collect();
    if of_kind.is_empty() || of_kind.len() > BUCKETS_IN_LINE {
        return String::new();
    }
    let sizes: Vec<String> = of_kind
        .iter()
        .map(|bucket| format!("{} x {}", count(bucket.count), pages(bucket.bytes)))
        .collect();
    format!(": {}", sizes.join(", "))
}

fn verdict(total: u64, matching: u64, unpredicted: u64, direct: u64) -> String {
    if matching == total {
        return "all as glibc's rule predicts".to_owned();
    }
    if unpredicted == total {
        return "without a prediction".to_owned();
    }
    let mut text = format!("{} as glibc's rule predicts", count(matching));
    if unpredicted > 0 {
        text += &format!(", {} without a prediction", count(unpredicted));
    }
    if direct > 0 {
        text += &format!(", {} made by no allocation", count(direct));
    }
    let otherwise = total
        .saturating_sub(matching)
        .saturating_sub(unpredicted)
        .saturating_sub(direct);
    if otherwise > 0 {
        text += &format!(", {} otherwise", count(otherwise));
    }
    text
}

/// The most frequent sizes.
fn buckets(histogram: &[StepBucket], omitted: u64) -> Table {
    let mut sorted: Vec<&StepBucket> = histogram.iter().collect();
    sorted.sort_by(|a, b| {
        b.count
            .cmp(&a.count)
            .then(a.kind.cmp(&b.kind))
            .then(a.bytes.cmp(&b.bytes))
    });
    let mut table = Table::new(&[
        ("times", Align::Right),
        ("step", Align::Right),
        ("kind", Align::Left),
        ("as predicted", Align::Right),
    ]);
    for bucket in sorted.iter().take(BUCKETS_IN_TABLE) {
        table.row(vec![
            count(bucket.count),
            pages(bucket.bytes),
            steps::kind_name(bucket.kind).to_owned(),
            count(bucket.matching),
        ]);
    }
    if let Some(rest) = sorted.get(BUCKETS_IN_TABLE..).filter(|rest| !rest.is_empty()) {
        let times: u64 = rest.iter().map(|bucket| bucket.count).sum();
        table.remark(format!(
            "... {} of {} more sizes",
            plural(times.saturating_add(omitted), "step"),
            if omitted > 0 {
                "many".to_owned()
            } else {
                count(rest.len() as u64)
            }
        ));
    }
    table
}

/// Steps that are not what the rule says, grouped by the reason.
fn mismatches(section: &mut Section, report: &Report) {
    let mut by_reason: BTreeMap<&str, Vec<&Step>> = BTreeMap::new();
    // Of what was asked for without being seen there is no rule to go by; the headline counts it.
    for step in report.growth.steps.iter().filter(|step| step.cause.request_known) {
        let reason = match (&step.reason, step.predicted_bytes) {
            // A step may have its remark and still be as predicted.
            (_, Some(predicted)) if predicted == step.bytes => continue,
            (Some(reason), _) => reason.as_str(),
            (None, Some(_)) => "reason not known",
            (None, None) => continue,
        };
        by_reason.entry(reason).or_default().push(step);
    }
    for (reason, steps) in by_reason {
        let [first, ..] = steps.as_slice() else { continue };
        let begin = report.coverage.begin_ns;
        section.warning(format!(
            "{} not as the rule: {} (first at {}: {}{})",
            plural(steps.len() as u64, "step"),
            regrouped(reason),
            at(first.time_ns.saturating_sub(begin)),
            pages(first.bytes),
            first
                .predicted_bytes
                .map_or_else(String::new, |predicted| format!(", predicted {}", pages(predicted)))
        ));
    }
}
