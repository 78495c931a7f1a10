//! Pictures as plain data, drawn by renderers that know nothing of the experiments: SVG and the terminal.

mod scale;
pub mod svg;
pub mod terminal;

use serde::Serialize;

use super::unit::Unit;

/// A chart: axes with units, and series over them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Picture {
    /// Stem of its file.
    pub name: &'static str,
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Axis {
    pub label: String,
    pub unit: Unit,
    pub logarithmic: bool,
    /// Names of the places 0, 1, 2, ... instead of numbers.
    pub places: Vec<String>,
}

impl Axis {
    pub fn linear(label: impl Into<String>, unit: Unit) -> Self {
        Self {
            label: label.into(),
            unit,
            logarithmic: false,
            places: Vec::new(),
        }
    }

    pub fn logarithmic(label: impl Into<String>, unit: Unit) -> Self {
        Self {
            logarithmic: true,
            ..Self::linear(label, unit)
        }
    }

    pub fn places(label: impl Into<String>, places: Vec<String>) -> Self {
        Self {
            places,
            ..Self::linear(label, Unit::Count)
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    pub name: String,
    pub shape: Shape,
    pub points: Vec<(f64, f64)>,
}

impl Series {
    pub fn new(name: impl Into<String>, shape: Shape, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            shape,
            points,
        }
    }

    /// The points joined as the shape says: a staircase keeps its height until the next point.
    fn outline(&self) -> Vec<(f64, f64)> {
        match self.shape {
            Shape::Line | Shape::Bars => self.points.clone(),
            Shape::Steps => {
                let mut outline: Vec<(f64, f64)> = Vec::with_capacity(self.points.len() * 2);
                for &(x, y) in &self.points {
                    if let Some(&(_, before)) = outline.last() {
                        outline.push((x, before));
                    }
                    outline.push((x, y));
                }
                outline
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    Line,
    Steps,
    Bars,
}

impl Picture {
    /// Nothing could be drawn of it.
    pub fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.points.is_empty())
    }

    /// Series drawn as bars, side by side.
    fn bars(&self) -> usize {
        self.series.iter().filter(|series| series.shape == Shape::Bars).count()
    }
}
