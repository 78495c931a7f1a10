//! The list of steps; of a long one, the first ones and the last.

use std::ops::Range;

use memtrace_analysis::report::{Batch, BatchScope, Cause, DIRECT, MAX_STEPS, Report, Step, StepKind, UNKNOWN};

use crate::report::layout::{Align, Table};
use crate::report::units::{asked, at, count, pages, plural};

/// Up to so many steps are all shown.
const ALL: usize = 12;
/// Of more than that, so many at the head and at the tail.
const HEAD: usize = 6;
const TAIL: usize = 3;

pub fn table(report: &Report) -> Table {
    let steps = &report.growth.steps;
    let kinds = steps.iter().any(|step| step.kind != StepKind::Brk);
    let mut columns = vec![
        ("#", Align::Right),
        ("at", Align::Right),
        ("thread", Align::Right),
        ("step", Align::Right),
    ];
    if kinds {
        columns.push(("kind", Align::Left));
    }
    columns.extend([("caused by", Align::Left), ("batch before it", Align::Left)]);
    let mut table = Table::new(&columns);
    let hidden = hidden(steps);
    for (index, step) in steps.iter().enumerate() {
        if index == hidden.start && !hidden.is_empty() {
            table.remark(in_between(report, &steps[hidden.clone()]));
        }
        if !hidden.contains(&index) {
            table.row(row(report, index, step, kinds));
        }
    }
    table
}

pub const fn kind_name(kind: StepKind) -> &'static str {
    match kind {
        StepKind::Brk => "break",
        StepKind::Mmap => "mapped block",
        StepKind::Arena => "thread arena",
        StepKind::ArenaSegment => "new arena segment",
        StepKind::MmapMain => "main arena, mapped",
        StepKind::Mremap => "mapped block grown",
    }
}

fn row(report: &Report, index: usize, step: &Step, kinds: bool) -> Vec<String> {
    let mut size = pages(step.bytes);
    if step.predicted_bytes.is_some_and(|predicted| predicted != step.bytes) {
        size.insert_str(0, "! ");
    }
    // Where the middle was not kept, the steps behind it keep their numbers.
    let left_out = if index < MAX_STEPS {
        0
    } else {
        report.growth.steps_omitted
    };
    let mut cells = vec![
        count(index as u64 + left_out + 1),
        at(step.time_ns.saturating_sub(report.coverage.begin_ns)),
        step.tid.to_string(),
        size,
    ];
    if kinds {
        cells.push(kind_name(step.kind).to_owned());
    }
    cells.extend([cause(&step.cause), batch(step.batch.as_ref(), report.target.from_birth)]);
    cells
}

fn cause(cause: &Cause) -> String {
    match cause.entry.as_str() {
        DIRECT => "no allocation".to_owned(),
        UNKNOWN => "unknown".to_owned(),
        // It asks for nothing; what grows in its course is glibc's own need.
        "free" => "free".to_owned(),
        entry if !cause.request_known => format!("{entry}(?)"),
        entry => format!("{entry}({})", cause.request),
    }
}

fn batch(batch: Option<&Batch>, from_birth: bool) -> String {
    let Some(batch) = batch else {
        return "not counted".to_owned();
    };
    if batch.first && !from_birth {
        return "not known: before the attach".to_owned();
    }
    if batch.blocks == 0 {
        return "-".to_owned();
    }
    let whose = match batch.scope {
        BatchScope::Process => "",
        BatchScope::Thread => " of the thread",
        BatchScope::Threads => " of the arena's threads",
    };
    format!(
        "{}, {}{whose}",
        plural(batch.blocks, "block"),
        asked(batch.requested_bytes)
    )
}

/// True for steps a reader need not see side by side.
fn alike(a: &Step, b: &Step) -> bool {
    a.kind == b.kind && a.bytes == b.bytes && a.cause.entry == b.cause.entry && a.reason == b.reason
}

/// Which steps of a list are not shown.
const fn hidden(steps: &[Step]) -> Range<usize> {
    if steps.len() <= ALL {
        return 0..0;
    }
    HEAD..steps.len() - TAIL
}

/// What stands for the steps that are not shown.
fn in_between(report: &Report, hidden: &[Step]) -> String {
    let n = count((hidden.len() as u64).saturating_add(report.growth.steps_omitted));
    let same = report.growth.steps_omitted == 0 && hidden.windows(2).all(|pair| matches!(pair, [a, b] if alike(a, b)));
    if same {
        format!("... {n} more like this")
    } else {
        format!("... {n} more, which the figures above count")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(bytes: u64) -> Step {
        Step {
            time_ns: 0,
            tid: 1,
            kind: StepKind::Brk,
            from: 0,
            to: bytes,
            bytes,
            predicted_bytes: Some(bytes),
            reason: None,
            arena: None,
            cause: Cause {
                entry: "malloc".into(),
                request: 64,
                attribution: "proven".into(),
                request_known: true,
            },
            batch: Some(Batch::default()),
        }
    }

    #[test]
    fn a_short_list_is_shown_whole() {
        let steps: Vec<Step> = (0..12).map(|_| step(4096)).collect();
        assert!(hidden(&steps).is_empty());
    }

    #[test]
    fn a_long_one_shows_its_ends() {
        let steps: Vec<Step> = (0..44).map(|_| step(4096)).collect();
        assert_eq!(hidden(&steps), 6..41);
        assert!(steps[hidden(&steps)].windows(2).all(|pair| alike(&pair[0], &pair[1])));
        assert!(!alike(&step(4096), &step(8192)));
    }
}
