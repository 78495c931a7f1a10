//! The trace keeps its budget: what a stretch of time has cost decides what is watched next.
//!
//! What system calls cost is known where they are counted: for a look of some milliseconds (`counting`), when the time in
//! the kernel says that they could cost more than next to nothing.

use anyhow::Context;
use memtrace_analysis::budget::{Budget, Next, Stretch};
use memtrace_analysis::event::{Depth, EventKind, Watching};
use tokio::time::{Duration, Instant};

use super::look;
use super::meter::Seeing;
use super::watch::Watch;
use crate::commands::exit::complain;
use crate::session::Source;

/// What looking at the meters may take of memtrace's own time: with hundreds of processes it takes milliseconds.
const LOOKING: u32 = 50;
/// How long system calls are counted at once, and when they are again: later and later while there are as many as before.
const COUNTING: Duration = Duration::from_millis(20);
const COUNT_AGAIN: Duration = Duration::from_secs(1);
const COUNT_AGAIN_LAST: Duration = Duration::from_secs(8);
/// How often it is seen whether they have to be counted.
const BOUND: Duration = Duration::from_secs(1);
/// The first time, as soon as the kernel's ticks say something.
const FIRST_BOUND: Duration = Duration::from_millis(250);
/// The part of the limit that they may cost without being counted.
const UNCOUNTED: f64 = 0.1;
/// As many as before, and time in the kernel as before.
const STEADY: f64 = 0.25;

/// A stretch of time that is being watched.
pub struct Pace {
    budget: Budget,
    depth: Depth,
    source: Source,
    counts: Counts,
    begun: Instant,
    until: Instant,
    /// CPU time and cost by its begin.
    before: (u64, u64),
}

/// When system calls are counted.
struct Counts {
    bound_at: Instant,
    /// What they cost at most by the last bound, and by that of the last look.
    most: f64,
    most_at_look: f64,
    looked_at: Instant,
    again: Duration,
    /// What `again` was when it was last reckoned from what was counted.
    between: Duration,
    /// They cannot be counted here.
    impossible: bool,
}

impl Pace {
    pub fn new(max_share: f64, slow_path: bool, before: (u64, u64)) -> Self {
        let budget = Budget::new(max_share, slow_path);
        let Next { depth, for_ns } = budget.first();
        let begun = Instant::now();
        Self {
            budget,
            depth,
            source: Source::Tracepoints,
            counts: Counts {
                bound_at: begun + FIRST_BOUND,
                most: 0.0,
                most_at_look: 0.0,
                looked_at: begun,
                again: Duration::ZERO,
                between: Duration::ZERO,
                impossible: false,
            },
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
        self.end_counting();
        let Some(pace) = &mut self.pace else { return Ok(()) };
        let next = pace.budget.next(&done);
        let source = match next.depth {
            Depth::Nothing => Source::None,
            _ if pace.budget.base() == Depth::Nothing => Source::EveryCall,
            _ => Source::Tracepoints,
        };
        let changes = next.depth != pace.depth || source != pace.source;
        (pace.depth, pace.source) = (next.depth, source);
        if changes {
            if done.depth > Depth::Syscalls {
                self.meter.take_away(done.wall_ns);
            }
            if let Err(error) = self.change_depth(next.depth, source)? {
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
        let counting = !changes && self.begin_counting();
        if let Some(pace) = &mut self.pace {
            let most = if counting { COUNTING } else { Duration::MAX };
            pace.until = pace.begun + Duration::from_nanos(next.for_ns).min(most).max(looked * LOOKING);
        }
        Ok(())
    }

    /// Begins to count system calls, if that is due.
    fn begin_counting(&mut self) -> bool {
        let Some(pace) = &mut self.pace else { return false };
        let (counts, now) = (&mut pace.counts, pace.begun);
        if pace.source != Source::Tracepoints || counts.impossible {
            return false;
        }
        if now >= counts.bound_at {
            counts.bound_at = now + BOUND;
            counts.most = self.meter.most_since();
            if (counts.most - counts.most_at_look).abs() > STEADY * counts.most_at_look {
                counts.again = Duration::ZERO;
            }
        }
        if counts.most <= UNCOUNTED * self.meter.max_share() || now < counts.looked_at + counts.again {
            return false;
        }
        let ready = self.meter.counts();
        let begun = if ready {
            (counts.looked_at, counts.most_at_look, counts.again) = (now, counts.most, COUNT_AGAIN);
            self.session.count_syscalls()
        } else {
            // That takes a while, and is no part of what is counted.
            self.session.prepare_every_call().map(|every_call| {
                let factor = self.meter.can_count(every_call);
                pace.budget.can_pause(factor);
            })
        };
        if let Err(error) = begun {
            pace.counts.impossible = true;
            complain(&error.context("system calls cannot be counted, so what watching them costs is not limited"));
            return false;
        }
        if ready {
            self.meter.see(Seeing {
                counting: true,
                ..self.meter.seeing()
            });
        }
        ready
    }

    /// What was counted stands for the time up to the next look, which is the later the less has changed.
    fn end_counting(&mut self) {
        if !self.meter.seeing().counting {
            return;
        }
        self.session.end_counting_syscalls();
        let before = self.meter.share_of_syscalls();
        self.meter.see(Seeing {
            counting: false,
            ..self.meter.seeing()
        });
        let after = self.meter.share_of_syscalls();
        let steady = before
            .zip(after)
            .is_some_and(|(before, after)| (after - before).abs() <= STEADY * before);
        if let Some(pace) = &mut self.pace {
            let again = &mut pace.counts.again;
            *again = if steady {
                (pace.counts.between * 2).clamp(COUNT_AGAIN, COUNT_AGAIN_LAST)
            } else {
                COUNT_AGAIN
            };
            pace.counts.between = *again;
        }
    }

    /// Closes the stretch that is being watched, and begins another one; how long reading the meters took.
    fn stretch(&mut self) -> Option<(Stretch, Duration)> {
        let looking = Instant::now();
        // A pause has not begun before the last tracepoint is gone.
        let source = self.pace.as_ref().map(|pace| pace.source);
        if source == Some(Source::None) && !self.session.is_slow_still() {
            self.see(Source::None);
        }
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

    fn see(&mut self, source: Source) {
        if self.meter.seeing().source != source {
            self.meter.see(Seeing {
                source,
                counting: false,
            });
        }
    }

    /// Watches at another depth from now on. The inner error is one of the change.
    fn change_depth(&mut self, depth: Depth, source: Source) -> anyhow::Result<anyhow::Result<()>> {
        let events = self.session.pending();
        self.take(events)?;
        let mut told_ns = None;
        let paused = self.depth == Depth::Nothing;
        let unseen = source != self.session.source() && source != Source::None;
        let changed = self
            .session
            .change_depth(depth, source, || told_ns = Some(look::now_ns()));
        if source != Source::None {
            self.see(source);
        }
        let Some(told_ns) = told_ns else {
            return Ok(changed.with_context(|| format!("changing to depth {}", depth.name())));
        };
        self.depth = depth;
        for pid in self.processes.pids() {
            let Some(process) = self.processes.get_mut(pid) else {
                continue;
            };
            // Without probes there is nothing to choose but pauses.
            let depth = if self.session.has_probes_for(pid) {
                depth
            } else {
                depth.min(Depth::Syscalls)
            };
            if process.watching.depth == depth && !unseen {
                continue;
            }
            let before = process.watching;
            process.watching = Watching { depth, ..before };
            let watching = process.watching;
            // What code has come meanwhile was not seen.
            process.new_code |= unseen;
            if unseen && !paused {
                // Calls that were on their way are not seen.
                let nothing = Watching {
                    depth: Depth::Nothing,
                    ..before
                };
                self.push_at(told_ns, pid, EventKind::Watching(nothing))?;
            }
            // What was counted up to here is what the stretch before has counted.
            if let Some(totals) = self.session.totals(pid) {
                self.push_at(told_ns, pid, EventKind::Totals(Box::new(totals)))?;
            }
            if let Some(cost) = self.meter.cost(pid, self.session.probing_times()) {
                self.push_at(told_ns, pid, EventKind::Cost(Box::new(cost)))?;
            }
            self.push_at(told_ns, pid, EventKind::Watching(watching))?;
            if unseen {
                // The break may be anywhere.
                self.sample(pid)?;
            }
        }
        Ok(changed.with_context(|| format!("changing to depth {}", depth.name())))
    }
}
