//! The heap as a row of cells for each arena: what lies where, what is in memory, where the pins are.

use memtrace_analysis::glibc::look::{ArenaView, Cell, Look, PinState};
use memtrace_analysis::glibc::words::bytes;

use super::heap::{name, shown};
use crate::report::layout::Section;
use crate::report::style::Style;
use crate::report::units;

/// Characters of a row at most.
const COLUMNS: usize = 64;

/// What a cell mostly is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shade {
    /// Live, to nine tenths and more.
    Live,
    /// More live than free.
    MostlyLive,
    /// More free than live.
    MostlyFree,
    Free,
    /// In thread caches, or in fastbins.
    Cached,
    Top,
    /// Free, and not in memory.
    Absent,
    /// Not malloc's.
    Foreign,
}

impl Shade {
    pub const ALL: [Shade; 8] = [
        Shade::Live,
        Shade::MostlyLive,
        Shade::MostlyFree,
        Shade::Free,
        Shade::Cached,
        Shade::Top,
        Shade::Absent,
        Shade::Foreign,
    ];

    pub fn of(cell: &Cell) -> Shade {
        let all = cell.bytes();
        let held = cell.cached + cell.fast;
        if cell.resident * 4 < all && cell.live * 2 < all {
            return Shade::Absent;
        }
        if cell.foreign * 2 > all {
            return Shade::Foreign;
        }
        if held * 2 > all {
            return Shade::Cached;
        }
        if cell.top * 2 > all {
            return Shade::Top;
        }
        if cell.live * 10 >= all * 9 {
            Shade::Live
        } else if cell.live * 2 >= all {
            Shade::MostlyLive
        } else if cell.live > 0 {
            Shade::MostlyFree
        } else {
            Shade::Free
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Shade::Live => "live",
            Shade::MostlyLive => "mostly live",
            Shade::MostlyFree => "mostly free",
            Shade::Free => "free",
            Shade::Cached => "freed, cached",
            Shade::Top => "top",
            Shade::Absent => "not in memory",
            Shade::Foreign => "not malloc's",
        }
    }

    fn glyph(self) -> (char, &'static str) {
        match self {
            Shade::Live => ('█', "34"),
            Shade::MostlyLive => ('▓', "34"),
            Shade::MostlyFree => ('▒', "33"),
            Shade::Free => ('░', "33"),
            Shade::Cached => ('c', "35"),
            Shade::Top => ('=', "32"),
            Shade::Absent => ('·', "2"),
            Shade::Foreign => ('x', "31"),
        }
    }
}

/// The cells of a map brought down to at most `columns`, and how many of them make one.
pub fn reduced(cells: &[Cell], columns: usize) -> (Vec<Cell>, usize) {
    let step = cells.len().div_ceil(columns).max(1);
    let merged = cells.chunks(step).map(|cells| {
        let mut sum = Cell::default();
        cells.iter().for_each(|cell| sum.merge(cell));
        sum
    });
    (merged.collect(), step)
}

pub(super) fn heap_map(look: &Look, style: Style) -> Section {
    let mut section = Section::new("HEAP MAP");
    let (arenas, others) = shown(look);
    let mut used = Vec::new();
    for (index, arena) in arenas
        .iter()
        .filter(|(_, arena)| !arena.map.cells.is_empty() && arena.system_bytes > 0)
    {
        let (cells, step) = reduced(&arena.map.cells, COLUMNS);
        let shades: Vec<Shade> = cells.iter().map(Shade::of).collect();
        used.extend(&shades);
        section.painted(format!(
            "{:<10}{}  {}",
            name(*index, arena),
            row(&shades, style),
            style.faint(&format!(
                "{}, a cell is {}",
                bytes(arena.system_bytes),
                bytes(arena.map.cell_bytes * step as u64)
            ))
        ));
        if let Some((column, text)) = pin(arena, step) {
            let column = column.min(shades.len().saturating_sub(1));
            let mark = style.warning("^");
            // The remark stands on the side where there is room for it.
            let line = if column + text.chars().count() + 2 <= COLUMNS + 20 {
                format!("{:10}{:column$}{mark} {text}", "", "")
            } else {
                format!("{:10}{text:>before$} {mark}", "", before = column.saturating_sub(1))
            };
            section.painted(line);
        }
    }
    if section.is_empty() {
        return section;
    }
    if let Some(others) = others {
        section.line(format!("{:10}{others}", ""));
    }
    let legend: Vec<String> = Shade::ALL
        .into_iter()
        .filter(|shade| used.contains(shade))
        .map(|shade| {
            let (glyph, colour) = shade.glyph();
            format!("{} {}", style.paint(colour, &glyph.to_string()), shade.words())
        })
        .collect();
    section.painted(format!("{:10}{}", "", legend.join("   ")));
    section
}

/// Runs of one shade are painted at once.
fn row(shades: &[Shade], style: Style) -> String {
    shades
        .chunk_by(|left, right| left == right)
        .map(|run| {
            let (glyph, colour) = run[0].glyph();
            style.paint(colour, &glyph.to_string().repeat(run.len()))
        })
        .collect()
}

/// The column of an arena's pin, and what to say of it.
fn pin(arena: &ArenaView, step: usize) -> Option<(usize, String)> {
    let pin = arena.pin.filter(|pin| pin.free_below_bytes >= 64 << 10)?;
    let what = match pin.state {
        PinState::Live => "live block",
        PinState::Cached => "block in a thread cache",
        PinState::Fastbin => "block in a fastbin",
        PinState::ThreadCacheStructure => "thread cache's structure",
        PinState::Boundary => "boundary",
    };
    let column = usize::try_from(pin.cell).unwrap_or(usize::MAX) / step;
    Some((
        column,
        format!(
            "pin: {what} of {} at {:#x}",
            units::plural(pin.bytes, "byte"),
            pin.address
        ),
    ))
}
