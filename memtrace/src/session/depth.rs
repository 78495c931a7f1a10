//! How much of a process is watched, and the way from one depth to another while it runs.
//!
//! ```text
//! a depth     probes that are missing -> the kernel side is told (a new epoch) -> probes that are not wanted go
//! a pause     the kernel side is told -> probes and the tracepoints of system calls go
//! ```
//!
//! So probes are there for all of the time at which the kernel side counts on them: it takes a system call before which the
//! slow path was not entered for one of an arena's set-up, which the next entry tells the request of.
//!
//! In between, hits count no call; that there were such hits is counted. System calls are seen from the moment on at which
//! the kernel side is told, by the tracepoints that it is told of; those are there before, and go after.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use aya::Ebpf;
use memtrace_analysis::event::{Depth, Entry};
use memtrace_common::untouched;

use super::Session;
use super::attach::{self, Links, Place, Site, Source};
use super::calibrate::EveryCall;
use super::state;
use crate::probe::{CostClass, ProbePlan};
use crate::target::{MappedLibrary, Target};

/// A process with a libc that can be probed, and what that takes.
pub struct Watched {
    pub target: Target,
    pub plan: ProbePlan,
    pub sites: Vec<Site>,
    pub exits: Vec<u64>,
    pub follow: bool,
}

impl Watched {
    pub fn places(&self, depth: Depth) -> Vec<Place> {
        attach::places(&self.plan, &self.sites, &self.exits, depth)
    }

    /// A child has its parent's memory, and a place of its own in /proc.
    pub fn of_child(&self, child: u32) -> Self {
        let mut target = self.target.clone();
        let (parents, own) = (format!("/proc/{}", target.pid), format!("/proc/{child}"));
        target.pid = child;
        if let Some(library) = &mut target.libc
            && let Ok(rest) = library.opened.strip_prefix(parents)
        {
            library.opened = Path::new(&own).join(rest);
        }
        Self {
            target,
            plan: self.plan.clone(),
            sites: self.sites.clone(),
            exits: self.exits.clone(),
            follow: self.follow,
        }
    }

    pub fn probed(&self, depth: Depth) -> Vec<Entry> {
        let entries = self.sites.iter().map(|site| site.entry);
        entries.filter(|&entry| attach::is_probed(entry, depth)).collect()
    }
}

/// [`Links::set_probes`], or [`Links::add_probes`].
type SetProbes = fn(&mut Links, &mut Ebpf, &Target, &MappedLibrary, Vec<Place>, bool) -> Result<()>;

/// It has memory, and so has not ended.
fn is_running(pid: u32) -> bool {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm"));
    statm.is_ok_and(|statm| !statm.starts_with("0 "))
}

/// The depth wanted, or the next one that is possible; why, if it is another one.
pub fn possible(wanted: Depth, plan: &ProbePlan, followed: bool, limits: &mut Vec<String>) -> Depth {
    if wanted != Depth::SlowPath {
        return wanted;
    }
    let obstacle = match &plan.slow_path {
        Err(reason) => reason.as_str(),
        Ok(_) if !followed => "what made a system call cannot be told from the stack here",
        Ok(_) => return wanted,
    };
    limits.push(format!(
        "the allocator's slow path is not watched, only system calls are: {obstacle}"
    ));
    Depth::Syscalls
}

impl Session {
    /// The slow path can be watched in all processes that have probes.
    pub fn has_slow_path(&self) -> bool {
        let found = self.watched.values().all(|watched| watched.plan.slow_path.is_ok());
        found && !self.watched.is_empty() && self.facts.kernel.frame_check != 0
    }

    /// The process has a libc that can be probed, whether it is at this depth or not.
    pub fn has_probes_for(&self, pid: u32) -> bool {
        self.watched.contains_key(&pid)
    }

    /// Watches all processes that have a libc to probe at this depth from now on; the depth must be possible for them.
    /// `told` is called at the moment from which on that counts: no system call is seen between it and a pause, before or
    /// after.
    pub fn change_depth(&mut self, depth: Depth, source: Source, told: impl FnOnce()) -> Result<()> {
        let before = self.source;
        if source != before {
            match source {
                Source::Tracepoints => self.links.attach_syscalls(&mut self.ebpf)?,
                Source::EveryCall => self.links.attach_every_call(&mut self.ebpf, true)?,
                Source::None => {}
            }
            self.source = source;
            self.pauses = self.pauses.wrapping_add(1);
        }
        let mut told = Some(told);
        if before == Source::None {
            told.take().into_iter().for_each(|told| told());
        }
        self.probe_all(Links::add_probes, depth)?;
        self.tell_depth(depth)?;
        told.take().into_iter().for_each(|told| told());
        if source != before {
            match before {
                Source::Tracepoints => self.links.close_syscalls(),
                Source::EveryCall => self.links.close_every_call(),
                Source::None => {}
            }
        }
        self.probe_all(Links::set_probes, depth)
    }

    fn probe_all(&mut self, set: SetProbes, depth: Depth) -> Result<()> {
        for watched in self.watched.values() {
            let Some(library) = &watched.target.libc else { continue };
            let places = watched.places(depth);
            let set = set(
                &mut self.links,
                &mut self.ebpf,
                &watched.target,
                library,
                places,
                watched.follow,
            );
            // A process that is ending takes no probe any more; that it has ended is news of its own.
            if set.is_err() && is_running(watched.target.pid) {
                return set;
            }
        }
        Ok(())
    }

    /// Until there is nobody new: a child that is born meanwhile begins with what its parent was told before.
    fn tell_depth(&mut self, depth: Depth) -> Result<()> {
        let mut told = BTreeSet::new();
        loop {
            let new: Vec<u32> = self.tables.pids().into_iter().filter(|&pid| told.insert(pid)).collect();
            if new.is_empty() {
                return Ok(());
            }
            for pid in new {
                self.tell_process(pid, depth)?;
            }
        }
    }

    fn tell_process(&mut self, pid: u32, depth: Depth) -> Result<()> {
        let Some(mut process) = self.tables.get(pid) else {
            return Ok(());
        };
        process.source = state::source_number(self.source);
        process.pause = self.pauses;
        process.epoch = process.epoch.wrapping_add(1);
        process.untouched = untouched::ALL;
        // Without a libc that is known there are no allocator calls to climb to. A child that nobody has told of yet has
        // its parent's.
        if process.libc.text_end != 0 {
            process.depth = state::depth_number(depth);
        }
        if let Some(watched) = self.watched.get(&pid)
            && let Some(library) = &watched.target.libc
        {
            process.libc_base = library.base;
        }
        self.tables
            .set(process)
            .with_context(|| format!("changing what is watched of process {pid}"))
    }

    pub const fn source(&self) -> Source {
        self.source
    }

    /// Makes windows in a pause possible, and counting system calls; what that costs each of them.
    pub fn prepare_every_call(&mut self) -> Result<EveryCall> {
        let call = self
            .system_call
            .context("what a system call takes could not be measured")?;
        Links::load_every_call(&mut self.ebpf)?;
        self.measure_every_call(call)
    }

    /// Has all system calls of the processes counted from now on, beside what is watched.
    pub fn count_syscalls(&mut self) -> Result<()> {
        self.links.attach_every_call(&mut self.ebpf, false)
    }

    pub fn end_counting_syscalls(&mut self) {
        self.links.close_every_call();
    }

    /// A pause has not quite begun: the last tracepoints are on their way out.
    pub fn is_slow_still(&self) -> bool {
        !self.links.syscalls_are_closed()
    }

    /// Entry points of a process whose probes sit where the kernel has to step over the instruction.
    pub fn stepped(&self, pid: u32) -> Vec<Entry> {
        let sites = self.watched.get(&pid).map_or(&[][..], |watched| &watched.plan.sites);
        let stepped = sites.iter().filter(|site| site.cost == CostClass::SingleStepped);
        stepped.map(|site| site.entry).collect()
    }

    /// A process has replaced its program, by one with the same libc; where that lies now.
    pub fn moved(&mut self, target: &Target) -> Result<()> {
        let Some(watched) = self.watched.get_mut(&target.pid) else {
            return Ok(());
        };
        watched.target = target.clone();
        let (Some(library), Some(mut process)) = (&target.libc, self.tables.get(target.pid)) else {
            return Ok(());
        };
        if process.libc_base == 0 {
            process.libc_base = library.base;
            self.tables.set(process)?;
        }
        Ok(())
    }

    /// Longest time that probes took to be put in place at once, and to be taken away, in nanoseconds.
    pub fn probing_times(&mut self) -> (u64, u64) {
        let (attach, detach) = self.links.times();
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        (ns(attach), ns(detach))
    }
}
