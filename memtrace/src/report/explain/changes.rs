//! How looks at one process differ: a line for each look of a series, and a page for what came of it.

use memtrace_analysis::glibc::changes::{Changes, Point, duration, signed};
use memtrace_analysis::glibc::look::Look;
use memtrace_analysis::glibc::words::bytes;

use super::text::WIDTH;
use crate::report::layout::{Align, Page, Section, Table, wrap};
use crate::report::plain::escape_json;
use crate::report::style::Style;
use crate::report::units;

/// One document, with a line end.
pub fn json(changes: &Changes) -> Result<String, serde_json::Error> {
    Ok(escape_json(&serde_json::to_string_pretty(changes)?).into_owned() + "\n")
}

/// The heading of a series of looks.
pub fn heading() -> String {
    format!(
        "{:>10}  {:>10}  {:>10}  {:>14}  {:>10}  {:>10}\n",
        "after", "RSS", "live", "live blocks", "retained", "trim gives"
    )
}

/// A look as a line of a series that began at `begin_ms`.
pub fn line(look: &Look, begin_ms: u64) -> String {
    let point = Point::of(look);
    let unknown = || "?".to_owned();
    let torn = match (point.torn, look.damaged) {
        (false, _) => "",
        (true, false) => "  torn",
        (true, true) => "  damaged",
    };
    format!(
        "{:>10}  {:>10}  {:>10}  {:>14}  {:>10}  {:>10}{torn}\n",
        duration_short(point.unix_ms.saturating_sub(begin_ms)),
        bytes(point.total),
        point.live_bytes.map_or_else(unknown, bytes),
        point.live_blocks.map_or_else(unknown, units::count),
        bytes(point.retained),
        look.trim_would_return_bytes.map_or_else(unknown, bytes)
    )
}

fn duration_short(milliseconds: u64) -> String {
    if milliseconds < 100_000 {
        format!("{}.{} s", milliseconds / 1000, milliseconds / 100 % 10)
    } else {
        duration(milliseconds)
    }
}

/// The page of a comparison.
pub fn render(changes: &Changes, style: Style) -> String {
    let mut page = Page::new(style);
    page.headline(
        &format!("memtrace explain: {} (pid {})", changes.name, changes.pid),
        &format!(
            "   {} within {}{}",
            units::plural(changes.looks, "look"),
            duration(changes.end_unix_ms.saturating_sub(changes.begin_unix_ms)),
            if changes.torn {
                "   torn: figures are near the truth"
            } else {
                ""
            }
        ),
    );
    let mut verdict = Section::new("VERDICT");
    let mut letters = changes.verdict.text.chars();
    let text: String = letters
        .next()
        .map(char::to_uppercase)
        .into_iter()
        .flatten()
        .chain(letters)
        .collect();
    for line in wrap(&format!("{text}."), WIDTH) {
        verdict.line(line);
    }
    for missing in &changes.verdict.missing {
        for line in wrap(&format!("To say more, this is missing: {missing}."), WIDTH) {
            verdict.faint(line);
        }
    }
    let mut why = Section::new("WHY");
    for cause in &changes.verdict.causes {
        for line in wrap(&format!("{}: {}", bytes(cause.bytes), cause.text), WIDTH) {
            why.line(line);
        }
    }
    for section in [verdict, why, resident(changes), sizes(changes)] {
        if !section.is_empty() {
            page.gap();
            page.section(&section);
        }
    }
    page.finish()
}

fn resident(changes: &Changes) -> Section {
    let mut section = Section::new("RESIDENT");
    let change = &changes.resident;
    for (name, amount) in [
        ("everything", change.total),
        ("in use: live blocks", change.live),
        ("freed, but kept by malloc", change.retained),
        ("malloc's own structures", change.allocator_overhead),
        ("not malloc's, anonymous", change.other_anon),
        ("stacks", change.stacks),
        ("shared memory", change.shared),
        ("file pages (page cache)", change.file),
    ] {
        if amount != 0 || name == "everything" {
            section.line(format!("{name:<34}{:>12}", signed(amount)));
        }
    }
    section
}

fn sizes(changes: &Changes) -> Section {
    let mut section = Section::new("LIVE CHUNKS");
    if changes.sizes.is_empty() {
        return section;
    }
    section.line("");
    let mut table = Table::new(&[
        ("chunk", Align::Right),
        ("blocks", Align::Right),
        ("bytes", Align::Right),
    ]);
    for size in &changes.sizes {
        let sign = if size.blocks < 0 { "-" } else { "+" };
        table.row(vec![
            units::plural(size.chunk_bytes, "byte"),
            format!("{sign}{}", units::count(size.blocks.unsigned_abs())),
            signed(size.bytes),
        ]);
    }
    section.table(&table);
    section
}
