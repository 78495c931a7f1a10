//! A command started under our eyes, traced from its exec on.

use anyhow::Context;

use super::attach::{self, Known};
use super::look;
use super::processes::Processes;
use crate::commands::args::TraceArgs;
use crate::commands::exit::hint;
use crate::commands::feed::Feed;
use crate::probe::ProbePlan;
use crate::session::{Added, Begin, Session};
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
        args,
    };
    let spawned = Spawned::start(&args.command, args.user.as_deref(), |pid, moment| match moment {
        // Still a copy of memtrace: nothing it does is the command's.
        Moment::BeforeExec => Ok(()),
        Moment::Executed => birth.at_exec(pid),
        Moment::LibcMapped => birth.at_libc(pid),
    });
    let spawned = spawned.map_err(explained)?;
    let known = birth.known;
    let Some(known) = known else {
        anyhow::bail!("the command ended before it became a program");
    };
    for event in attach::first_events(&known) {
        feed.push(event)?;
    }
    processes.add(&known).context("opening a handle on the command")?;
    Ok(spawned)
}

struct Birth<'a> {
    session: &'a mut Session,
    known: Option<Known>,
    args: &'a TraceArgs,
}

impl Birth<'_> {
    fn at_exec(&mut self, pid: u32) -> anyhow::Result<()> {
        let target = Target::of_pid(pid)?;
        let time_ns = look::now_ns();
        let sample = look::sample(pid).ok();
        // Also where its allocator is there already (a static program): the probes come at the next moment.
        let added = self.add(&target, None)?;
        let watching = attach::watching(&added, self.args);
        let capabilities = added.capabilities;
        self.known = Some(Known {
            target,
            capabilities,
            from_birth: true,
            // Before the first malloc they are what glibc comes with, or what the environment will say.
            thresholds: None,
            watching,
            sample,
            time_ns,
        });
        Ok(())
    }

    fn at_libc(&mut self, pid: u32) -> anyhow::Result<()> {
        let target = Target::of_pid(pid)?;
        let (plan, mut limits) = attach::plan(&target)?;
        let added = self.add(&target, plan.as_ref())?;
        let watching = attach::watching(&added, self.args);
        let mut capabilities = added.capabilities;
        capabilities.limits.append(&mut limits);
        if let Some(known) = &mut self.known {
            known.target = target;
            known.capabilities = capabilities;
            known.watching = watching;
        }
        Ok(())
    }

    fn add(&mut self, target: &Target, plan: Option<&ProbePlan>) -> anyhow::Result<Added> {
        let depth = self.args.depth_choice().depth();
        self.session
            .add_at(depth, target, plan, self.args.follow, Begin::Now)
            .with_context(|| format!("attaching to {} (pid {})", target.name, target.pid))
    }
}

fn explained(error: SpawnError) -> anyhow::Error {
    match error.hint() {
        Some(advice) => hint(error, advice),
        None => error.into(),
    }
}
