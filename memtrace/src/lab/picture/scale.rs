//! From values to places on an axis: range, round ticks and their texts, the same for every renderer.

use super::{Axis, Picture};

/// An axis with its range and ticks. Places run from `low` to `high`: values, or their logarithms.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    pub low: f64,
    pub high: f64,
    pub ticks: Vec<Tick>,
    logarithmic: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    pub place: f64,
    pub text: String,
}

impl Scale {
    pub fn of_x(picture: &Picture, ticks: usize) -> Self {
        let values = picture
            .series
            .iter()
            .flat_map(|series| series.points.iter().map(|point| point.0));
        Self::new(&picture.x, values, ticks, false)
    }

    pub fn of_y(picture: &Picture, ticks: usize) -> Self {
        let values = picture
            .series
            .iter()
            .flat_map(|series| series.points.iter().map(|point| point.1));
        Self::new(&picture.y, values, ticks, picture.bars() > 0)
    }

    fn new(axis: &Axis, values: impl Iterator<Item = f64>, ticks: usize, from_zero: bool) -> Self {
        if !axis.places.is_empty() {
            return Self::places(axis);
        }
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite() && (!axis.logarithmic || *value > 0.0)) {
            low = low.min(value);
            high = high.max(value);
        }
        if !low.is_finite() {
            (low, high) = if axis.logarithmic { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        if axis.logarithmic {
            Self::logarithmic(axis, low, high, ticks)
        } else {
            Self::linear(axis, low, high, ticks, from_zero)
        }
    }

    fn places(axis: &Axis) -> Self {
        let ticks = axis.places.iter().enumerate().map(|(place, text)| Tick {
            place: place as f64,
            text: text.clone(),
        });
        Self {
            low: -0.6,
            high: axis.places.len() as f64 - 0.4,
            ticks: ticks.collect(),
            logarithmic: false,
        }
    }

    fn linear(axis: &Axis, low: f64, high: f64, ticks: usize, from_zero: bool) -> Self {
        // Zero belongs to the picture unless everything lies far from it.
        let low = if from_zero || (low > 0.0 && low < high * 0.6) {
            low.min(0.0)
        } else {
            low
        };
        let span = if high > low { high - low } else { high.abs().max(1.0) };
        let step = round_step(span / ticks.max(2) as f64, axis.unit.is_binary());
        let first = (low / step).floor();
        let last = (high / step).ceil().max(first + 1.0);
        let ticks = (0..=(last - first) as usize).map(|index| {
            let place = (first + index as f64) * step;
            Tick {
                place,
                text: axis.unit.show_tick(place),
            }
        });
        let mut scale = Self {
            low: first * step,
            high: last * step,
            ticks: ticks.collect(),
            logarithmic: false,
        };
        if from_zero {
            scale.make_room_for_labels(low, high);
        }
        scale
    }

    /// A bar's value stands beyond its end: it is not to stand outside the drawing.
    fn make_room_for_labels(&mut self, low: f64, high: f64) {
        let room = (self.high - self.low) * 0.07;
        if self.high - high < room {
            self.high += room;
        }
        if low < 0.0 && low - self.low < room {
            self.low -= room;
        }
    }

    fn logarithmic(axis: &Axis, low: f64, high: f64, ticks: usize) -> Self {
        let base: f64 = if axis.unit.is_binary() { 2.0 } else { 10.0 };
        let first = (low.ln() / base.ln() + 1e-9).floor();
        let last = (high.ln() / base.ln() - 1e-9).ceil().max(first + 1.0);
        let every = ((last - first) / ticks.max(2) as f64).ceil().max(1.0);
        let count = ((last - first) / every).floor() as usize;
        let ticks = (0..=count).map(|index| {
            let value = base.powf(first + index as f64 * every);
            Tick {
                place: value.ln(),
                text: axis.unit.show_tick(value),
            }
        });
        Self {
            low: base.powf(first).ln(),
            high: base.powf(last).ln(),
            ticks: ticks.collect(),
            logarithmic: true,
        }
    }

    /// Where a value lies; None where it has no place (zero on a logarithmic axis).
    pub fn place(&self, value: f64) -> Option<f64> {
        match (self.logarithmic, value > 0.0) {
            (false, _) => Some(value),
            (true, true) => Some(value.ln()),
            (true, false) => None,
        }
    }

    /// The same as a share of the axis, 0 to 1.
    pub fn share(&self, value: f64) -> Option<f64> {
        self.place(value)
            .map(|place| ((place - self.low) / (self.high - self.low)).clamp(0.0, 1.0))
    }
}

/// The next round number from `rough` upwards: 1, 2 or 5 times a power of ten; for bytes a power of two.
fn round_step(rough: f64, binary: bool) -> f64 {
    if binary {
        return rough.max(1.0).log2().ceil().exp2();
    }
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|factor| factor * power >= rough * 0.999)
        .unwrap_or(10.0);
    factor * power
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Series, Shape};
    use super::*;
    use crate::lab::unit::Unit;

    fn picture(y: Axis, points: Vec<(f64, f64)>) -> Picture {
        Picture {
            name: "p",
            title: String::new(),
            x: Axis::linear("x", Unit::Count),
            y,
            series: vec![Series::new("s", Shape::Line, points)],
        }
    }

    #[test]
    fn byte_axes_step_in_powers_of_two() {
        let scale = Scale::of_y(
            &picture(Axis::linear("break", Unit::Bytes), vec![(0.0, 0.0), (1.0, 946_176.0)]),
            5,
        );
        let texts: Vec<_> = scale.ticks.iter().map(|tick| tick.text.as_str()).collect();
        assert_eq!(texts, ["0 B", "256 KiB", "512 KiB", "768 KiB", "1 MiB"]);
    }

    #[test]
    fn logarithmic_axes_have_no_place_for_zero() {
        let scale = Scale::of_y(
            &picture(
                Axis::logarithmic("ns", Unit::Nanoseconds),
                vec![(0.0, 0.0), (1.0, 50.0)],
            ),
            5,
        );
        assert_eq!(scale.place(0.0), None);
        assert!(scale.place(50.0).is_some());
    }

    proptest! {
        #[test]
        fn every_value_lies_inside_its_axis(
            values in proptest::collection::vec(-1e12f64..1e12, 1..30),
            logarithmic in any::<bool>(),
            binary in any::<bool>(),
        ) {
            let unit = if binary { Unit::Bytes } else { Unit::Nanoseconds };
            let axis = Axis { logarithmic, ..Axis::linear("y", unit) };
            let points: Vec<_> = values.iter().enumerate().map(|(x, &y)| (x as f64, y)).collect();
            let scale = Scale::of_y(&picture(axis, points), 6);
            prop_assert!(scale.low < scale.high);
            prop_assert!(scale.ticks.len() >= 2 && scale.ticks.len() < 40, "{} ticks", scale.ticks.len());
            for value in values {
                if let Some(place) = scale.place(value) {
                    let slack = (scale.high - scale.low) * 1e-6;
                    prop_assert!(scale.low - slack <= place && place <= scale.high + slack, "{value}: {place} in {scale:?}");
                }
            }
        }
    }
}
