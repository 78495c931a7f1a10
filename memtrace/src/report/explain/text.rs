//! The page that `memtrace explain` prints: the verdict first, what it rests on below.

use memtrace_analysis::glibc::look::{Bound, Look, Retained};
use memtrace_analysis::glibc::words::{bytes, percent};
use memtrace_analysis::report::Confidence;

use super::heap::{arenas, sizes};
use super::map::heap_map;
use super::surroundings::{machine, rest_of_memory};
use crate::report::layout::{Page, Section};
use crate::report::style::Style;
use crate::report::units;

/// Characters of a line behind the margin.
pub(super) const WIDTH: usize = 92;
/// Characters of a bar.
const BAR: usize = 30;

pub fn render(look: &Look, style: Style) -> String {
    let mut page = Page::new(style);
    headline(&mut page, look);
    for section in [
        verdict(look),
        causes(look),
        predictions(look),
        knobs(look),
        resident(look, style),
        rest_of_memory(look),
        heap_map(look, style),
        arenas(look),
        sizes(look),
        thresholds(look),
        machine(look),
        not_seen(look),
    ] {
        if !section.is_empty() {
            page.gap();
            page.section(&section);
        }
    }
    page.finish()
}

fn headline(page: &mut Page, look: &Look) {
    let target = &look.target;
    let glibc = target
        .glibc
        .as_deref()
        .map_or_else(|| "no glibc".to_owned(), |version| format!("glibc {version}"));
    let stopped = if look.taken.stopped {
        format!("process stopped for {}", milliseconds(look.taken.stopped_ns))
    } else {
        "process not stopped".to_owned()
    };
    page.headline(
        &format!("memtrace explain: {} (pid {})", target.name, target.pid),
        &format!(
            "   {glibc}   {}   RSS {}   {stopped}",
            units::plural(u64::from(target.threads), "thread"),
            bytes(look.resident.total)
        ),
    );
    if !target.command.is_empty() {
        page.faint(&format!("          {}", shortened(&target.command, 110)));
    }
}

pub(super) fn milliseconds(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{}.{:02} ms", ns / 1_000_000, ns / 10_000 % 100),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

pub(super) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(3)).chain("...".chars()).collect()
}

fn verdict(look: &Look) -> Section {
    let mut section = Section::new("VERDICT");
    section.wrapped(&sentence(&look.verdict.text), WIDTH);
    let sure = match look.verdict.confidence {
        Confidence::Proven => None,
        Confidence::Likely => Some("This is likely, not proven."),
        Confidence::CannotTell => Some("One look cannot say more."),
    };
    if let Some(sure) = sure {
        section.faint(sure);
    }
    for missing in &look.verdict.missing {
        for line in crate::report::layout::wrap(&format!("To say more, this is missing: {missing}."), WIDTH) {
            section.faint(line);
        }
    }
    if look.torn {
        let what = if look.damaged { "The heap is damaged" } else { "Torn" };
        let why = match (look.damaged, look.taken.stopped) {
            (true, _) => "what follows comes from a heap whose books contradict themselves",
            (false, true) => "a thread was stopped in the middle of malloc; figures may be off by its one call",
            (false, false) => {
                "the heap changed while it was being read, so figures are near the truth, not exact; \
                --stop lets the process stand still for the look"
            }
        };
        for line in crate::report::layout::wrap(&format!("{what}: {why}."), WIDTH) {
            section.warning(line);
        }
        for problem in look.problems.iter().take(5) {
            section.warning(format!("  {}", problem.text));
        }
        if look.problems.len() > 5 {
            section.warning(format!("  and {} more", look.problems.len() - 5));
        }
    }
    section
}

/// With a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase).into_iter().flatten();
    first.chain(letters).chain(".".chars()).collect()
}

fn causes(look: &Look) -> Section {
    let mut section = Section::new("WHY");
    for cause in &look.verdict.causes {
        let amount = if cause.overlaps {
            "of these".to_owned()
        } else {
            bytes(cause.bytes)
        };
        let lines = crate::report::layout::wrap(&cause.text, WIDTH - 12);
        for (index, line) in lines.into_iter().enumerate() {
            let label = if index == 0 { amount.as_str() } else { "" };
            section.line(format!("{label:>10}  {line}"));
        }
    }
    section
}

fn predictions(look: &Look) -> Section {
    let mut section = Section::new("WHAT HELPS");
    if look.heap.as_ref().is_some_and(|heap| heap.live_blocks == 0) && look.resident.retained == 0 {
        section.line("nothing that is done to glibc's malloc: it holds nothing here".to_owned());
        return section;
    }
    for prediction in &look.predictions {
        let amount = match prediction.bound {
            Bound::Exact => bytes(prediction.bytes),
            Bound::AtMost => format!("<= {}", bytes(prediction.bytes)),
        };
        let mut label = amount.as_str();
        for line in crate::report::layout::wrap(&prediction.how, WIDTH - 14) {
            section.line(format!("{label:>12}  {line}"));
            label = "";
        }
        for line in crate::report::layout::wrap(&prediction.evidence, WIDTH - 14) {
            section.faint(format!("{:>12}  {line}", ""));
        }
    }
    section
}

fn knobs(look: &Look) -> Section {
    let mut section = Section::new("SETTINGS");
    for knob in &look.knobs {
        for line in crate::report::layout::wrap(&sentence(&knob.text), WIDTH) {
            section.warning(line);
        }
    }
    section
}

/// Every resident byte once, as a table with bars.
fn resident(look: &Look, style: Style) -> Section {
    let mut section = Section::new("RESIDENT");
    let resident = &look.resident;
    let Retained {
        trimmable,
        pinned,
        kept,
        ..
    } = resident.retained_parts;
    let mut row = |name: &str, amount: u64, colour: Option<&str>| {
        let share = percent(amount, resident.total);
        let filled = (u128::from(amount) * BAR as u128).div_ceil(u128::from(resident.total.max(1))) as usize;
        let bar = colour.map_or_else(String::new, |colour| style.paint(colour, &"█".repeat(filled.min(BAR))));
        section.painted(
            format!("{name:<34}{:>10}  {share:>5}  {bar}", bytes(amount))
                .trim_end()
                .to_owned(),
        );
    };
    row("everything", resident.total, None);
    if look.heap.is_some() {
        row("in use: live blocks", resident.live, Some("34"));
        row("freed, but kept by malloc", resident.retained, Some("33"));
        if resident.retained > 0 {
            row("    malloc_trim(0) returns", trimmable, None);
            row("    on pages with live blocks", pinned, None);
            row("    whole pages it leaves alone", kept, None);
        }
        row("malloc's own structures", resident.allocator_overhead, Some("35"));
    }
    row("not malloc's, anonymous", resident.other_anon, Some("31"));
    row("stacks", resident.stacks, Some("36"));
    row("shared memory", resident.shared, Some("36"));
    row("file pages (page cache)", resident.file, Some("32"));
    section
}

fn thresholds(look: &Look) -> Section {
    let mut section = Section::new("THRESHOLDS");
    if let Some(thresholds) = &look.thresholds {
        let rule = if thresholds.dynamic {
            "rise by themselves"
        } else {
            "frozen by a setting"
        };
        section.line(format!(
            "mmap {}   trim {}   top_pad {}   ({rule}; all start at 128 KiB)",
            bytes(thresholds.mmap),
            bytes(thresholds.trim),
            bytes(thresholds.top_pad)
        ));
    }
    section
}

fn not_seen(look: &Look) -> Section {
    let mut section = Section::new("NOT SEEN");
    if let Some(reason) = &look.heap_unknown {
        section.wrapped(&format!("malloc's books: {reason}"), WIDTH);
    }
    for reason in &look.not_seen {
        section.wrapped(reason, WIDTH);
    }
    section
}
