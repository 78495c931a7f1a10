//! From process ids to traced processes, and to the first events of each.

use crate::page_size::page_size;
use std::collections::BTreeSet;

use anyhow::Context;
use memtrace_analysis::event::{Capabilities, Event, EventKind, LookMoment, Sample, Start, Thresholds, Watching};

use super::books;
use super::look;
use super::pidfd::PidFd;
use super::processes::Processes;
use crate::commands::args::{DepthChoice, TraceArgs};
use crate::commands::exit::{complain, explained, unless_ended};
use crate::commands::feed::Feed;
use crate::probe::ProbePlan;
use crate::session::{Added, Begin, Session};
use crate::target::{self, Life, Target};

/// A process as its trace begins.
#[derive(Clone, Debug)]
pub struct Known {
    pub target: Target,
    pub capabilities: Capabilities,
    pub from_birth: bool,
    /// mp_ now; None where it was not read.
    pub thresholds: Option<Thresholds>,
    pub watching: Watching,
    /// A process that has ended already has none.
    pub sample: Option<Sample>,
    pub time_ns: u64,
}

/// All processes that the command line names, each once, in order; at least one. Held by their lives, so that a process
/// that ends from here on is said to have ended.
pub fn named(args: &TraceArgs) -> anyhow::Result<Vec<Life>> {
    let mut pids: BTreeSet<u32> = args.pid.iter().copied().collect();
    for name in &args.comm {
        pids.extend(target::pids_by_name(name).map_err(explained)?);
    }
    for path in &args.cgroup {
        pids.extend(target::pids_in_cgroup(path).map_err(explained)?);
    }
    let own = std::process::id();
    anyhow::ensure!(!pids.contains(&own), "process {own} is memtrace itself");
    let lives: Vec<Life> = pids.into_iter().map(Life::of).collect();
    // Said before the kernel side is loaded: that an id is wrong can be found out without any privilege.
    if let [only] = lives.as_slice() {
        Target::of_pid(only.pid()).map_err(|error| unless_ended(only, LOOKING, explained(error)))?;
    }
    Ok(lives)
}

const LOOKING: &str = "looking at it";

/// Begins to trace processes that run already. With several, those that cannot be traced are left out, aloud.
pub fn running(
    session: &mut Session,
    feed: &mut Feed<'_>,
    processes: &mut Processes,
    lives: &[Life],
    args: &TraceArgs,
) -> anyhow::Result<()> {
    for life in lives {
        let pid = life.pid();
        let begun =
            one(session, feed, processes, pid, args).map_err(|error| unless_ended(life, "attaching to it", error));
        match begun {
            Ok(()) => {}
            Err(error) if lives.len() > 1 => complain(&error.context(format!("process {pid} is left out"))),
            Err(error) => return Err(error),
        }
    }
    anyhow::ensure!(!processes.is_empty(), "none of the processes can be traced");
    Ok(())
}

fn one(
    session: &mut Session,
    feed: &mut Feed<'_>,
    processes: &mut Processes,
    pid: u32,
    args: &TraceArgs,
) -> anyhow::Result<()> {
    // The handle first: from here on the id cannot come to mean another process unnoticed.
    let handle = PidFd::open(pid).with_context(|| format!("opening a handle on process {pid}"))?;
    let target = Target::of_pid(pid).map_err(explained)?;
    let (plan, mut limits) = plan(&target)?;
    // Before the probes are there: a look at a large heap takes a while, and hits that are not counted yet are not charged
    // to the budget either. What is left of such time are the few milliseconds that it takes to put them in place.
    let begin = EventKind::Look {
        moment: LookMoment::Begin,
        look: look::books(pid),
    };
    let added = session
        .add_at(
            args.depth_choice().depth(),
            &target,
            plan.as_ref(),
            args.follow,
            Begin::Later,
        )
        .with_context(|| format!("attaching to {} (pid {pid})", target.name))?;
    let watching = watching(&added, args);
    let mut capabilities = added.capabilities;
    capabilities.limits.append(&mut limits);
    let thresholds = books::thresholds(&target);
    let known = Known {
        target,
        capabilities,
        from_birth: false,
        thresholds,
        watching,
        sample: look::sample(pid).ok(),
        time_ns: look::now_ns(),
    };
    let begin = Event {
        time_ns: known.time_ns,
        pid,
        tid: pid,
        kind: begin,
    };
    for event in first_events(&known).into_iter().chain([begin]) {
        feed.push(event)?;
    }
    session.activate(pid)?;
    processes.add_with(&known, handle);
    Ok(())
}

/// What is watched of a process that has been taken up.
pub fn watching(added: &Added, args: &TraceArgs) -> Watching {
    Watching {
        depth: added.watching,
        followed: added.followed,
        // Also without probes: whether system calls are watched all the time is still to be chosen.
        automatic: args.depth_choice() == DepthChoice::Auto,
    }
}

/// Where the probes go; None where malloc cannot be traced, with the reason in words.
pub fn plan(target: &Target) -> anyhow::Result<(Option<ProbePlan>, Vec<String>)> {
    let mut limits = target.limits.clone();
    let Some(library) = &target.libc else {
        return Ok((None, limits));
    };
    let bytes = library
        .read()
        .with_context(|| format!("reading {}, which process {} maps", library.shown, target.pid))?;
    match ProbePlan::for_library(&bytes) {
        Ok(plan) => Ok((Some(plan), limits)),
        Err(error) => {
            limits.push(format!(
                "allocator calls are not seen, since {} offers no place for probes: {error}",
                library.shown
            ));
            Ok((None, limits))
        }
    }
}

/// What the analysis has to know before anything happens.
pub fn first_events(known: &Known) -> Vec<Event> {
    let Known {
        target,
        capabilities,
        from_birth,
        thresholds,
        watching,
        sample,
        time_ns,
    } = known;
    let start = Start {
        name: target.name.clone(),
        command: target.command.clone(),
        threads: target.threads,
        from_birth: *from_birth,
        allocator: target.allocator.clone(),
        break_end: sample.and_then(|sample| sample.break_end),
        page_size: page_size(),
        resident_bytes: sample.map(|sample| sample.resident_bytes),
        thresholds: *thresholds,
        capabilities: capabilities.clone(),
    };
    let mut kinds = vec![
        EventKind::Start(Box::new(start)),
        EventKind::Watching(*watching),
        EventKind::Modules(target.modules.clone()),
    ];
    kinds.extend(sample.map(EventKind::Sample));
    kinds
        .into_iter()
        .map(|kind| Event {
            time_ns: *time_ns,
            pid: target.pid,
            tid: target.pid,
            kind,
        })
        .collect()
}
