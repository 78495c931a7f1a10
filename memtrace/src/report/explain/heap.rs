//! Arenas as a table, why they do not shrink, and which sizes are live and free.

use memtrace_analysis::glibc::look::{ArenaView, Look, SizeClass};
use memtrace_analysis::glibc::words::{bytes, percent};

use super::text::WIDTH;
use crate::report::layout::{Align, Section, Table, wrap};
use crate::report::units;

/// Arenas that are shown, those with the most retained memory.
pub(super) const ARENAS: usize = 8;
/// Characters of a histogram's bar.
const BAR: usize = 24;

/// The arenas that are worth a line, and what the others are together.
pub(super) fn shown(look: &Look) -> (Vec<(usize, &ArenaView)>, Option<String>) {
    let Some(heap) = &look.heap else {
        return (Vec::new(), None);
    };
    let mut arenas: Vec<(usize, &ArenaView)> = heap.arenas.iter().enumerate().collect();
    arenas.sort_by_key(|(_, arena)| std::cmp::Reverse(arena.resident_bytes));
    let rest = arenas.split_off(arenas.len().min(ARENAS));
    arenas.sort_by_key(|(index, _)| *index);
    let others = (!rest.is_empty()).then(|| {
        let retained: u64 = rest.iter().map(|(_, arena)| arena.retained_resident_bytes).sum();
        let live: u64 = rest.iter().map(|(_, arena)| arena.live_bytes).sum();
        format!(
            "{} more: {} live, {} freed and kept",
            units::plural(rest.len() as u64, "arena"),
            bytes(live),
            bytes(retained)
        )
    });
    (arenas, others)
}

/// "main", "arena 3"
pub(super) fn name(index: usize, arena: &ArenaView) -> String {
    if arena.kind == "main" {
        "main".to_owned()
    } else {
        format!("arena {index}")
    }
}

pub(super) fn arenas(look: &Look) -> Section {
    let mut section = Section::new("ARENAS");
    let (arenas, others) = shown(look);
    if arenas.is_empty() {
        return section;
    }
    section.line("");
    let columns = [
        "arena",
        "from system",
        "live",
        "blocks",
        "bins",
        "fastbins",
        "cached",
        "top",
        "trim returns",
    ];
    let headings: Vec<(&str, Align)> = columns
        .iter()
        .map(|name| (*name, if *name == "arena" { Align::Left } else { Align::Right }))
        .collect();
    let mut table = Table::new(&headings);
    for (index, arena) in &arenas {
        table.row(vec![
            name(*index, arena),
            bytes(arena.system_bytes),
            bytes(arena.live_bytes),
            units::count(arena.live_blocks),
            bytes(arena.bin_bytes),
            bytes(arena.fastbin_bytes),
            bytes(arena.cached_bytes),
            bytes(arena.top_bytes),
            bytes(arena.trim_would_return_bytes),
        ]);
    }
    if let Some(others) = others {
        table.remark(others);
    }
    section.table(&table);
    if let Some(heap) = look.heap.as_ref().filter(|heap| heap.mapped_blocks > 0) {
        section.line(format!(
            "and {} with mappings of their own, {}",
            units::plural(heap.mapped_blocks, "block"),
            bytes(heap.mapped_bytes)
        ));
    }
    let several = arenas.len() > 1;
    let mut told: Vec<&str> = Vec::new();
    for (index, arena) in &arenas {
        // Thread arenas tend to tell the same story; once is enough.
        let fresh: Vec<&String> = arena
            .why
            .iter()
            .filter(|why| several && !told.contains(&story(why)))
            .collect();
        for why in if several { fresh } else { arena.why.iter().collect() } {
            told.push(story(why));
            let whose = if several {
                format!("{}: ", name(*index, arena))
            } else {
                String::new()
            };
            for line in wrap(&format!("{whose}{why}"), WIDTH) {
                section.faint(line);
            }
        }
    }
    section
}

/// A sentence without its numbers: what comes before the first digit.
fn story(why: &str) -> &str {
    why.split(|letter: char| letter.is_ascii_digit()).next().unwrap_or(why)
}

pub(super) fn sizes(look: &Look) -> Section {
    let mut section = Section::new("CHUNK SIZES");
    let Some(heap) = look
        .heap
        .as_ref()
        .filter(|heap| heap.live_blocks > 0 || !heap.free_classes.is_empty())
    else {
        return section;
    };
    let classes: std::collections::BTreeSet<u64> = heap
        .live_classes
        .iter()
        .chain(&heap.free_classes)
        .map(|class| class.from_bytes)
        .collect();
    let most = heap
        .live_classes
        .iter()
        .chain(&heap.free_classes)
        .map(|class| class.bytes)
        .max()
        .unwrap_or(0)
        .max(1);
    let find = |classes: &[SizeClass], from: u64| {
        classes
            .iter()
            .find(|class| class.from_bytes == from)
            .copied()
            .unwrap_or(SizeClass {
                from_bytes: from,
                blocks: 0,
                bytes: 0,
            })
    };
    let bar = |amount: u64| "█".repeat((u128::from(amount) * BAR as u128).div_ceil(u128::from(most)) as usize);
    section.faint(format!("{:<22}{:>9}  {:<24}{:>9}", "", "live", "", "free"));
    for from in classes {
        let (live, free) = (find(&heap.live_classes, from), find(&heap.free_classes, from));
        let label = format!("{} to {}", short(from), short(from * 2));
        let line = format!(
            "{label:<22}{:>9}  {:<24}{:>9}  {}",
            cell(live.bytes),
            bar(live.bytes),
            cell(free.bytes),
            bar(free.bytes)
        );
        section.line(line.trim_end().to_owned());
    }
    let largest: Vec<String> = heap
        .live_sizes
        .iter()
        .take(3)
        .filter(|size| size.bytes >= heap.live_bytes / 20)
        .map(|size| {
            format!(
                "{} of {} ({})",
                units::count(size.blocks),
                units::plural(size.chunk_bytes, "byte"),
                percent(size.bytes, heap.live_bytes)
            )
        })
        .collect();
    if !largest.is_empty() {
        section.wrapped(
            &format!("Most live bytes are in chunks of: {}.", largest.join(", ")),
            WIDTH,
        );
    }
    section
}

/// A blank for nothing, so that the eye finds what is there.
fn cell(amount: u64) -> String {
    if amount == 0 { String::new() } else { bytes(amount) }
}

fn short(amount: u64) -> String {
    if amount < 1024 {
        amount.to_string()
    } else {
        bytes(amount)
    }
}
