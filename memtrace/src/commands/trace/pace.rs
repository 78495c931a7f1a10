//! The trace keeps its budget: what a stretch of time has cost decides what is watched next.

use anyhow::Context;
use memtrace_analysis::budget::{Budget, Next, Stretch};
use memtrace_analysis::event::{Depth, EventKind, Watching};
use tokio::time::{Duration, Instant};

use super::look;
use super::watch::Watch;
use crate::commands::exit::complain;

/// What looking at the meters may take of memtrace's own time: with hundreds of processes it takes milliseconds.
const LOOKING: u32 = 50;

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
        let Some((done, looked)) = self.stretch() else {
            return Ok(());
        };
        let Some(pace) = &mut self.pace else { return Ok(()) };
        let next = pace.budget.next(&done);
        let changes = next.depth != pace.depth;
        pace.depth = next.depth;
        if changes {
            if done.depth != Depth::Syscalls {
                self.meter.take_away(done.wall_ns);
            }
            if let Err(error) = self.change_depth(next.depth)? {
                // Whatever is watched now stays so.
                self.pace = None;
                complain(&error.context("the depth of the trace is not changed any more"));
                return Ok(());
            }
            // What comes is judged by itself, and not by what it took to come there.
            let change = self.stretch();
            if let (Some(pace), Some((change, _))) = (&mut self.pace, change) {
                pace.budget.changed(&change);
            }
        }
        self.meter.mark();
        if let Some(pace) = &mut self.pace {
            pace.until = pace.begun + Duration::from_nanos(next.for_ns).max(looked * LOOKING);
        }
        Ok(())
    }

    /// Closes the stretch that is being watched, and begins another one; how long reading the meters took.
    fn stretch(&mut self) -> Option<(Stretch, Duration)> {
        let looking = Instant::now();
        for pid in self.processes.pids() {
            self.read_meter(pid);
        }
        let after = self.meter.sums();
        let pace = self.pace.as_mut()?;
        let now = Instant::now();
        let stretch = Stretch {
            depth: pace.depth,
            wall_ns: u64::try_from((now - pace.begun).as_nanos()).unwrap_or(u64::MAX),
            cpu_ns: after.0.saturating_sub(pace.before.0),
            cost_ns: after.1.saturating_sub(pace.before.1),
        };
        (pace.before, pace.begun) = (after, now);
        Some((stretch, now - looking))
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
