//! A few figures for a line a second.

use serde::{Deserialize, Serialize};

use crate::event::{Cost, Depth};

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Live {
    pub time_ns: u64,
    /// Since the trace began.
    pub elapsed_ns: u64,
    /// Calls at the interface since the trace began.
    pub calls: u64,
    /// Between the last two readings of the totals.
    pub calls_per_second: Option<f64>,
    pub live_blocks: u64,
    pub break_end: Option<u64>,
    pub resident_bytes: Option<u64>,
    pub growths: u64,
    pub growth_bytes: u64,
    pub returned_bytes: u64,
    pub lost: u64,
    /// What is watched now, where that was said.
    pub depth: Option<Depth>,
    /// Part of the time in which every call was counted, 0 to 1.
    pub calls_fraction: f64,
    /// Part of the time in which memory system calls were watched, 0 to 1.
    pub syscalls_fraction: f64,
    /// What the trace has cost, where that is known.
    pub cost: Option<Cost>,
}

/// The rate of calls, from readings of their total.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    last: Option<(u64, u64)>,
    per_second: Option<f64>,
}

impl Rate {
    pub fn observe(&mut self, time_ns: u64, calls: u64) {
        let Some((before_ns, before)) = self.last else {
            self.last = Some((time_ns, calls));
            return;
        };
        let elapsed = time_ns.saturating_sub(before_ns);
        if elapsed == 0 {
            return;
        }
        self.per_second = Some(calls.saturating_sub(before) as f64 * 1e9 / elapsed as f64);
        self.last = Some((time_ns, calls));
    }

    pub const fn per_second(&self) -> Option<f64> {
        self.per_second
    }
}
