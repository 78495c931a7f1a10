//! What was watched when, and what that cost: the book behind the report's coverage and cost.
//!
//! Every stretch of time in which each call was counted is a window; a trace that never changes its depth is one, or none.
//! What all calls come to is estimated from the windows as a ratio: so much in the time of all of them, so much more in
//! the rest. How far the windows are from one rate gives the standard error (Cochran, Sampling Techniques, 6.4).
//!
//! Counting slows the process down, so that in a window it gets less done than outside. What the hits have cost in the
//! windows is therefore taken off their time; where that was most of it, what is left says too little, and the estimate is a
//! lower bound.

use crate::event::{Cost, Depth, Snapshot, Watching};
use crate::report::{CostSection, DepthTimes, Estimate, Estimates};

#[derive(Clone, Debug, Default)]
pub struct WatchBook {
    now: Option<Watching>,
    since_ns: u64,
    times: DepthTimes,
    /// Totals and cost as the window in progress began.
    opened: Snapshot,
    opened_cost: Cost,
    windows: u64,
    /// Of all windows: what hits have cost, CPU time, time.
    window_cost_ns: u64,
    window_cpu_ns: u64,
    allocated_blocks: Sums,
    allocated_bytes: Sums,
    freed_blocks: Sums,
    /// Not every call since the last growth was counted.
    gap: bool,
    cost: Option<Cost>,
}

/// Sums over windows: of lengths t in seconds, of counts x, and their products.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    windows: f64,
    t: f64,
    x: f64,
    tt: f64,
    xx: f64,
    xt: f64,
}

impl Sums {
    fn add(&mut self, seconds: f64, count: u64) {
        let x = count as f64;
        self.windows += 1.0;
        self.t += seconds;
        self.x += x;
        self.tt += seconds * seconds;
        self.xx += x * x;
        self.xt += x * seconds;
    }

    /// What the windows and `unseen` seconds beside them come to, where a second outside is worth `worth` inside.
    fn estimate(&self, unseen: f64, worth: f64) -> Option<Estimate> {
        if self.t <= 0.0 {
            return None;
        }
        let unseen = unseen * worth;
        let rate = self.x / self.t;
        let squares = (self.xx - 2.0 * rate * self.xt + rate * rate * self.tt).max(0.0);
        let standard_error = (self.windows >= 2.0).then(|| {
            let of_rate = square_root(squares * self.windows / (self.windows - 1.0)) / self.t;
            of_rate * unseen
        });
        Some(Estimate {
            value: self.x + rate * unseen,
            standard_error,
        })
    }
}

/// By Newton; `core` has none.
fn square_root(value: f64) -> f64 {
    if !(value > 0.0 && value.is_finite()) {
        return 0.0;
    }
    // Half the exponent is a good begin.
    let mut root = f64::from_bits((value.to_bits() >> 1).wrapping_add(0x1ff8_0000_0000_0000));
    for _ in 0..6 {
        root = 0.5 * (root + value / root);
    }
    root
}

/// Beyond this the rest is too little to tell by.
const MOST_SLOWED: f64 = 0.5;

impl WatchBook {
    /// From `time_ns` on something else is watched; `latest` is what has been counted so far.
    pub fn change(&mut self, time_ns: u64, watching: Watching, latest: &Snapshot) {
        self.close(time_ns, latest);
        if self.now.is_none_or(|now| now.depth != watching.depth) {
            self.gap = self.now.is_some() || watching.depth != Depth::Calls;
        }
        self.now = Some(watching);
        self.since_ns = time_ns;
        self.opened = *latest;
        self.opened_cost = self.cost.unwrap_or_default();
    }

    fn close(&mut self, time_ns: u64, latest: &Snapshot) {
        let Some(now) = self.now else { return };
        let length = time_ns.saturating_sub(self.since_ns);
        let sum = match now.depth {
            Depth::Calls => &mut self.times.calls_ns,
            Depth::SlowPath => &mut self.times.slow_path_ns,
            Depth::Syscalls => &mut self.times.syscalls_ns,
            Depth::Nothing => &mut self.times.nothing_ns,
        };
        *sum = sum.saturating_add(length);
        if now.depth != Depth::Calls {
            return;
        }
        self.windows = self.windows.saturating_add(1);
        let cost = self.cost.unwrap_or_default();
        let Cost { trace_ns, cpu_ns, .. } = self.opened_cost;
        self.window_cost_ns = self
            .window_cost_ns
            .saturating_add(cost.trace_ns.saturating_sub(trace_ns));
        self.window_cpu_ns = self.window_cpu_ns.saturating_add(cost.cpu_ns.saturating_sub(cpu_ns));
        let seconds = length as f64 / 1e9;
        let Snapshot {
            allocated_blocks,
            allocated_bytes,
            freed_blocks,
            ..
        } = self.opened;
        let since = |now: u64, then: u64| now.saturating_sub(then);
        self.allocated_blocks
            .add(seconds, since(latest.allocated_blocks, allocated_blocks));
        self.allocated_bytes
            .add(seconds, since(latest.allocated_bytes, allocated_bytes));
        self.freed_blocks.add(seconds, since(latest.freed_blocks, freed_blocks));
    }

    pub const fn now(&self) -> Option<&Watching> {
        self.now.as_ref()
    }

    /// Every call is counted now (or nothing was said, and then it is for the probes to tell).
    pub fn counts_now(&self) -> bool {
        self.now.is_none_or(|now| now.depth == Depth::Calls)
    }

    /// Every call since the last growth was counted. To be asked once for each growth.
    pub fn counts_since_last_growth(&mut self) -> bool {
        let whole = self.counts_now() && !self.gap;
        self.gap = !self.counts_now();
        whole
    }

    pub fn cost(&mut self, cost: &Cost) {
        self.cost = Some(*cost);
    }

    pub const fn latest_cost(&self) -> Option<&Cost> {
        self.cost.as_ref()
    }

    /// Part of the time up to `end_ns` in which every call was counted.
    pub fn calls_fraction(&self, begin_ns: u64, end_ns: u64) -> f64 {
        if self.now.is_none() {
            return 1.0;
        }
        let DepthTimes {
            calls_ns,
            slow_path_ns,
            syscalls_ns,
            nothing_ns,
        } = self.at(end_ns, &Snapshot::default()).times;
        if slow_path_ns == 0 && syscalls_ns == 0 && nothing_ns == 0 {
            // A trace of no length is one of its depth.
            return if self.counts_now() { 1.0 } else { 0.0 };
        }
        let all = calls_ns
            .saturating_add(slow_path_ns)
            .saturating_add(syscalls_ns)
            .saturating_add(nothing_ns);
        let all = all.max(end_ns.saturating_sub(begin_ns));
        calls_ns as f64 / all.max(1) as f64
    }

    /// Part of the time up to `end_ns` in which memory system calls were watched.
    pub fn syscalls_fraction(&self, begin_ns: u64, end_ns: u64) -> f64 {
        let nothing_ns = self.at(end_ns, &Snapshot::default()).times.nothing_ns;
        let all = end_ns.saturating_sub(begin_ns).max(nothing_ns);
        1.0 - nothing_ns as f64 / all.max(1) as f64
    }

    /// The part of the windows' time that the hits took, at least: of that of one thread, or of all that were at work. (A
    /// process that waited for a CPU was slowed down more, which is not to be told from one that was idle.)
    fn slowed(&self) -> f64 {
        let whole = self.window_cpu_ns.max(self.times.calls_ns);
        self.window_cost_ns as f64 / whole.max(1) as f64
    }

    /// The book as it would be if the trace ended now.
    pub fn at(&self, end_ns: u64, latest: &Snapshot) -> Closed {
        let mut book = self.clone();
        book.close(end_ns.max(self.since_ns), latest);
        let DepthTimes {
            calls_ns: _,
            slow_path_ns,
            syscalls_ns,
            nothing_ns,
        } = book.times;
        let unseen = slow_path_ns.saturating_add(syscalls_ns).saturating_add(nothing_ns) as f64 / 1e9;
        let slowed = book.slowed();
        let worth = 1.0 / (1.0 - slowed.min(MOST_SLOWED));
        let estimates = || {
            Some(Estimates {
                allocated_blocks: book.allocated_blocks.estimate(unseen, worth)?,
                allocated_bytes: book.allocated_bytes.estimate(unseen, worth)?,
                freed_blocks: book.freed_blocks.estimate(unseen, worth)?,
                lower_bound: book.window_cost_ns as f64 > MOST_SLOWED * book.window_cpu_ns as f64,
            })
        };
        Closed {
            times: book.times,
            windows: book.windows,
            estimates: if unseen > 0.0 { estimates() } else { None },
        }
    }
}

/// What a trace has watched, all told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Closed {
    pub times: DepthTimes,
    pub windows: u64,
    pub estimates: Option<Estimates>,
}

pub fn cost_section(cost: &Cost) -> CostSection {
    let &Cost {
        hits,
        hit_ns,
        trace_ns,
        cpu_ns,
        max_share,
        attach_ns,
        detach_ns,
        pause_ns,
        syscall_ns,
        syscalls_ns,
    } = cost;
    CostSection {
        hits,
        hit_ns: finite(hit_ns),
        trace_ns,
        cpu_ns,
        share: share(cost),
        max_share: finite(max_share),
        attach_ns,
        detach_ns,
        pause_ns,
        syscall_ns: finite(syscall_ns),
        syscalls_ns,
    }
}

/// JSON has no word for the rest.
fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

/// The part of the process's CPU time that the trace took.
pub fn share(cost: &Cost) -> Option<f64> {
    (cost.cpu_ns > 0).then(|| cost.trace_ns as f64 / cost.cpu_ns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn watching(depth: Depth) -> Watching {
        Watching {
            depth,
            followed: true,
            automatic: true,
        }
    }

    fn blocks(count: u64) -> Snapshot {
        Snapshot {
            allocated_blocks: count,
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_square_root_is_one() {
        for value in [1e-12, 0.25, 2.0, 9.0, 1e6, 1e300] {
            let root = square_root(value);
            assert!((root * root / value - 1.0).abs() < 1e-12, "{value}: {root}");
        }
        assert!(square_root(-1.0).abs() < f64::EPSILON);
    }

    /// Windows of 100, 140 and 120 blocks a second, one second each of ten.
    #[test]
    fn what_was_not_counted_is_estimated_with_its_error() {
        let mut book = WatchBook::default();
        let mut count = 0;
        for (n, more) in [100, 140, 120].into_iter().enumerate() {
            let at = n as u64 * 2 * SECOND;
            book.change(at, watching(Depth::Calls), &blocks(count));
            count += more;
            book.change(at + SECOND, watching(Depth::SlowPath), &blocks(count));
        }
        let closed = book.at(10 * SECOND, &blocks(count));
        assert_eq!(closed.windows, 3);
        assert_eq!(closed.times.calls_ns, 3 * SECOND);
        assert_eq!(closed.times.slow_path_ns, 7 * SECOND);
        let estimate = closed.estimates.unwrap().allocated_blocks;
        assert!((estimate.value - 1200.0).abs() < 1e-6);
        // Standard deviation 20 of three windows: 20 / sqrt(3) a second, over seven seconds.
        let expected = 20.0 / 3f64.sqrt() * 7.0;
        assert!(
            (estimate.standard_error.unwrap() - expected).abs() < 1e-6,
            "{estimate:?}"
        );
        assert!((book.calls_fraction(0, 10 * SECOND) - 0.3).abs() < 1e-9);
    }

    /// In the window half the time went to the hits, so that outside twice as much gets done.
    #[test]
    fn what_the_hits_took_is_taken_off_the_windows() {
        for (trace_ns, factor, lower_bound) in [(0, 1.0, false), (SECOND / 2, 2.0, false), (SECOND, 2.0, true)] {
            let mut book = WatchBook::default();
            book.change(0, watching(Depth::Calls), &blocks(0));
            book.cost(&Cost {
                trace_ns,
                cpu_ns: SECOND,
                ..Cost::default()
            });
            book.change(SECOND, watching(Depth::Syscalls), &blocks(1000));
            let estimates = book.at(3 * SECOND, &blocks(1000)).estimates.unwrap();
            let expected = 1000.0 + 2000.0 * factor;
            assert!(
                (estimates.allocated_blocks.value - expected).abs() < 1e-6,
                "{estimates:?}"
            );
            assert_eq!(estimates.lower_bound, lower_bound);
        }
    }

    #[test]
    fn a_trace_of_one_depth_estimates_nothing() {
        let mut book = WatchBook::default();
        book.change(5, watching(Depth::Calls), &blocks(0));
        let closed = book.at(SECOND, &blocks(7));
        assert_eq!((closed.windows, closed.estimates), (1, None));
        assert!((book.calls_fraction(5, SECOND) - 1.0).abs() < f64::EPSILON);
        let mut book = WatchBook::default();
        book.change(5, watching(Depth::Syscalls), &blocks(0));
        assert_eq!(book.at(SECOND, &blocks(0)).estimates, None);
        assert!(book.calls_fraction(5, SECOND).abs() < f64::EPSILON);
    }

    #[test]
    fn a_pause_is_no_time_of_system_calls() {
        let mut book = WatchBook::default();
        book.change(0, watching(Depth::Syscalls), &blocks(0));
        assert!((book.syscalls_fraction(0, SECOND) - 1.0).abs() < 1e-9);
        book.change(SECOND, watching(Depth::Nothing), &blocks(0));
        book.change(3 * SECOND, watching(Depth::Syscalls), &blocks(0));
        let times = book.at(4 * SECOND, &blocks(0)).times;
        assert_eq!((times.syscalls_ns, times.nothing_ns), (2 * SECOND, 2 * SECOND));
        assert!((book.syscalls_fraction(0, 4 * SECOND) - 0.5).abs() < 1e-9);
        assert!(book.calls_fraction(0, 4 * SECOND).abs() < 1e-9);
    }

    #[test]
    fn a_batch_is_whole_only_between_two_growths_of_one_window() {
        let mut book = WatchBook::default();
        book.change(0, watching(Depth::Calls), &blocks(0));
        assert!(book.counts_since_last_growth());
        book.change(1, watching(Depth::SlowPath), &blocks(0));
        assert!(!book.counts_since_last_growth());
        book.change(2, watching(Depth::Calls), &blocks(0));
        assert!(
            !book.counts_since_last_growth(),
            "the one before it came outside the window"
        );
        assert!(book.counts_since_last_growth());
    }
}
