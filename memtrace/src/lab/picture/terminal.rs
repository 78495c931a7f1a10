//! A picture in the terminal: dots of braille (two by four in a cell), axes, and each series' name where it ends.
//!
//! Where the terminal shows no Unicode, each series has a letter of its own instead of dots.

use super::scale::Scale;
use super::{Picture, Series, Shape};

/// How a picture may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Columns of the whole picture.
    pub width: usize,
    /// Lines of the drawing area.
    pub height: usize,
    pub unicode: bool,
    pub colour: bool,
}

const COLOURS: [u8; 6] = [34, 33, 32, 35, 36, 31];
const LETTERS: [char; 6] = ['*', 'o', 'x', '+', '#', '%'];

pub fn render(picture: &Picture, style: Style) -> String {
    let y = Scale::of_y(picture, (style.height / 3).max(2));
    let x = Scale::of_x(picture, (style.width / 14).max(2));
    let margin = y.ticks.iter().map(|tick| tick.text.chars().count()).max().unwrap_or(0);
    let columns = style.width.saturating_sub(margin + 3).max(20);
    let mut canvas = Canvas::new(columns, style.height.max(4));
    for (index, series) in picture.series.iter().enumerate() {
        canvas.draw(index, series, &x, &y, picture);
    }

    let mut out = format!("{}\n{}: {}\n", picture.title, picture.y.label, legend(picture, style));
    let label_of = |row: usize| {
        let nearest =
            |place: f64| ((1.0 - (place - y.low) / (y.high - y.low)) * (canvas.rows - 1) as f64).round() as usize;
        y.ticks
            .iter()
            .find(|tick| nearest(tick.place) == row)
            .map(|tick| tick.text.as_str())
    };
    let (tick_mark, side) = if style.unicode { ('┤', '│') } else { ('+', '|') };
    for row in 0..canvas.rows {
        let label = label_of(row);
        let edge = if label.is_some() { tick_mark } else { side };
        out.push_str(&format!(
            "{:>margin$} {edge}{}\n",
            label.unwrap_or(""),
            canvas.line(row, style)
        ));
    }
    out.push_str(&axis_line(&x, margin, columns, style.unicode));
    if !picture.x.label.is_empty() {
        out.push_str(&format!("{:>width$}\n", picture.x.label, width = margin + 2 + columns));
    }
    out
}

fn legend(picture: &Picture, style: Style) -> String {
    let names = picture.series.iter().enumerate().map(|(index, series)| {
        let sign = if style.unicode {
            glyph(index, series.shape)
        } else {
            LETTERS[index % LETTERS.len()]
        };
        paint(&format!("{sign} {}", series.name), index, style)
    });
    names.collect::<Vec<_>>().join("   ")
}

fn glyph(index: usize, shape: Shape) -> char {
    match shape {
        Shape::Bars => BAR_FILLS[index % BAR_FILLS.len()],
        Shape::Line | Shape::Steps => MARKS[index % MARKS.len()],
    }
}

const BAR_FILLS: [char; 4] = ['█', '▒', '░', '▓'];
/// Stands on the last point of a series, so that series are told apart without colour.
const MARKS: [char; 6] = ['●', '○', '■', '□', '▲', '△'];

fn paint(text: &str, index: usize, style: Style) -> String {
    if style.colour {
        format!("\x1b[{}m{text}\x1b[0m", COLOURS[index % COLOURS.len()])
    } else {
        text.to_string()
    }
}

fn axis_line(x: &Scale, margin: usize, columns: usize, unicode: bool) -> String {
    let (corner, dash, tick_mark) = if unicode {
        ('└', '─', '┬')
    } else {
        ('+', '-', '+')
    };
    let mut line: Vec<char> = vec![dash; columns];
    let mut labels: Vec<char> = vec![' '; margin + 2 + columns + 12];
    let mut free_from = 0;
    for tick in &x.ticks {
        let share = ((tick.place - x.low) / (x.high - x.low)).clamp(0.0, 1.0);
        let column = (share * (columns - 1) as f64).round() as usize;
        let length = tick.text.chars().count();
        let start = (margin + 2 + column).saturating_sub(length / 2);
        if start < free_from || start + length > labels.len() {
            continue;
        }
        line[column] = tick_mark;
        for (offset, character) in tick.text.chars().enumerate() {
            labels[start + offset] = character;
        }
        free_from = start + length + 2;
    }
    let labels: String = labels.into_iter().collect();
    format!(
        "{:>margin$} {corner}{}\n{}\n",
        "",
        line.into_iter().collect::<String>(),
        labels.trim_end()
    )
}

/// Cells of two by four dots, each with the series that drew there last.
struct Canvas {
    columns: usize,
    rows: usize,
    dots: Vec<u8>,
    owner: Vec<Option<usize>>,
    signs: Vec<Option<char>>,
}

impl Canvas {
    fn new(columns: usize, rows: usize) -> Self {
        let cells = columns * rows;
        Self {
            columns,
            rows,
            dots: vec![0; cells],
            owner: vec![None; cells],
            signs: vec![None; cells],
        }
    }

    fn draw(&mut self, index: usize, series: &Series, x: &Scale, y: &Scale, picture: &Picture) {
        if series.shape == Shape::Bars {
            return self.draw_bars(index, series, x, y, picture);
        }
        let (width, height) = ((self.columns * 2 - 1) as f64, (self.rows * 4 - 1) as f64);
        let place = |point: (f64, f64)| Some((x.share(point.0)? * width, (1.0 - y.share(point.1)?) * height));
        let places: Vec<_> = series.outline().into_iter().filter_map(place).collect();
        for pair in places.windows(2) {
            self.line_between(index, pair[0], pair[1]);
        }
        if let Some(&(column, row)) = places.last() {
            self.dot(index, column, row);
            let cell = (row as usize / 4) * self.columns + column as usize / 2;
            self.signs[cell] = Some(glyph(index, series.shape));
        }
    }

    fn line_between(&mut self, index: usize, from: (f64, f64), to: (f64, f64)) {
        let steps = (to.0 - from.0).abs().max((to.1 - from.1).abs()).ceil().max(1.0);
        for step in 0..=steps as usize {
            let share = step as f64 / steps;
            self.dot(
                index,
                from.0 + (to.0 - from.0) * share,
                from.1 + (to.1 - from.1) * share,
            );
        }
    }

    fn dot(&mut self, index: usize, column: f64, row: f64) {
        const BITS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
        let (column, row) = (column.round() as usize, row.round() as usize);
        let cell = (row / 4) * self.columns + column / 2;
        self.dots[cell] |= BITS[row % 4][column % 2];
        self.owner[cell] = Some(index);
    }

    fn draw_bars(&mut self, index: usize, series: &Series, x: &Scale, y: &Scale, picture: &Picture) {
        let slot = 0.8 / picture.bars().max(1) as f64;
        for &(place, value) in &series.points {
            let left = place - 0.4 + slot * index as f64;
            let (Some(from), Some(to)) = (x.share(left), x.share(left + slot)) else {
                continue;
            };
            let Some(top) = y.share(value) else { continue };
            let first = (from * self.columns as f64).round() as usize;
            let last = ((to * self.columns as f64).round() as usize).clamp(first + 1, self.columns);
            let zero = y.share(0.0).unwrap_or(0.0);
            let row_of = |share: f64| ((1.0 - share) * self.rows as f64).round() as usize;
            for row in row_of(top.max(zero))..row_of(top.min(zero)) {
                for column in first..last {
                    self.signs[row * self.columns + column] = Some(glyph(index, Shape::Bars));
                    self.owner[row * self.columns + column] = Some(index);
                }
            }
        }
    }

    fn line(&self, row: usize, style: Style) -> String {
        let mut out = String::new();
        for cell in row * self.columns..(row + 1) * self.columns {
            let Some(owner) = self.owner[cell] else {
                out.push(' ');
                continue;
            };
            let sign = if !style.unicode {
                LETTERS[owner % LETTERS.len()]
            } else {
                self.signs[cell]
                    .or_else(|| char::from_u32(0x2800 + u32::from(self.dots[cell])))
                    .unwrap_or(' ')
            };
            out.push_str(&paint(&sign.to_string(), owner, style));
        }
        out.trim_end().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Axis;
    use super::*;
    use crate::lab::unit::Unit;

    fn staircase() -> Picture {
        Picture {
            name: "staircase",
            title: "The break".to_string(),
            x: Axis::linear("mallocs", Unit::Count),
            y: Axis::linear("break", Unit::Bytes),
            series: vec![Series::new(
                "break",
                Shape::Steps,
                vec![(0.0, 0.0), (5.0, 4096.0), (10.0, 8192.0)],
            )],
        }
    }

    const PLAIN: Style = Style {
        width: 40,
        height: 8,
        unicode: false,
        colour: false,
    };

    #[test]
    fn a_staircase_rises_from_left_to_right() {
        let text = render(&staircase(), PLAIN);
        let rows: Vec<&str> = text.lines().skip(2).take(8).collect();
        let first_star = |row: &str| row.find('*');
        assert!(first_star(rows[0]) > first_star(rows[7]), "{text}");
        assert!(text.contains("8 KiB") && text.contains("mallocs"), "{text}");
        assert!(text.is_ascii(), "{text}");
    }

    #[test]
    fn no_line_is_wider_than_asked() {
        let text = render(&staircase(), Style { unicode: true, ..PLAIN });
        assert!(text.lines().all(|line| line.chars().count() <= 42), "{text}");
    }

    #[test]
    fn a_taller_bar_fills_more() {
        let picture = Picture {
            x: Axis::places("", vec!["a".into(), "b".into()]),
            series: vec![Series::new("bars", Shape::Bars, vec![(0.0, 1.0), (1.0, 4.0)])],
            ..staircase()
        };
        let text = render(&picture, PLAIN);
        let stars = |range: std::ops::Range<usize>| -> usize {
            text.lines()
                .skip(2)
                .map(|line| {
                    line.get(range.start..range.end.min(line.len()))
                        .unwrap_or("")
                        .matches('*')
                        .count()
                })
                .sum()
        };
        assert!(stars(24..42) > 2 * stars(0..24), "{text}");
    }
}
