//! Few measurements with much noise: the median, the quartiles, and what can be said of them against a bound.

use serde::Serialize;

/// A figure measured several times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    /// First and third quartile.
    pub low: f64,
    pub high: f64,
    pub count: usize,
}

impl Spread {
    /// None of nothing.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Some(Self {
            median: quantile(&values, 0.5)?,
            low: quantile(&values, 0.25)?,
            high: quantile(&values, 0.75)?,
            count: values.len(),
        })
    }

    /// Whether the figure is at most `bound`: cannot be told where the bound lies between the quartiles, or where there are
    /// too few measurements for any.
    pub fn at_most(&self, bound: f64) -> Verdict {
        if self.count < FEWEST {
            Verdict::CannotTell
        } else if self.high <= bound {
            Verdict::Reached
        } else if self.low > bound {
            Verdict::NotReached
        } else {
            Verdict::CannotTell
        }
    }
}

const FEWEST: usize = 3;

/// Of sorted values, interpolated.
fn quantile(sorted: &[f64], at: f64) -> Option<f64> {
    let place = at * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + (above - below) * place.fract())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Reached,
    NotReached,
    CannotTell,
    NotMeasured,
}

impl Verdict {
    pub const fn words(self) -> &'static str {
        match self {
            Self::Reached => "reached",
            Self::NotReached => "NOT REACHED",
            Self::CannotTell => "cannot tell",
            Self::NotMeasured => "not measured",
        }
    }

    /// Of several that must all be reached.
    pub fn all(verdicts: impl IntoIterator<Item = Self>) -> Self {
        let worse = |a: Self, b: Self| match (a, b) {
            (Self::NotReached, _) | (_, Self::NotReached) => Self::NotReached,
            (Self::CannotTell, _) | (_, Self::CannotTell) => Self::CannotTell,
            (Self::Reached, _) | (_, Self::Reached) => Self::Reached,
            _ => Self::NotMeasured,
        };
        verdicts.into_iter().fold(Self::NotMeasured, worse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_interpolated_and_order_does_not_matter() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.low, spread.median, spread.high), (1.75, 2.5, 3.25));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_bound_within_the_spread_cannot_be_told() {
        let spread = Spread::of([1.0, 1.1, 1.2, 1.3, 1.4]).unwrap();
        assert_eq!(spread.at_most(1.3), Verdict::Reached);
        assert_eq!(spread.at_most(1.2), Verdict::CannotTell);
        assert_eq!(spread.at_most(1.05), Verdict::NotReached);
        assert_eq!(Spread::of([1.0, 1.0]).unwrap().at_most(2.0), Verdict::CannotTell);
    }

    #[test]
    fn the_worst_of_several_counts() {
        use Verdict::{CannotTell, NotMeasured, NotReached, Reached};
        assert_eq!(Verdict::all([Reached, CannotTell, NotReached]), NotReached);
        assert_eq!(Verdict::all([Reached, CannotTell, NotMeasured]), CannotTell);
        assert_eq!(Verdict::all([]), NotMeasured);
    }
}
