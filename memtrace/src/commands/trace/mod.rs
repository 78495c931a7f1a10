//! `memtrace --pid`, `memtrace -- COMMAND`: attach, watch, report.
//!
//! ```text
//! attach  targets -> plans -> session; what is known of each process becomes its first events
//! watch   the kernel side's events, a tick a second, signals, the deadline, ends of processes
//! end     probes away, what is still in the buffer, last totals; the report
//! ```

mod again;
mod attach;
mod books;
mod live;
mod look;
pub(super) mod meter;
mod pace;
mod pidfd;
mod processes;
mod start;
mod stop;
mod watch;

use anyhow::Context;

use super::args::{DepthChoice, TraceArgs};
use super::exit::{Exit, complain, say};
use super::feed::Feed;
use super::output::Output;
use super::record::Recorder;
use crate::privileges::{self, MoreProbes};
use crate::session::{self, Calibration, Session};
use crate::target::{Life, Spawned};
use live::LiveLine;
use meter::Meter;
use processes::Processes;
use stop::Stop;
use watch::Watch;

pub fn run(args: &TraceArgs) -> anyhow::Result<Exit> {
    // Before there is anything to be left behind.
    let lives = if args.command.is_empty() {
        attach::named(args)?
    } else {
        Vec::new()
    };
    let output = Output::new(&args.output)?;
    let recorder = args.record.as_deref().map(Recorder::create).transpose()?;
    session::check_requirements()?;
    // A mount namespace is a thread's own: before the runtime has any.
    session::mount_if_missing().context("looking for the kernel's trace events")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the event loop")?;
    runtime.block_on(trace(args, &lives, &output, Feed::new(&output, recorder)))
}

async fn trace(args: &TraceArgs, lives: &[Life], output: &Output<'_>, mut feed: Feed<'_>) -> anyhow::Result<Exit> {
    let mut stop = Stop::listen().context("listening for signals")?;
    let mut session = Session::load(&session::Options {
        ring_bytes: args.buffer,
        debug: args.debug_bpf,
        ..session::Options::default()
    })?;
    let calibration = calibrate(&mut session, args);
    let mut processes = Processes::new();
    let mut command = None;
    if args.command.is_empty() {
        attach::running(&mut session, &mut feed, &mut processes, lives, args)?;
    } else {
        output.keep_from_command()?;
        command = Some(start::command(&mut session, &mut feed, &mut processes, args)?);
    }
    // What is left is to read, and to write to files that are open. But a command, or a child, may turn into a program
    // with another libc by an exec, and what is watched may change.
    let more_probes = if command.is_some() || args.follow || args.depth_choice() == DepthChoice::Auto {
        MoreProbes::Yes
    } else {
        MoreProbes::No
    };
    privileges::keep_what_a_trace_needs(more_probes).context("giving up capabilities that are no longer needed")?;
    announce(&processes, args);
    let mut live = LiveLine::if_terminal();
    let mut meter = Meter::new(calibration, session.system_call(), args.overhead_limit());
    for pid in processes.pids() {
        if command.is_some() {
            meter.born(pid);
        } else {
            meter.begin(pid);
        }
    }
    let mut watch = Watch::new(&mut session, &mut feed, processes, args, meter);
    let reason = watch
        .until_over(&mut stop, args.duration, command.is_some(), live.as_mut())
        .await?;
    drop(live);
    watch.end(reason)?;
    let record = feed.finish_record();
    output.deliver(&feed.reports(), feed.omitted())?;
    say_if_running(command)?;
    record?;
    Ok(Exit::Success)
}

/// What a hit costs here, where there will be hits.
fn calibrate(session: &mut Session, args: &TraceArgs) -> Option<Calibration> {
    if args.depth_choice() == DepthChoice::Syscalls {
        return None;
    }
    match session.calibrate() {
        Ok(calibration) => Some(calibration),
        Err(error) => {
            complain(&error.context("what a probe costs here could not be measured; figures from elsewhere stand in"));
            None
        }
    }
}

/// One line of talk, so that nobody waits for a report that waits for them, and so that others know that it has begun.
fn announce(processes: &Processes, args: &TraceArgs) {
    let Some(who) = processes.in_words() else { return };
    if !args.command.is_empty() {
        say(&format!("started {who}"));
    } else if args.duration.is_some() {
        say(&format!("attached to {who}"));
    } else {
        say(&format!("attached to {who}; Ctrl-C ends with the report"));
    }
}

/// A command that memtrace started is not ended by it.
fn say_if_running(command: Option<Spawned>) -> anyhow::Result<()> {
    let Some(mut command) = command else { return Ok(()) };
    if command.try_wait().context("looking after the command")?.is_none() {
        say(&format!("the command (pid {}) goes on running", command.pid()));
    }
    Ok(())
}
