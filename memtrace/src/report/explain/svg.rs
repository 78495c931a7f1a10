//! The look as a picture: where the resident memory is, a row of cells for each arena, sizes of live and free chunks.

use std::fmt::Write;

use memtrace_analysis::glibc::look::{ArenaView, Cell, Look, PinState, SizeClass};
use memtrace_analysis::glibc::words::{bytes, percent};

use super::heap::{name, shown};
use super::text::shortened;
use crate::report::layout::wrap;
use crate::report::plain::clean;
use crate::report::units;

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 40.0;
const INNER: f64 = WIDTH - 2.0 * LEFT;
const ROW: f64 = 26.0;
/// Left edge of an arena's cells.
const MAP_LEFT: f64 = 130.0;

const LIVE: &str = "#2f6db5";
const FREE: &str = "#f0b545";
const CACHED: &str = "#8e5bb0";
const FAST: &str = "#c471b8";
const TOP: &str = "#7bb662";
const OWN: &str = "#6b7280";
const KEPT: &str = "#c07f1c";
const OTHER: &str = "#a58d7f";
const PIN: &str = "#c8352d";
const STACKS: &str = "#4aa6a6";
const FILE: &str = "#9cc5a1";
const INK: &str = "#1f2933";
const PALE: &str = "#64707d";

pub fn render(look: &Look) -> String {
    let mut picture = Picture {
        body: String::new(),
        y: 34.0,
    };
    picture.title(look);
    picture.resident(look);
    picture.arenas(look);
    picture.sizes(look);
    picture.finish()
}

struct Picture {
    body: String,
    /// Where the next thing goes.
    y: f64,
}

impl Picture {
    fn title(&mut self, look: &Look) {
        let glibc = look.target.glibc.as_deref().unwrap_or("unknown");
        let title = format!(
            "{} (pid {})   glibc {glibc}   RSS {}",
            look.target.name,
            look.target.pid,
            bytes(look.resident.total)
        );
        self.text(LEFT, self.y, 18, INK, "start", true, &title);
        self.y += 26.0;
        let mut letters = look.verdict.text.chars();
        let mut verdict: String = letters
            .next()
            .map(char::to_uppercase)
            .into_iter()
            .flatten()
            .chain(letters)
            .collect();
        if look.torn {
            verdict.push_str(if look.damaged {
                " (the heap is damaged)"
            } else {
                " (torn: figures are near the truth)"
            });
        }
        for line in wrap(&verdict, 150) {
            self.text(LEFT, self.y, 13, INK, "start", false, &line);
            self.y += 18.0;
        }
        self.y += 14.0;
    }

    /// One bar for everything resident, with a legend below it.
    fn resident(&mut self, look: &Look) {
        self.heading("Resident memory");
        let resident = &look.resident;
        let kept = resident.retained_parts;
        let parts = [
            ("live blocks", resident.live, LIVE),
            ("freed, a trim returns it", kept.trimmable.min(resident.retained), FREE),
            (
                "freed, kept otherwise",
                resident.retained.saturating_sub(kept.trimmable.min(resident.retained)),
                KEPT,
            ),
            ("malloc's structures", resident.allocator_overhead, OWN),
            ("not malloc's", resident.other_anon, OTHER),
            ("stacks", resident.stacks, STACKS),
            ("shared", resident.shared, CACHED),
            ("file pages", resident.file, FILE),
        ];
        let total = resident.total.max(1) as f64;
        let mut x = LEFT;
        for (what, amount, colour) in parts {
            let width = amount as f64 / total * INNER;
            if width > 0.0 {
                let hint = format!("{what}: {} ({})", bytes(amount), percent(amount, resident.total));
                self.rect(x, self.y, width, 28.0, colour, Some(&hint));
                x += width;
            }
        }
        self.y += 48.0;
        let mut x = LEFT;
        for (what, amount, colour) in parts.into_iter().filter(|(_, amount, _)| *amount > 0) {
            let label = format!("{what} {}", bytes(amount));
            let width = 26.0 + label.chars().count() as f64 * 6.6;
            if x + width > LEFT + INNER {
                x = LEFT;
                self.y += 20.0;
            }
            self.rect(x, self.y - 10.0, 12.0, 12.0, colour, None);
            self.text(x + 17.0, self.y, 12, INK, "start", false, &label);
            x += width;
        }
        self.y += 36.0;
    }

    fn arenas(&mut self, look: &Look) {
        let (arenas, others) = shown(look);
        let arenas: Vec<_> = arenas
            .into_iter()
            .filter(|(_, arena)| !arena.map.cells.is_empty())
            .collect();
        if arenas.is_empty() {
            return;
        }
        self.heading("Heap map: each arena from its lowest address to its top");
        for (index, arena) in &arenas {
            self.arena(&name(*index, arena), arena);
        }
        if let Some(others) = others {
            self.text(MAP_LEFT, self.y, 12, PALE, "start", false, &others);
            self.y += 20.0;
        }
        self.y += 8.0;
        let mut x = MAP_LEFT;
        for (what, colour) in [
            ("live", LIVE),
            ("free", FREE),
            ("in thread caches", CACHED),
            ("in fastbins", FAST),
            ("top", TOP),
            ("not malloc's", OTHER),
        ] {
            self.rect(x, self.y - 10.0, 12.0, 12.0, colour, None);
            self.text(x + 17.0, self.y, 12, INK, "start", false, what);
            x += 30.0 + what.chars().count() as f64 * 6.8;
        }
        self.text(x, self.y, 12, PALE, "start", false, "pale: not in memory");
        self.y += 38.0;
    }

    /// Cells as stacks of what they hold; pale where they are not in memory; a flag at the pin.
    fn arena(&mut self, label: &str, arena: &ArenaView) {
        let cells = &arena.map.cells;
        let width = (LEFT + INNER - MAP_LEFT) / cells.len().max(1) as f64;
        self.text(MAP_LEFT - 10.0, self.y + ROW - 9.0, 13, INK, "end", false, label);
        let mut x = MAP_LEFT;
        for run in cells.chunk_by(|left, right| left == right) {
            self.cell(x, width * run.len() as f64, &run[0], arena.map.cell_bytes);
            x += width * run.len() as f64;
        }
        self.y += ROW + 4.0;
        let summary = format!(
            "{} from the system, {} live, {} freed and kept, a trim returns {}",
            bytes(arena.system_bytes),
            bytes(arena.live_bytes),
            bytes(arena.retained_resident_bytes),
            bytes(arena.trim_would_return_bytes)
        );
        self.text(MAP_LEFT, self.y + 10.0, 11, PALE, "start", false, &summary);
        if let Some(pin) = arena.pin.filter(|pin| pin.free_below_bytes >= 64 << 10) {
            let x = MAP_LEFT + (pin.cell as f64 + 0.5) * width;
            let what = match pin.state {
                PinState::Live => "live block",
                PinState::Cached => "cached block",
                PinState::Fastbin => "block in a fastbin",
                PinState::ThreadCacheStructure => "thread cache",
                PinState::Boundary => "boundary",
            };
            let _ = write!(
                self.body,
                "<path d=\"M{x:.1} {top:.1} l-6 10 h12 z\" fill=\"{PIN}\"/>",
                top = self.y - 3.0
            );
            let label = format!(
                "pin: {what}, {} at {:#x}",
                units::plural(pin.bytes, "byte"),
                pin.address
            );
            let right = x < MAP_LEFT + 640.0;
            let (at, anchor) = if right { (x + 10.0, "start") } else { (x - 10.0, "end") };
            // Beside the summary where there is room, else below it.
            let clash = if right {
                x < MAP_LEFT + 470.0
            } else {
                x < MAP_LEFT + 760.0
            };
            if clash {
                self.y += 14.0;
            }
            self.text(at, self.y + 10.0, 11, PIN, anchor, false, &label);
        }
        self.y += 30.0;
    }

    fn cell(&mut self, x: f64, width: f64, cell: &Cell, cell_bytes: u64) {
        let all = cell.bytes();
        if all == 0 {
            return;
        }
        let opacity = 0.25 + 0.75 * (cell.resident.min(all) as f64 / all as f64);
        let shares = [
            (cell.live, LIVE),
            (cell.cached, CACHED),
            (cell.fast, FAST),
            (cell.free, FREE),
            (cell.top, TOP),
            (cell.foreign, OTHER),
        ];
        // The last cell may be shorter than the others.
        let full = all.max(cell_bytes) as f64;
        let mut bottom = self.y + ROW;
        for (amount, colour) in shares.into_iter().filter(|(amount, _)| *amount > 0) {
            // Something live is to be seen, however little it is.
            let height = (amount as f64 / full * ROW).max(1.5).min(bottom - self.y);
            bottom -= height;
            let _ = write!(
                self.body,
                "<rect x=\"{x:.2}\" y=\"{bottom:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" fill=\"{colour}\" opacity=\"{opacity:.2}\" shape-rendering=\"crispEdges\"/>"
            );
        }
    }

    /// Live to the left, free to the right of the sizes.
    fn sizes(&mut self, look: &Look) {
        let Some(heap) = &look.heap else { return };
        let classes: std::collections::BTreeSet<u64> = heap
            .live_classes
            .iter()
            .chain(&heap.free_classes)
            .map(|class| class.from_bytes)
            .collect();
        if classes.is_empty() {
            return;
        }
        self.heading("Bytes in chunks by size");
        let most = heap
            .live_classes
            .iter()
            .chain(&heap.free_classes)
            .map(|class| class.bytes)
            .max()
            .unwrap_or(0)
            .max(1);
        let find = |list: &[SizeClass], from: u64| {
            list.iter()
                .find(|class| class.from_bytes == from)
                .map(|class| (class.blocks, class.bytes))
        };
        let middle = WIDTH / 2.0;
        let half = INNER / 2.0 - 190.0;
        self.text(middle - 80.0, self.y, 12, PALE, "end", false, "live");
        self.text(middle + 80.0, self.y, 12, PALE, "start", false, "free");
        self.y += 8.0;
        for from in classes {
            let label = format!("{} to {}", bytes(from), bytes(from * 2));
            self.text(
                middle,
                self.y + 11.0,
                11,
                INK,
                "middle",
                false,
                &label.replace(" bytes to", " to"),
            );
            for (side, list, colour) in [(-1.0, &heap.live_classes, LIVE), (1.0, &heap.free_classes, FREE)] {
                let Some((blocks, amount)) = find(list, from) else {
                    continue;
                };
                let width = (amount as f64 / most as f64 * half).max(1.0);
                let edge = middle + side * 80.0;
                let x = if side < 0.0 { edge - width } else { edge };
                self.rect(x, self.y + 1.0, width, 13.0, colour, None);
                let anchor = if side < 0.0 { "end" } else { "start" };
                let text = format!("{} in {}", bytes(amount), units::count(blocks));
                self.text(
                    edge + side * (width + 6.0),
                    self.y + 11.0,
                    11,
                    PALE,
                    anchor,
                    false,
                    &text,
                );
            }
            self.y += 18.0;
        }
        self.y += 16.0;
    }

    fn heading(&mut self, text: &str) {
        self.text(LEFT, self.y, 14, INK, "start", true, text);
        self.y += 18.0;
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str, hint: Option<&str>) {
        let _ = write!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\" fill=\"{colour}\""
        );
        match hint {
            Some(hint) => {
                let _ = writeln!(self.body, "><title>{}</title></rect>", escape(hint));
            }
            None => self.body.push_str("/>\n"),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the attributes of a text element")]
    fn text(&mut self, x: f64, y: f64, size: u32, colour: &str, anchor: &str, bold: bool, text: &str) {
        let weight = if bold { " font-weight=\"bold\"" } else { "" };
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{colour}\" text-anchor=\"{anchor}\"{weight}>{}</text>",
            escape(&shortened(text, 200))
        );
    }

    fn finish(self) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
             font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            self.body,
            height = self.y
        )
    }
}

fn escape(text: &str) -> String {
    clean(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
