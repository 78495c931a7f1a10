//! Few measurements with much noise: the median, the quartiles, where the true median lies, and what can be said of it against
//! a bound.
//!
//! The quartiles show the spread of single measurements, which no number of them makes narrower. Where the median of all
//! that could be measured lies is told by order statistics, without any assumption about the noise: each measurement is below
//! it as often as above, like the throws of a coin (Conover, Practical Nonparametric Statistics, 3.2).

use serde::Serialize;

/// A figure measured several times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    /// First and third quartile.
    pub low: f64,
    pub high: f64,
    /// The true median lies between these, 95 times in a hundred; with fewer than six measurements between the least and
    /// the greatest of them, which is less sure (75 in a hundred with three).
    pub from: f64,
    pub to: f64,
    pub count: usize,
}

impl Spread {
    /// None of nothing.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let outside = outside(values.len());
        Some(Self {
            median: quantile(&values, 0.5)?,
            low: quantile(&values, 0.25)?,
            high: quantile(&values, 0.75)?,
            from: *values.get(outside)?,
            to: *values.get(values.len().checked_sub(1 + outside)?)?,
            count: values.len(),
        })
    }

    /// Whether the figure is at most `bound`: cannot be told where the bound lies where the true median may, or where there are
    /// too few measurements.
    pub fn at_most(&self, bound: f64) -> Verdict {
        if self.count < FEWEST {
            Verdict::CannotTell
        } else if self.to <= bound {
            Verdict::Reached
        } else if self.from > bound {
            Verdict::NotReached
        } else {
            Verdict::CannotTell
        }
    }
}

const FEWEST: usize = 3;
/// How often the true median may lie elsewhere.
const DOUBT: f64 = 0.05;

/// How many of so many sorted values can be left out at either end: the median of all is beyond the last of them with half of
/// the doubt.
fn outside(count: usize) -> usize {
    // That at most k of n throws show heads, term by term.
    let mut term = 0.5f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut sum = term;
    let mut k = 0;
    while sum <= DOUBT / 2.0 && 2 * (k + 1) < count {
        k += 1;
        term *= (count - k + 1) as f64 / k as f64;
        sum += term;
    }
    // The last term was one too many.
    if sum > DOUBT / 2.0 { k.saturating_sub(1) } else { k }
}

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
        assert_eq!(spread.at_most(1.4), Verdict::Reached);
        assert_eq!(spread.at_most(1.2), Verdict::CannotTell);
        assert_eq!(spread.at_most(0.99), Verdict::NotReached);
        assert_eq!(Spread::of([1.0, 1.0]).unwrap().at_most(2.0), Verdict::CannotTell);
    }

    /// The ranks that tables of the confidence interval of a median give: the first value is number 1.
    #[test]
    fn the_median_lies_between_the_ranks_of_the_tables() {
        for (count, first) in [
            (3, 1),
            (5, 1),
            (6, 1),
            (8, 1),
            (9, 2),
            (10, 2),
            (20, 6),
            (40, 14),
            (50, 18),
        ] {
            let spread = Spread::of((1..=count).map(f64::from)).unwrap();
            assert_eq!(
                (spread.from, spread.to),
                (f64::from(first), f64::from(count + 1 - first)),
                "{count}"
            );
        }
    }

    #[test]
    fn the_worst_of_several_counts() {
        use Verdict::{CannotTell, NotMeasured, NotReached, Reached};
        assert_eq!(Verdict::all([Reached, CannotTell, NotReached]), NotReached);
        assert_eq!(Verdict::all([Reached, CannotTell, NotMeasured]), CannotTell);
        assert_eq!(Verdict::all([]), NotMeasured);
    }
}
