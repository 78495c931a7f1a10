//! The watch: what the kernel side sends and what is read from outside become one series of events.
//!
//! All that the report depends on goes through [`Feed::push`], so that a record of the trace gives the same report.

use std::time::Duration;

use anyhow::Context;
use memtrace_analysis::event::{Depth, EndReason, Event, EventKind, LookMoment, SyscallKind};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use super::attach::{self, Known};
use super::live::LiveLine;
use super::look;
use super::meter::Meter;
use super::pace::Pace;
use super::processes::Processes;
use super::stop::Stop;
use crate::commands::args::{DepthChoice, TraceArgs};
use crate::commands::feed::Feed;
use crate::session::Session;

/// How often totals and samples are taken.
const TICK: Duration = Duration::from_secs(1);
/// How often a stream of events is told that time passes.
const STREAM_TICK: Duration = Duration::from_millis(50);
/// How long a command has to end by itself after Ctrl-C.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// The bit of mmap's third argument.
const PROT_EXEC: u64 = 4;

pub struct Watch<'a, 'o> {
    pub(super) session: &'a mut Session,
    pub(super) feed: &'a mut Feed<'o>,
    pub(super) processes: Processes,
    pub(super) follow: bool,
    /// What a process is watched at when it is taken up.
    pub(super) depth: Depth,
    pub(super) meter: Meter,
    /// None where the depth was asked for.
    pub(super) pace: Option<Pace>,
}

impl<'a, 'o> Watch<'a, 'o> {
    pub fn new(
        session: &'a mut Session,
        feed: &'a mut Feed<'o>,
        processes: Processes,
        args: &TraceArgs,
        meter: Meter,
    ) -> Self {
        let automatic = args.depth_choice() == DepthChoice::Auto;
        let pace = automatic.then(|| Pace::new(args.overhead_limit(), session.has_slow_path(), meter.sums()));
        Self {
            meter,
            pace,
            session,
            feed,
            processes,
            follow: args.follow,
            depth: args.depth_choice().depth(),
        }
    }

    /// Watches until the time is up, a signal comes, or the last process has ended.
    ///
    /// Ctrl-C reaches a command that was started as well: it is given a moment to end by itself, so that the report
    /// has its end.
    pub async fn until_over(
        &mut self,
        stop: &mut Stop,
        duration: Option<Duration>,
        command: bool,
        mut live: Option<&mut LiveLine>,
    ) -> anyhow::Result<EndReason> {
        let mut deadline = duration.map(|duration| Instant::now() + duration);
        let mut reason = EndReason::TimeUp;
        let mut tick = ticks(TICK);
        let mut stream_tick = ticks(STREAM_TICK);
        let streaming = self.feed.is_streaming();
        loop {
            tokio::select! {
                events = self.session.events() => self.take(events?)?,
                pid = self.processes.next_end() => {
                    if let Some(pid) = pid {
                        self.ended(pid)?;
                    }
                    if self.processes.is_empty() {
                        return Ok(EndReason::ProcessExited);
                    }
                }
                _ = tick.tick() => {
                    self.tick()?;
                    if let Some(live) = &mut live {
                        live.show(&self.feed.live());
                    }
                }
                () = until(self.pace.as_ref().map(Pace::until)) => self.decide()?,
                _ = stream_tick.tick(), if streaming => {
                    let drained_ns = self.drain()?;
                    self.tell_time(drained_ns)?;
                }
                () = until(deadline) => return Ok(reason),
                () = stop.asked(), if reason == EndReason::TimeUp => {
                    reason = EndReason::Interrupted;
                    if !command {
                        return Ok(reason);
                    }
                    deadline = Some(Instant::now() + LAST_MOMENT);
                }
            }
        }
    }

    /// Takes the probes away and what is still to be had; the last events say why the trace ends.
    pub fn end(mut self, reason: EndReason) -> anyhow::Result<()> {
        self.session.detach();
        let rest = self.session.rest();
        self.take(rest)?;
        for pid in self.processes.pids() {
            self.totals(pid)?;
            self.cost(pid)?;
            self.sample(pid)?;
            // Counting is over: what the look takes is no part of the trace.
            let over_ns = look::now_ns();
            let (moment, look) = (LookMoment::End, look::books(pid));
            self.push_at(over_ns, pid, EventKind::Look { moment, look })?;
            self.push_at(over_ns, pid, EventKind::End { reason })?;
        }
        Ok(())
    }

    pub(super) fn take(&mut self, events: Vec<Event>) -> anyhow::Result<()> {
        self.pass_on(events)?;
        self.look_again(false)
    }

    /// Feeds events, and notes what they say of the processes' state.
    pub(super) fn pass_on(&mut self, events: Vec<Event>) -> anyhow::Result<()> {
        for event in events {
            let (pid, time_ns) = (event.pid, event.time_ns);
            let fork = match &event.kind {
                EventKind::Fork { child, followed: true } => Some(*child),
                _ => None,
            };
            if let Some(process) = self.processes.get_mut(pid) {
                match &event.kind {
                    EventKind::Exec => {
                        process.unknown_since_exec = Some(0);
                        process.new_code = true;
                    }
                    EventKind::Syscall(call) if call.kind == SyscallKind::Mmap && call.args[2] & PROT_EXEC != 0 => {
                        process.new_code = true;
                    }
                    _ => {}
                }
            }
            self.feed.push(event)?;
            if let Some(child) = fork {
                self.forked(pid, child, time_ns)?;
            }
        }
        Ok(())
    }

    /// A traced process has made a child, which is traced too: like its parent in all but the id.
    fn forked(&mut self, parent: u32, child: u32, time_ns: u64) -> anyhow::Result<()> {
        let Some(parent) = self.processes.get(parent) else {
            return Ok(());
        };
        // What its parent has become after an exec may not be known yet; then the child's program is not known either.
        let is_known = parent.unknown_since_exec.is_none();
        let mut target = parent.target.clone();
        target.pid = child;
        target.threads = 1;
        let known = Known {
            target,
            capabilities: parent.capabilities.clone(),
            from_birth: false,
            thresholds: None,
            watching: parent.watching,
            sample: look::sample(child).ok(),
            time_ns,
        };
        for event in attach::first_events(&known) {
            self.feed.push(event)?;
        }
        self.meter.born(child);
        self.processes
            .add(&known)
            .with_context(|| format!("opening a handle on process {child}"))?;
        if !is_known && let Some(process) = self.processes.get_mut(child) {
            process.unknown_since_exec = Some(0);
            process.new_code = true;
        }
        Ok(())
    }

    /// A process is gone: what is left of it is taken, then it is forgotten.
    fn ended(&mut self, pid: u32) -> anyhow::Result<()> {
        let rest = self.session.rest_of(pid);
        self.take(rest)?;
        self.totals(pid)?;
        self.tell_if_bereft(pid)?;
        self.cost(pid)?;
        let reason = EndReason::ProcessExited;
        self.push(pid, EventKind::End { reason })?;
        self.meter.end(pid);
        if self.processes.remove(pid).is_some() {
            self.session.detach_process(pid);
            self.session.remove(pid)?;
        }
        Ok(())
    }

    fn tick(&mut self) -> anyhow::Result<()> {
        let drained_ns = self.drain()?;
        self.look_again(true)?;
        for pid in self.processes.pids() {
            self.totals(pid)?;
            self.cost(pid)?;
            self.sample(pid)?;
        }
        self.tell_time(drained_ns)?;
        self.feed.flush();
        Ok(())
    }

    /// Takes what is in the buffer; when that began.
    fn drain(&mut self) -> anyhow::Result<u64> {
        let began_ns = look::now_ns();
        let events = self.session.pending();
        self.pass_on(events)?;
        Ok(began_ns)
    }

    fn tell_time(&mut self, now_ns: u64) -> anyhow::Result<()> {
        for pid in self.processes.pids() {
            self.push_at(now_ns, pid, EventKind::Tick)?;
        }
        Ok(())
    }

    fn totals(&mut self, pid: u32) -> anyhow::Result<()> {
        match self.session.totals(pid) {
            Some(totals) => self.push(pid, EventKind::Totals(Box::new(totals))),
            None => Ok(()),
        }
    }

    /// What the trace has cost a process so far.
    fn cost(&mut self, pid: u32) -> anyhow::Result<()> {
        self.read_meter(pid);
        match self.meter.cost(pid, self.session.probing_times()) {
            Some(cost) => self.push(pid, EventKind::Cost(Box::new(cost))),
            None => Ok(()),
        }
    }

    pub(super) fn read_meter(&mut self, pid: u32) {
        if let Some(totals) = self.session.totals(pid) {
            let counted = self.session.counted_syscalls(pid);
            self.meter.read(pid, &totals, &self.session.stepped(pid), counted);
        }
    }

    /// A process that has just ended has no sample; that it ended is an event of its own.
    pub(super) fn sample(&mut self, pid: u32) -> anyhow::Result<()> {
        match look::sample(pid) {
            Ok(sample) => self.push(pid, EventKind::Sample(sample)),
            Err(_) => Ok(()),
        }
    }

    fn push(&mut self, pid: u32, kind: EventKind) -> anyhow::Result<()> {
        self.push_at(look::now_ns(), pid, kind)
    }
}

/// Ticks that come late are not made up for.
fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Returns when the deadline has passed; never without one.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
