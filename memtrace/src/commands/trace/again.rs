//! Looks at processes during the trace: what one has become after an exec, and what code it has mapped since.
//!
//! A look takes its time, and the process goes on meanwhile. It holds for the moment at which it began, unless the
//! process has replaced its program since: then what was seen may be of either, and is thrown away.

use anyhow::Context;
use memtrace_analysis::event::{Event, EventKind, Module, Watching};

use super::attach::{self, Known};
use super::look;
use super::watch::Watch;
use crate::commands::exit::complain;
use crate::sentence;
use crate::session::Begin;
use crate::target::{self, Target};

/// Ticks that a process has for mapping its libc after an exec.
const EXEC_TICKS: u32 = 2;

/// What a look has found.
enum Seen {
    /// The process as a whole; its program is new.
    Program(Box<Target>),
    /// What it maps executable.
    Modules(Vec<Module>),
}

impl Watch<'_, '_> {
    /// Looks at all processes that have given a reason to; `a_tick`: time has passed.
    pub(super) fn look_again(&mut self, a_tick: bool) -> anyhow::Result<()> {
        for pid in self.processes.pids() {
            let time_ns = look::now_ns();
            let Some(seen) = self.look_at(pid, a_tick) else {
                continue;
            };
            let since = self.session.pending();
            let replaced_since = since
                .iter()
                .any(|event| event.pid == pid && matches!(event.kind, EventKind::Exec));
            if !replaced_since {
                self.learn(pid, time_ns, seen)?;
            }
            self.pass_on(since)?;
        }
        Ok(())
    }

    /// A process that ends meanwhile keeps what was known of it.
    fn look_at(&mut self, pid: u32, a_tick: bool) -> Option<Seen> {
        let process = self.processes.get_mut(pid)?;
        let new_code = std::mem::take(&mut process.new_code);
        match &mut process.unknown_since_exec {
            Some(ticks) if new_code || a_tick => {
                *ticks += u32::from(a_tick);
                Target::of_pid(pid).ok().map(|target| Seen::Program(Box::new(target)))
            }
            None if new_code => target::modules(pid).ok().map(Seen::Modules),
            Some(_) | None => None,
        }
    }

    fn learn(&mut self, pid: u32, time_ns: u64, seen: Seen) -> anyhow::Result<()> {
        let target = match seen {
            Seen::Modules(modules) => return self.push_at(time_ns, pid, EventKind::Modules(modules)),
            Seen::Program(target) => *target,
        };
        let Some(process) = self.processes.get_mut(pid) else {
            return Ok(());
        };
        if target.libc.is_none() && process.unknown_since_exec.is_some_and(|ticks| ticks < EXEC_TICKS) {
            // The loader is at work; its own code is there.
            return self.push_at(time_ns, pid, EventKind::Modules(target.modules));
        }
        process.unknown_since_exec = None;
        let same_libc = match (&process.target.libc, &target.libc) {
            (Some(before), Some(now)) => (before.inode, before.device) == (now.inode, now.device),
            (None, None) => true,
            _ => false,
        };
        process.target = target;
        let probed = same_libc && !self.session.has_lost_its_probes(pid);
        if probed {
            self.session.moved(&process.target)?;
        } else if let Err(error) = self.attach_again(pid) {
            let limit = format!(
                "allocator calls since an exec are not counted, since the new program could not be probed: {}",
                sentence::of(&error)
            );
            if let Some(process) = self.processes.get_mut(pid) {
                process.capabilities.limits.push(limit);
            }
            complain(&error.context(format!("following process {pid} into its new program")));
        }
        let Some(process) = self.processes.get_mut(pid) else {
            return Ok(());
        };
        let known = Known {
            target: process.target.clone(),
            capabilities: process.capabilities.clone(),
            from_birth: false,
            thresholds: None,
            watching: process.watching,
            sample: look::sample(pid).ok(),
            time_ns,
        };
        for event in attach::first_events(&known) {
            self.feed.push(event)?;
        }
        Ok(())
    }

    /// The process has ended, and nobody has come to probe its last program again.
    pub(super) fn tell_if_bereft(&mut self, pid: u32) -> anyhow::Result<()> {
        if !self.session.has_lost_its_probes(pid) {
            return Ok(());
        }
        let Some(process) = self.processes.get_mut(pid) else {
            return Ok(());
        };
        process.capabilities.limits.push(
            "allocator calls since an exec are not counted: another thread than the first made it, and the program ended \
             before it could be probed again"
                .to_owned(),
        );
        let known = Known {
            target: process.target.clone(),
            capabilities: process.capabilities.clone(),
            from_birth: false,
            thresholds: None,
            watching: process.watching,
            sample: None,
            time_ns: look::now_ns(),
        };
        for event in attach::first_events(&known) {
            self.feed.push(event)?;
        }
        Ok(())
    }

    /// Probes for a program whose libc is another file than that of the program before, or whose probes are gone.
    fn attach_again(&mut self, pid: u32) -> anyhow::Result<()> {
        let Some(process) = self.processes.get_mut(pid) else {
            return Ok(());
        };
        let target = process.target.clone();
        process.capabilities = self.session.capabilities();
        let (plan, mut limits) = attach::plan(&target)?;
        limits.push("calls between an exec and the attachment to the new program's libc are not counted".to_owned());
        let added = self
            .session
            .add_at(self.depth, &target, plan.as_ref(), self.follow, Begin::Now)
            .with_context(|| format!("attaching to {} (pid {pid})", target.name))?;
        let before = self
            .processes
            .get(pid)
            .is_some_and(|process| process.watching.automatic);
        let watching = Watching {
            depth: added.watching,
            followed: added.followed,
            automatic: before || self.pace.is_some(),
        };
        let mut capabilities = added.capabilities;
        capabilities.limits.append(&mut limits);
        if let Some(process) = self.processes.get_mut(pid) {
            process.capabilities = capabilities;
            process.watching = watching;
        }
        Ok(())
    }

    pub(super) fn push_at(&mut self, time_ns: u64, pid: u32, kind: EventKind) -> anyhow::Result<()> {
        let tid = pid;
        self.feed.push(Event {
            time_ns,
            pid,
            tid,
            kind,
        })
    }
}
