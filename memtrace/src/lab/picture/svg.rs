//! A picture as SVG, drawn by plotters: white ground, readable without colour by direct labels in the legend.

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::scale::Scale;
use super::{Picture, Shape};

/// Share of a place that its bars take; the rest keeps it from its neighbour.
const GROUP: f64 = 0.92;
const WIDTH: u32 = 920;
const HEIGHT: u32 = 540;
/// Height of title and legend.
const HEAD: u32 = 72;
/// Up to so many points of a series are marked one by one.
const MOST_MARKS: usize = 40;
/// Colours that people with a colour vision deficiency tell apart (Okabe and Ito), the darkest first.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
];
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// A scale as plotters wants its axes: its ticks are the only places with a line and a text.
struct Coordinate(Scale);

impl Ranged for Coordinate {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, limit: (i32, i32)) -> i32 {
        let share = (place - self.0.low) / (self.0.high - self.0.low);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.0.ticks.iter().map(|tick| tick.place).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.0.low..self.0.high
    }
}

impl ValueFormatter<f64> for Coordinate {
    fn format_ext(&self, place: &f64) -> String {
        let near = (self.0.high - self.0.low) * 1e-6;
        let tick = self.0.ticks.iter().find(|tick| (tick.place - place).abs() < near);
        tick.map_or_else(String::new, |tick| tick.text.clone())
    }
}

/// Errors only when the drawing library fails.
pub fn render(picture: &Picture) -> Result<String> {
    let mut out = String::new();
    draw(picture, &mut out).map_err(|error| anyhow!("drawing {}: {error}", picture.name))?;
    Ok(out)
}

fn draw(picture: &Picture, out: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let (x, y) = (Scale::of_x(picture, 8), Scale::of_y(picture, 6));
    let root = SVGBackend::with_string(out, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = ("sans-serif", 15).into_font().color(&INK);
    let (head, ground) = root.split_vertically(HEAD);
    draw_head(&head, picture, &text)?;
    let mut chart = ChartBuilder::on(&ground)
        .margin_top(14)
        .margin_bottom(12)
        .margin_left(18)
        .margin_right(40)
        .x_label_area_size(if picture.x.label.is_empty() { 32 } else { 58 })
        .y_label_area_size(104)
        .build_cartesian_2d(Coordinate(x.clone()), Coordinate(y.clone()))?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(&picture.x.label)
        .y_desc(&picture.y.label)
        .x_labels(x.ticks.len())
        .y_labels(y.ticks.len())
        .axis_desc_style(text.clone())
        .label_style(text.clone())
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT);
    if !picture.x.places.is_empty() {
        mesh.disable_x_mesh();
    }
    mesh.draw()?;

    let slot = GROUP / picture.bars().max(1) as f64;
    for (index, series) in picture.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let placed = |points: Vec<(f64, f64)>| -> Vec<(f64, f64)> {
            points
                .into_iter()
                .filter_map(|point| Some((x.place(point.0)?, y.place(point.1)?)))
                .collect()
        };
        match series.shape {
            Shape::Line | Shape::Steps => {
                chart.draw_series(LineSeries::new(placed(series.outline()), colour.stroke_width(2)))?;
                if series.points.len() <= MOST_MARKS {
                    let marks = placed(series.points.clone());
                    chart.draw_series(marks.into_iter().map(|place| Circle::new(place, 3, colour.filled())))?;
                }
            }
            Shape::Bars => {
                // Bars stand on zero, or where there is none on the axis's end.
                let ground = y.place(0.0).map_or(y.low, |zero| zero.clamp(y.low, y.high));
                let gap = (y.high - y.low) * 0.012;
                for &(place, value) in &series.points {
                    let Some(end) = y.place(value) else { continue };
                    let left = place - GROUP / 2.0 + slot * index as f64;
                    let corners = [(left, ground), (left + slot * 0.94, end)];
                    chart.draw_series([Rectangle::new(corners, colour.filled())])?;
                    let below = end < ground;
                    let (side, label) = if below {
                        (VPos::Top, end - gap)
                    } else {
                        (VPos::Bottom, end + gap)
                    };
                    let style = text.clone().pos(Pos::new(HPos::Center, side));
                    let middle = (left + slot * 0.47, label);
                    chart.draw_series([Text::new(picture.y.unit.show(value), middle, style)])?;
                }
            }
        }
    }
    root.present()?;
    Ok(())
}

/// The title, and below it each series' colour and name: beside the drawing, so that it hides nothing.
fn draw_head(
    head: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    picture: &Picture,
    text: &TextStyle<'_>,
) -> Result<(), Box<dyn std::error::Error>> {
    head.draw(&Text::new(
        picture.title.as_str(),
        (24, 14),
        ("sans-serif", 20).into_font().color(&INK),
    ))?;

    let mut left = 24;
    for (index, series) in picture.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let half = if series.shape == Shape::Bars { 6 } else { 2 };
        head.draw(&Rectangle::new(
            [(left, 56 - half), (left + 20, 56 + half)],
            colour.filled(),
        ))?;
        head.draw(&Text::new(series.name.as_str(), (left + 28, 49), text.clone()))?;
        // Fonts differ; this is generous for the usual ones.
        left += 28 + series.name.chars().count() as i32 * 8 + 30;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Series};
    use super::*;
    use crate::lab::unit::Unit;

    #[test]
    fn a_picture_names_its_axes_units_and_series() {
        let picture = Picture {
            name: "rss",
            title: "Resident after free".to_string(),
            x: Axis::linear("time", Unit::Seconds),
            y: Axis::linear("resident", Unit::Bytes),
            series: vec![
                Series::new("glibc", Shape::Line, vec![(0.0, 1048576.0), (1.0, 2097152.0)]),
                Series::new("jemalloc", Shape::Steps, vec![(0.0, 1048576.0), (1.0, 0.0)]),
            ],
        };
        let svg = render(&picture).unwrap();
        for text in [
            "Resident after free",
            "time",
            "resident",
            "glibc",
            "jemalloc",
            "1 MiB",
            "1 s",
        ] {
            assert!(svg.contains(text), "{text} is not in the picture");
        }
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    }
}
