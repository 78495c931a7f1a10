//! The page: sections with their name in the margin, and tables with aligned columns.

use crate::report::plain::clean;
use crate::report::style::Style;

/// Width of the margin that holds the sections' names.
const MARGIN: usize = 16;
/// Width of the page; tables may be wider.
const WIDTH: usize = 120;

/// A page as it grows. All text passes [`clean`] here, so no section can forget it.
pub struct Page {
    style: Style,
    out: String,
}

/// One section: the first line stands beside its name, the others below that line.
pub struct Section {
    name: &'static str,
    lines: Vec<Line>,
}

struct Line {
    text: String,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Faint,
    Warning,
    /// Starts in the margin: rows of a table that need the width.
    Wide,
    WideFaint,
    /// Made here, of clean text, with colours in it.
    Painted,
}

impl Section {
    pub const fn new(name: &'static str) -> Self {
        let lines = Vec::new();
        Self { name, lines }
    }

    pub fn line(&mut self, text: impl Into<String>) {
        self.push(text.into(), Kind::Plain);
    }

    /// Less important.
    pub fn faint(&mut self, text: impl Into<String>) {
        self.push(text.into(), Kind::Faint);
    }

    pub fn warning(&mut self, text: impl Into<String>) {
        self.push(text.into(), Kind::Warning);
    }

    /// A line that carries colours of its own; whoever makes it cleans what is foreign in it.
    pub fn painted(&mut self, text: impl Into<String>) {
        self.push(text.into(), Kind::Painted);
    }

    /// A sentence, or several, in lines of at most `width` characters.
    pub fn wrapped(&mut self, text: &str, width: usize) {
        for line in wrap(text, width) {
            self.line(line);
        }
    }

    /// A table in the width of the page, its heading faint.
    pub fn table(&mut self, table: &Table) {
        for (i, row) in table.rows().enumerate() {
            self.push(row, if i == 0 { Kind::WideFaint } else { Kind::Wide });
        }
    }

    pub const fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    fn push(&mut self, text: String, kind: Kind) {
        if matches!(kind, Kind::Wide | Kind::WideFaint) {
            self.lines.push(Line { text, kind });
            return;
        }
        for text in wrapped(&text, WIDTH - MARGIN) {
            self.lines.push(Line { text, kind });
        }
    }
}

/// The text in lines of at most `width` characters where its words allow; all but the first are indented.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_inclusive(' ') {
        let length = line.chars().count() + word.trim_end().chars().count();
        if length > width && !line.trim().is_empty() {
            lines.push(line.trim_end().to_owned());
            line = "  ".to_owned();
        }
        line.push_str(word);
    }
    lines.push(line.trim_end().to_owned());
    lines
}

impl Page {
    pub const fn new(style: Style) -> Self {
        let out = String::new();
        Self { style, out }
    }

    /// The line that opens a process's part.
    pub fn headline(&mut self, first: &str, rest: &str) {
        let first = self.style.heading(&clean(first));
        self.out.push_str(&format!("{first}{}\n", clean(rest)));
    }

    /// A line without a section's name.
    pub fn faint(&mut self, text: &str) {
        let text = self.style.faint(&clean(text));
        self.out.push_str(&format!("{text}\n"));
    }

    pub fn gap(&mut self) {
        self.out.push('\n');
    }

    /// Adds a section; an empty one leaves no mark.
    pub fn section(&mut self, section: &Section) {
        let Section { name, lines } = section;
        for (i, Line { text, kind }) in lines.iter().enumerate() {
            let text = if *kind == Kind::Painted {
                text.into()
            } else {
                clean(text)
            };
            let styled = match kind {
                Kind::Plain | Kind::Wide | Kind::Painted => text.clone().into_owned(),
                Kind::Faint | Kind::WideFaint => self.style.faint(&text),
                Kind::Warning => self.style.warning(&text),
            };
            if i == 0 {
                self.out.push_str(&self.style.heading(name));
                if !text.is_empty() {
                    let pad = MARGIN.saturating_sub(name.len()).max(1);
                    self.out.push_str(&" ".repeat(pad));
                }
            } else if matches!(kind, Kind::Wide | Kind::WideFaint) {
                self.out.push_str("  ");
            } else {
                self.out.push_str(&" ".repeat(MARGIN));
            }
            self.out.push_str(&styled);
            self.out.push('\n');
        }
    }

    pub fn finish(self) -> String {
        self.out
    }
}

/// Breaks text at blanks into lines of at most `width` characters; a longer word has a line of its own.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words(text) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Words, with what belongs to a number (`10 002 blocks`, `96.1 MiB`, `5 %`) in one piece.
fn words(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let bytes = text.as_bytes();
    for (at, _) in text.match_indices(' ') {
        let follows_digit = at > 0 && bytes[at - 1].is_ascii_digit();
        let rest = &text[at + 1..];
        let belongs = rest.starts_with(|c: char| c.is_ascii_digit())
            || ["%", "KiB", "MiB", "GiB", "byte"]
                .iter()
                .any(|unit| rest.starts_with(unit));
        if !(follows_digit && belongs) {
            pieces.push(text[start..at].trim());
            start = at + 1;
        }
    }
    pieces.push(text[start..].trim());
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// How a column's cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Rows of cells; each column is as wide as its widest cell.
pub struct Table {
    columns: Vec<Align>,
    rows: Vec<Row>,
}

enum Row {
    Cells(Vec<String>),
    /// A remark between rows, indented like a cell of the second column.
    Remark(String),
}

impl Table {
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let heading = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        Self {
            columns: columns.iter().map(|(_, align)| *align).collect(),
            rows: vec![Row::Cells(heading)],
        }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(Row::Cells(cells));
    }

    pub fn remark(&mut self, text: String) {
        self.rows.push(Row::Remark(text));
    }

    /// The lines, heading first, without blanks at the end.
    pub fn rows(&self) -> impl Iterator<Item = String> + '_ {
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| match row {
                    Row::Cells(cells) => cells.get(column).map(|cell| cell.chars().count()),
                    Row::Remark(_) => None,
                })
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        self.rows.iter().map(move |row| match row {
            Row::Remark(text) => format!("{}{text}", " ".repeat(widths.first().map_or(0, |first| first + 2))),
            Row::Cells(cells) => {
                let mut line = String::new();
                for ((cell, align), width) in cells.iter().zip(&self.columns).zip(&widths) {
                    let pad = " ".repeat(width - cell.chars().count());
                    match align {
                        Align::Left => line.push_str(&format!("{cell}{pad}  ")),
                        Align::Right => line.push_str(&format!("{pad}{cell}  ")),
                    }
                }
                line.truncate(line.trim_end().len());
                line
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_with_their_units() {
        assert_eq!(wrap("it holds 10 002 blocks", 12), ["it holds", "10 002", "blocks"]);
        assert_eq!(wrap("and 96.1 MiB more", 9), ["and", "96.1 MiB", "more"]);
        assert_eq!(wrap("", 9), Vec::<String>::new());
    }

    #[test]
    fn columns_align() {
        let mut table = Table::new(&[("#", Align::Right), ("what", Align::Left), ("n", Align::Right)]);
        table.row(vec!["1".into(), "a".into(), "10".into()]);
        table.remark("... 9 more".into());
        table.row(vec!["11".into(), "longer".into(), "5".into()]);
        let lines: Vec<String> = table.rows().collect();
        assert_eq!(
            lines,
            [" #  what     n", " 1  a       10", "    ... 9 more", "11  longer   5"]
        );
    }

    #[test]
    fn long_lines_are_wrapped_between_words() {
        assert_eq!(wrapped("aa bb cc", 5), ["aa bb", "  cc"]);
        assert_eq!(wrapped("a   b", 5), ["a   b"]);
        assert_eq!(wrapped("", 5), [""]);
        assert_eq!(wrapped("longer than that x", 6), ["longer", "  than", "  that", "  x"]);
    }

    #[test]
    fn foreign_text_is_cleaned_and_own_colour_is_not() {
        let mut page = Page::new(Style::COLOUR);
        let mut section = Section::new("NAME");
        section.line("a\x1b[2Jb");
        page.section(&section);
        assert_eq!(page.finish(), "\x1b[1mNAME\x1b[0m            a\u{fffd}[2Jb\n");
    }
}
