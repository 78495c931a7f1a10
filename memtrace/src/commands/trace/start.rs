//! A command started under our eyes, traced from its exec on.

use anyhow::Context;
use memtrace_analysis::event::Capabilities;

use super::attach::{self, Known};
use super::look;
use super::processes::Processes;
use crate::commands::args::TraceArgs;
use crate::commands::exit::hint;
use crate::commands::feed::Feed;
use crate::probe::ProbePlan;
use crate::session::{Begin, Session};
use crate::target::{Moment, SpawnError, Spawned, Target};

/// Starts the command of the command line.
///
/// At its exec only its system calls are traced, since its libc is not there yet; the probes come when it is, before
/// any of its code has run. What the analysis is told first is what is known then, dated back to the exec.
pub fn command(
    session: &mut Session,
    feed: &mut Feed<'_>,
    processes: &mut Processes,
    args: &TraceArgs,
) -> anyhow::Result<Spawned> {
    let mut birth = Birth {
        session,
        known: None,
        follow: args.follow,
    };
    let spawned = Spawned::start(&args.command, args.user.as_deref(), |pid, moment| match moment {
        // Still a copy of memtrace: nothing it does is the command's.
        Moment::BeforeExec => Ok(()),
        Moment::Executed => birth.at_exec(pid),
        Moment::LibcMapped => birth.at_libc(pid),
    });
    let spawned = spawned.map_err(explained)?;
    let Birth { session, known, .. } = birth;
    let Some(known) = known else {
        anyhow::bail!("the command ended before it became a program");
    };
    for event in attach::first_events(&known) {
        feed.push(event)?;
    }
    for event in session.pending() {
        feed.push(event)?;
    }
    processes
        .add(known.target, known.capabilities)
        .context("opening a handle on the command")?;
    Ok(spawned)
}

struct Birth<'a> {
    session: &'a mut Session,
    known: Option<Known>,
    follow: bool,
}

impl Birth<'_> {
    fn at_exec(&mut self, pid: u32) -> anyhow::Result<()> {
        let target = Target::of_pid(pid)?;
        let time_ns = look::now_ns();
        let sample = look::sample(pid).ok();
        // Also where its allocator is there already (a static program): the probes come at the next moment.
        let capabilities = self.add(&target, None)?;
        self.known = Some(Known {
            target,
            capabilities,
            from_birth: true,
            // Before the first malloc they are what glibc comes with, or what the environment will say.
            thresholds: None,
            sample,
            time_ns,
        });
        Ok(())
    }

    fn at_libc(&mut self, pid: u32) -> anyhow::Result<()> {
        let target = Target::of_pid(pid)?;
        let (plan, mut limits) = attach::plan(&target)?;
        let mut capabilities = self.add(&target, plan.as_ref())?;
        capabilities.limits.append(&mut limits);
        if let Some(known) = &mut self.known {
            known.target = target;
            known.capabilities = capabilities;
        }
        Ok(())
    }

    fn add(&mut self, target: &Target, plan: Option<&ProbePlan>) -> anyhow::Result<Capabilities> {
        self.session
            .add(target, plan, self.follow, Begin::Now)
            .with_context(|| format!("attaching to {} (pid {})", target.name, target.pid))
    }
}

fn explained(error: SpawnError) -> anyhow::Error {
    match error.hint() {
        Some(advice) => hint(error, advice),
        None => error.into(),
    }
}
