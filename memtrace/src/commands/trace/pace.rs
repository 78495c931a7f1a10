//! The trace keeps its budget: what a stretch of time has cost decides what is watched next.

use anyhow::Context;
use memtrace_analysis::budget::{Budget, Next, Stretch};
use memtrace_analysis::event::{Depth, EventKind, Watching};
use tokio::time::{Duration, Instant};

use super::look;
use super::watch::Watch;
use crate::commands::exit::complain;

/// A stretch of time that is being watched.
pub struct Pace {
    budget: Budget,
    depth: Depth,
    begun: Instant,
    until: Instant,
    /// CPU time and cost by its begin.
    before: (u64, u64),
}

impl Pace {
    pub fn new(max_share: f64, slow_path: bool, before: (u64, u64)) -> Self {
        let budget = Budget::new(max_share, slow_path);
        let Next { depth, for_ns } = budget.first();
        let begun = Instant::now();
        Self {
            budget,
            depth,
            begun,
            until: begun + Duration::from_nanos(for_ns),
            before,
        }
    }

    /// When it is time to decide.
    pub const fn until(&self) -> Instant {
        self.until
    }
}

impl Watch<'_, '_> {
    /// A stretch is over: what comes next?
    pub(super) fn decide(&mut self) -> anyhow::Result<()> {
        for pid in self.processes.pids() {
            self.read_meter(pid);
        }
        let after = self.meter.sums();
        let Some(pace) = &mut self.pace else { return Ok(()) };
        let elapsed = pace.begun.elapsed();
        let done = Stretch {
            depth: pace.depth,
            wall_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            cpu_ns: after.0.saturating_sub(pace.before.0),
            cost_ns: after.1.saturating_sub(pace.before.1),
        };
        let next = pace.budget.next(&done);
        let changes = next.depth != pace.depth;
        pace.depth = next.depth;
        pace.before = after;
        pace.begun = Instant::now();
        pace.until = pace.begun + Duration::from_nanos(next.for_ns);
        if !changes {
            return Ok(());
        }
        if let Err(error) = self.change_depth(next.depth)? {
            // Whatever is watched now stays so.
            self.pace = None;
            complain(&error.context("the depth of the trace is not changed any more"));
            return Ok(());
        }
        // The change itself took its time, and what it cost belongs to what comes.
        if let Some(pace) = &mut self.pace {
            pace.until = Instant::now() + Duration::from_nanos(next.for_ns);
        }
        Ok(())
    }

    /// Watches at another depth from now on. The inner error is one of the change.
    fn change_depth(&mut self, depth: Depth) -> anyhow::Result<anyhow::Result<()>> {
        let events = self.session.pending();
        self.take(events)?;
        let mut told_ns = None;
        let changed = self.session.change_depth(depth, || told_ns = Some(look::now_ns()));
        let Some(told_ns) = told_ns else {
            return Ok(changed.with_context(|| format!("changing to depth {}", depth.name())));
        };
        self.depth = depth;
        for pid in self.processes.pids() {
            let Some(process) = self.processes.get_mut(pid) else {
                continue;
            };
            if !process.watching.automatic {
                continue;
            }
            process.watching = Watching {
                depth,
                ..process.watching
            };
            let watching = process.watching;
            // What was counted up to here is what the stretch before has counted.
            if let Some(totals) = self.session.totals(pid) {
                self.push_at(told_ns, pid, EventKind::Totals(Box::new(totals)))?;
            }
            if let Some(cost) = self.meter.cost(pid, self.session.probing_times()) {
                self.push_at(told_ns, pid, EventKind::Cost(Box::new(cost)))?;
            }
            self.push_at(told_ns, pid, EventKind::Watching(watching))?;
        }
        Ok(changed.with_context(|| format!("changing to depth {}", depth.name())))
    }
}
