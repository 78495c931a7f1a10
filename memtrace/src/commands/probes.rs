//! `memtrace probes`: the plan, before anything is attached.

use std::fs;
use std::io::{self, IsTerminal};

use anyhow::{Context, anyhow};

use super::args::ProbesArgs;
use super::exit::{Exit, explained, unless_ended};
use super::output;
use crate::probe::ProbePlan;
use crate::report::probes;
use crate::target::{Life, Target};

pub fn run(args: &ProbesArgs) -> anyhow::Result<Exit> {
    let (shown, bytes) = library(args)?;
    let plan = ProbePlan::for_library(&bytes).with_context(|| format!("looking for malloc in {shown}"))?;
    let style = output::style_of(io::stdout().is_terminal());
    output::print(&probes::render(&shown, &plan, style))?;
    Ok(Exit::Success)
}

/// The library's path as it is to be shown, and its bytes.
fn library(args: &ProbesArgs) -> anyhow::Result<(String, Vec<u8>)> {
    match (&args.file, args.pid) {
        (Some(path), _) => {
            let shown = path.display().to_string();
            let bytes = fs::read(path).with_context(|| format!("reading {shown}"))?;
            Ok((shown, bytes))
        }
        (None, Some(pid)) => {
            let life = Life::of(pid);
            mapped_by(pid).map_err(|error| unless_ended(&life, "reading its libc", error))
        }
        (None, None) => Err(anyhow!("no library given")),
    }
}

fn mapped_by(pid: u32) -> anyhow::Result<(String, Vec<u8>)> {
    let target = Target::of_pid(pid).map_err(explained)?;
    let library = target.libc.as_ref().ok_or_else(|| {
        anyhow!(
            "process {pid} ({}) has no glibc that could be probed: {}",
            target.name,
            target.allocator.evidence
        )
    })?;
    let bytes = library
        .read()
        .with_context(|| format!("reading {}, which process {pid} maps", library.shown))?;
    Ok((library.shown.clone(), bytes))
}
