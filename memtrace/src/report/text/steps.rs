//! The list of steps, long ones shortened: runs of equal steps to their first ones and the last.

use memtrace_analysis::report::{Batch, BatchScope, Cause, DIRECT, MAX_STEPS, Report, Step, StepKind, UNKNOWN};

use crate::report::layout::{Align, Table};
use crate::report::units::{asked, at, count, pages, plural};

/// Up to so many steps are all shown.
const ALL: usize = 12;
/// Of a run of equal steps: shown at its head, and at its tail.
const RUN_HEAD: usize = 3;
const RUN_TAIL: usize = 1;
/// Lines at the head and at the tail of the whole list.
const HEAD: usize = 24;
const TAIL: usize = 8;

/// What the list shows, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    /// Index of a step.
    Step(usize),
    /// So many more that look like the one before.
    Alike(usize),
    /// So many more of any look.
    Others(usize),
}

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
    for item in select(steps) {
        match item {
            Item::Step(index) => {
                let Some(step) = steps.get(index) else { continue };
                table.row(row(report, index, step, kinds));
            }
            Item::Alike(n) => table.remark(format!("... {} more like this", count(n as u64))),
            Item::Others(n) => table.remark(format!("... {}", plural(n as u64, "other step"))),
        }
    }
    if report.growth.steps_omitted > 0 {
        table.remark(format!(
            "({} of the trace's middle not kept one by one; the figures above count them)",
            plural(report.growth.steps_omitted, "step")
        ));
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
    cells.extend([cause(&step.cause), batch(&step.batch, report.target.from_birth)]);
    cells
}

fn cause(cause: &Cause) -> String {
    match cause.entry.as_str() {
        DIRECT => "no allocation".to_owned(),
        UNKNOWN => "unknown".to_owned(),
        entry => format!("{entry}({})", cause.request),
    }
}

fn batch(batch: &Batch, from_birth: bool) -> String {
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

/// Which steps to show: all of a short list; of a long one the ends of each run, then the ends of the whole.
fn select(steps: &[Step]) -> Vec<Item> {
    if steps.len() <= ALL {
        return (0..steps.len()).map(Item::Step).collect();
    }
    let mut items = Vec::new();
    let mut start = 0;
    for run in steps.chunk_by(alike) {
        let end = start + run.len();
        if run.len() > RUN_HEAD + RUN_TAIL + 1 {
            items.extend((start..start + RUN_HEAD).map(Item::Step));
            items.push(Item::Alike(run.len() - RUN_HEAD - RUN_TAIL));
            items.extend((end - RUN_TAIL..end).map(Item::Step));
        } else {
            items.extend((start..end).map(Item::Step));
        }
        start = end;
    }
    if items.len() <= HEAD + TAIL + 1 {
        return items;
    }
    let tail = items.split_off(items.len() - TAIL);
    let middle = items.split_off(HEAD);
    let hidden = middle
        .iter()
        .map(|item| match item {
            Item::Step(_) => 1,
            Item::Alike(n) | Item::Others(n) => *n,
        })
        .sum();
    items.push(Item::Others(hidden));
    items.extend(tail);
    items
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
            },
            batch: Batch::default(),
        }
    }

    /// Every step is either shown or counted, whatever the list.
    fn covered(items: &[Item]) -> usize {
        items
            .iter()
            .map(|item| match item {
                Item::Step(_) => 1,
                Item::Alike(n) | Item::Others(n) => *n,
            })
            .sum()
    }

    #[test]
    fn a_short_list_is_shown_whole() {
        let steps: Vec<Step> = (0..12).map(|_| step(4096)).collect();
        assert_eq!(select(&steps), (0..12).map(Item::Step).collect::<Vec<_>>());
    }

    #[test]
    fn a_run_shows_its_ends() {
        let steps: Vec<Step> = (0..39).map(|_| step(4096)).collect();
        let expected = [
            Item::Step(0),
            Item::Step(1),
            Item::Step(2),
            Item::Alike(35),
            Item::Step(38),
        ];
        assert_eq!(select(&steps), expected);
    }

    #[test]
    fn nothing_is_left_out_uncounted() {
        for n in [13, 100, 1000] {
            let steps: Vec<Step> = (0..n).map(|i| step(4096 * (1 + i % 7))).collect();
            let items = select(&steps);
            assert_eq!(covered(&items), steps.len());
            assert!(items.len() <= HEAD + TAIL + 1);
        }
    }
}
