//! `memtrace explain`: why a process's memory does not come back, from one look at it, from several, or from an image.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args, ValueEnum};
use memtrace_analysis::glibc::changes::{Point, changes};
use memtrace_analysis::glibc::look::{EXPLAIN_VERSION, Look};

use super::exit::{Exit, explained, hint, unless_ended};
use super::output::{print, style_of};
use super::{args, quantity};
use crate::inspect::page_cache;
use crate::inspect::{self, LookOptions, image};
use crate::report::explain;
use crate::report::files as report_files;
use crate::report::style::Style;
use crate::target::{self, Life};

const EXAMPLES: &str = "\
Examples:
  memtrace explain --pid 4242                     one look; needs no root for a process of one's own
  memtrace explain --pid 4242 --watch 10s         look every ten seconds until Ctrl-C: does it grow?
  memtrace explain --pid 4242 --output json -o A.json
  memtrace explain --diff A.json B.json           what has changed between two looks
  memtrace explain --pid 4242 --output svg -o heap.svg
  memtrace explain --pid 4242 --files             its files in the page cache, and what of them is dirty
  memtrace explain --pid 4242 --record heap.img   keep malloc's bookkeeping (no contents of blocks) ...
  memtrace explain --image heap.img               ... and look at it on another machine";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group(ArgGroup::new("subject").args(["pid", "image", "diff"]).required(true)))]
#[group(skip)]
pub struct ExplainArgs {
    /// The process to look at; no probes, nothing is written to it
    #[arg(short, long, value_name = "PID", value_parser = args::pid, allow_negative_numbers = true)]
    pub pid: Option<u32>,
    /// Look at a stored image instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stop", "record", "watch"])]
    pub image: Option<PathBuf>,
    /// Compare two looks, as stored by --output json
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 2, conflicts_with_all = ["stop", "record", "watch"])]
    pub diff: Vec<PathBuf>,
    /// Let the process stand still for the milliseconds of the look; it goes on also if memtrace is killed
    #[arg(long)]
    pub stop: bool,
    /// Keep malloc's bookkeeping in this file: headers and lists, never the contents of blocks
    #[arg(long, value_name = "FILE", conflicts_with = "watch")]
    pub record: Option<PathBuf>,
    /// Look again every so often until Ctrl-C (10s, 1m30s), and judge the trend
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, allow_hyphen_values = true)]
    pub watch: Option<Duration>,
    /// End after this many looks
    #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u64).range(2..))]
    pub looks: Option<u64>,
    /// Show the files it holds instead, and what of each is in the page cache
    #[arg(long, requires = "pid", conflicts_with_all = ["stop", "record", "watch"])]
    pub files: bool,
    /// Form of the answer
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Form::Text)]
    pub output: Form,
    /// Write the answer to this file instead of standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    pub report_to: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people
    Text,
    /// For programs, versioned; docs/explain.schema.json describes it
    Json,
    /// A picture of the heap
    Svg,
}

pub fn run(args: &ExplainArgs) -> Result<Exit> {
    if let [before, after] = &args.diff[..] {
        return compare(args, before, after);
    }
    if let Some(pid) = args.pid {
        target::examine(pid).map_err(explained)?;
    }
    if let (Some(pid), true) = (args.pid, args.files) {
        return files(args, pid);
    }
    if let (Some(pid), Some(interval)) = (args.pid, args.watch) {
        return watch(args, pid, interval);
    }
    let look = match (args.pid, &args.image) {
        (Some(pid), _) => look_at(args, pid)?,
        (None, Some(path)) => image::read(path)?.explain(),
        (None, None) => bail!("neither a process nor an image is given"),
    };
    let answer = match args.output {
        Form::Text => explain::text::render(&look, style(args)),
        Form::Json => explain::json(&look).context("rendering the look as JSON")?,
        Form::Svg => explain::svg::render(&look),
    };
    deliver(args, &answer)?;
    Ok(Exit::Success)
}

/// The page cache's side of a process.
fn files(args: &ExplainArgs, pid: u32) -> Result<Exit> {
    let life = Life::of(pid);
    let held =
        page_cache::of_process(pid).map_err(|error| unless_ended(&life, "looking at its files", advised(error)))?;
    let machine = page_cache::of_machine()?;
    let answer = match args.output {
        Form::Text => report_files::text(pid, &held, machine, style(args)),
        Form::Json => report_files::json(pid, &held, machine).context("rendering the files as JSON")?,
        Form::Svg => bail!("there is no picture of files; --output can be text or json"),
    };
    deliver(args, &answer)?;
    Ok(Exit::Success)
}

/// Takes one look, and keeps its image if that is asked for.
fn look_at(args: &ExplainArgs, pid: u32) -> Result<Look> {
    let options = LookOptions {
        stop: args.stop,
        keep_words: args.record.is_some(),
    };
    let life = Life::of(pid);
    let capture =
        inspect::take(pid, options).map_err(|error| unless_ended(&life, "looking into it", advised(error)))?;
    if let Some(path) = &args.record {
        image::write(path, &capture)?;
    }
    Ok(capture.explain())
}

/// What to do about a process that may not be looked into.
fn advised(error: anyhow::Error) -> anyhow::Error {
    let kind = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>())
        .map(io::Error::kind);
    match kind {
        Some(io::ErrorKind::PermissionDenied) if target::may_look_anywhere() => hint(error, target::SHIELDED),
        Some(io::ErrorKind::PermissionDenied) => hint(
            error,
            "looking into another user's process needs CAP_SYS_PTRACE (sudo); for one's own, \
             /proc/sys/kernel/yama/ptrace_scope must be 0",
        ),
        _ => error,
    }
}

fn style(args: &ExplainArgs) -> Style {
    match args.report_to {
        Some(_) => Style::PLAIN,
        None => style_of(io::stdout().is_terminal()),
    }
}

fn deliver(args: &ExplainArgs, answer: &str) -> Result<()> {
    match &args.report_to {
        Some(path) => fs::write(path, answer).with_context(|| format!("writing the answer to {}", path.display())),
        None => print(answer),
    }
}

fn compare(args: &ExplainArgs, before: &Path, after: &Path) -> Result<Exit> {
    let found = changes(&stored(before)?, &stored(after)?, &[]);
    let answer = match args.output {
        Form::Text => explain::changes::render(&found, style(args)),
        Form::Json => explain::changes::json(&found).context("rendering the changes as JSON")?,
        Form::Svg => bail!("there is no picture of a comparison; --output can be text or json"),
    };
    deliver(args, &answer)?;
    Ok(Exit::Success)
}

/// A look that --output json has stored.
fn stored(path: &Path) -> Result<Look> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).with_context(|| format!("reading {} as JSON", path.display()))?;
    match value.get("explain_version").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(EXPLAIN_VERSION) => {}
        Some(version) => bail!(
            "reading {}: it is of version {version}, and this memtrace reads version {EXPLAIN_VERSION}",
            path.display()
        ),
        None => bail!("reading {}: it is no look of memtrace explain", path.display()),
    }
    serde_json::from_value(value).with_context(|| format!("reading {} as a look", path.display()))
}

fn watch(args: &ExplainArgs, pid: u32, interval: Duration) -> Result<Exit> {
    if args.output == Form::Svg {
        bail!("there is no picture of a series; --output can be text or json");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("setting up timers and signals")?;
    runtime.block_on(watch_until_interrupted(args, pid, interval))
}

async fn watch_until_interrupted(args: &ExplainArgs, pid: u32, interval: Duration) -> Result<Exit> {
    let mut clock = tokio::time::interval(interval);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut ends = [
        tokio::signal::unix::SignalKind::interrupt(),
        tokio::signal::unix::SignalKind::terminate(),
    ]
    .map(tokio::signal::unix::signal);
    let [Ok(interrupt), Ok(terminate)] = &mut ends else {
        bail!("cannot wait for signals")
    };
    let life = Life::of(pid);
    let (mut first, mut last): (Option<Look>, Option<Look>) = (None, None);
    let mut series: Vec<Point> = Vec::new();
    loop {
        tokio::select! {
            _ = clock.tick() => {}
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
        }
        let look = match look_at(args, pid) {
            Ok(look) => look,
            // It ended: what was seen until then is the answer.
            Err(_) if first.is_some() && life.is_over() => {
                crate::commands::exit::say(&format!("process {pid} has ended"));
                break;
            }
            Err(error) => return Err(error),
        };
        series.push(Point::of(&look));
        let begin = series[0].unix_ms;
        match args.output {
            Form::Text if series.len() == 1 => {
                print(&(explain::changes::heading() + &explain::changes::line(&look, begin)))?
            }
            Form::Text => print(&explain::changes::line(&look, begin))?,
            Form::Json | Form::Svg => print(&explain::json_line(&look).context("rendering a look as JSON")?)?,
        }
        if first.is_none() {
            first = Some(look.clone());
        }
        last = Some(look);
        if args.looks.is_some_and(|most| series.len() as u64 >= most) {
            break;
        }
    }
    let (Some(first), Some(last)) = (first, last) else {
        return Ok(Exit::Success);
    };
    let found = changes(&first, &last, &series);
    match args.output {
        Form::Text => deliver(args, &format!("\n{}", explain::changes::render(&found, style(args))))?,
        Form::Json | Form::Svg => {
            let line = serde_json::to_string(&found).context("rendering the changes as JSON")?;
            deliver(args, &(line + "\n"))?;
        }
    }
    Ok(Exit::Success)
}
