//! Figures: what was measured, with the spread of its rounds, and what could not be.

use super::picture::Picture;
use super::unit::Unit;

/// One measured value.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// A stable name; the experiment's checks refer to it.
    pub key: &'static str,
    /// What it is, for people.
    pub label: String,
    pub value: f64,
    pub unit: Unit,
    /// None for what is counted, not timed.
    pub spread: Option<Spread>,
}

/// How far the rounds of a timing lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// First and third quartile.
    pub low: f64,
    pub high: f64,
    pub rounds: usize,
}

impl Figure {
    pub fn counted(key: &'static str, label: impl Into<String>, value: f64, unit: Unit) -> Self {
        Self {
            key,
            label: label.into(),
            value,
            unit,
            spread: None,
        }
    }

    /// The median of several rounds with their quartiles; None without a round.
    pub fn timed(key: &'static str, label: impl Into<String>, rounds: &[f64], unit: Unit) -> Option<Self> {
        let sorted = sorted(rounds);
        Some(Self {
            key,
            label: label.into(),
            value: quantile(&sorted, 0.5)?,
            unit,
            spread: Some(Spread {
                low: quantile(&sorted, 0.25)?,
                high: quantile(&sorted, 0.75)?,
                rounds: rounds.len(),
            }),
        })
    }

    /// Half of the rounds lie further apart than a third of the value.
    pub fn is_noisy(&self) -> bool {
        self.spread
            .is_some_and(|spread| spread.high - spread.low > self.value.abs() / 3.0)
    }

    /// "10.4 ns (10.2 ns to 11 ns, 9 rounds)"
    pub fn show(&self) -> String {
        let value = self.unit.show(self.value);
        match self.spread {
            Some(Spread { low, high, rounds }) => {
                format!(
                    "{value} ({} to {}, {rounds} rounds)",
                    self.unit.show(low),
                    self.unit.show(high)
                )
            }
            None => value,
        }
    }
}

/// Everything one experiment brought home.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub figures: Vec<Figure>,
    /// Figures that could not be measured, with the reason.
    pub missing: Vec<Missing>,
    /// Why a figure is not as claimed, found by looking, not by guessing.
    pub reasons: Vec<Reason>,
    /// How far others moved a figure that is not the experiment's own.
    pub disturbances: Vec<Disturbance>,
    /// What else there is to know, a sentence each.
    pub notes: Vec<String>,
    pub pictures: Vec<Picture>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub key: &'static str,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub key: &'static str,
    pub text: String,
}

/// A figure of the whole machine moves without the experiment too: by so much, in the figure's unit, while it idled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disturbance {
    pub key: &'static str,
    pub by: f64,
}

impl Measured {
    pub fn count(&mut self, key: &'static str, label: impl Into<String>, value: f64, unit: Unit) {
        if value.is_finite() {
            self.figures.push(Figure::counted(key, label, value, unit));
        } else {
            // A share of nothing.
            self.miss(key, "there was nothing to measure it by");
        }
    }

    /// Adds the median of the rounds, or says that there was none.
    pub fn time(&mut self, key: &'static str, label: impl Into<String>, rounds: &[f64], unit: Unit) {
        match Figure::timed(key, label, rounds, unit) {
            Some(figure) => self.figures.push(figure),
            None => self.miss(key, "no round was finished"),
        }
    }

    pub fn miss(&mut self, key: &'static str, why: impl Into<String>) {
        self.missing.push(Missing { key, why: why.into() });
    }

    pub fn because(&mut self, key: &'static str, text: impl Into<String>) {
        self.reasons.push(Reason { key, text: text.into() });
    }

    pub fn disturbed(&mut self, key: &'static str, by: f64) {
        self.disturbances.push(Disturbance { key, by });
    }

    /// By how much others may have moved a figure, in its unit.
    pub fn disturbance(&self, key: &str) -> f64 {
        let found = self.disturbances.iter().filter(|disturbance| disturbance.key == key);
        found.map(|disturbance| disturbance.by).fold(0.0, f64::max)
    }

    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    pub fn figure(&self, key: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.key == key)
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// A quantile of sorted values, between neighbours in proportion; None of none.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = place.ceil() as usize;
    Some(sorted[below] + (sorted[above] - sorted[below]) * place.fract())
}

pub fn median(values: &[f64]) -> Option<f64> {
    quantile(&sorted(values), 0.5)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_wide_spread_is_noisy() {
        let calm = Figure::timed("k", "calm", &[10.0, 10.1, 10.2, 9.9, 30.0], Unit::Nanoseconds).unwrap();
        assert!(!calm.is_noisy(), "one outlier of five does not make noise: {calm:?}");
        let wild = Figure::timed("k", "wild", &[10.0, 20.0, 30.0, 40.0, 5.0], Unit::Nanoseconds).unwrap();
        assert!(wild.is_noisy());
    }

    proptest! {
        #[test]
        fn quantiles_lie_in_order_and_inside(values in proptest::collection::vec(-1e9f64..1e9, 1..50)) {
            let figure = Figure::timed("k", "any", &values, Unit::Nanoseconds).unwrap();
            let spread = figure.spread.unwrap();
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert!(least <= spread.low && spread.low <= figure.value);
            prop_assert!(figure.value <= spread.high && spread.high <= most);
        }
    }
}
