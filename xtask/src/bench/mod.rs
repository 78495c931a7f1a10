//! A fair race: memtrace at each depth, bare probes and the peers, on the same workloads in one run, and what memtrace is
//! to reach held against it.
//!
//! ```text
//! workload  programs that work in windows of time       arm      the tools, each attached to them or around them
//! race      rounds of turns  ->  samples                attach   probes coming and going
//! budget    a minute of memtrace as it comes            drain    a storm of records
//! system_calls  how much of a workload they are
//! figures   samples  ->  reached or not                 table    all of it  ->  text, markdown
//! ```

mod arm;
mod attach;
mod budget;
mod drain;
mod figures;
mod machine;
mod race;
mod stats;
mod system_calls;
mod table;
mod workload;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;

use crate::process::{self, Root, say};
use crate::{demo, readme, workspace};

use arm::Arm;
use figures::Beside;
use machine::Machine;
use race::{Results, Rules};
use table::Shown;
use workload::Workload;

const MARKERS: &str = "bench";
/// Of the JSON's form: keys may come, none go or change their meaning.
const VERSION: u32 = 1;

#[derive(Args)]
pub struct Options {
    /// Only these workloads
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    workload: Vec<String>,
    /// Only these arms, beside no tracer
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    arm: Vec<String>,
    /// Turns of each arm on each workload (7; 3 with --quick)
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Short turns for the figures of one and two hundredths (40; 12 with --quick)
    #[arg(long, value_name = "N")]
    alternations: Option<usize>,
    /// How long the default budget is watched on each workload (60; 8 with --quick)
    #[arg(long, value_name = "SECONDS")]
    budget_seconds: Option<u64>,
    /// About five minutes instead of twenty-five: fewer rounds, shorter windows, most peers once
    #[arg(long)]
    quick: bool,
    /// Write every sample and figure to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Put the table of factors into README.md and the figures into docs/bench.md
    #[arg(long)]
    write_readme: bool,
    /// Build nothing: what is raced is there already
    #[arg(long, hide = true)]
    built: bool,
}

pub fn bench(options: &Options) -> Result<()> {
    let workloads = chosen(&workload::ALL, &options.workload, |workload| workload.name)?;
    let arms = chosen(&arm::ALL, &options.arm, |arm| arm.name)?;
    if !options.built {
        build()?;
    }
    if Root::find_out()? != Root::Already {
        return again_as_root();
    }
    let scratch = workspace::target().join(format!("bench-{}", std::process::id()));
    fs::create_dir_all(&scratch).with_context(|| format!("making {}", scratch.display()))?;
    let outcome = run(options, &workloads, &arms, &scratch);
    fs::remove_dir_all(&scratch).with_context(|| format!("removing {}", scratch.display()))?;
    outcome
}

/// What is raced: memtrace, the workloads, and the bare probes.
pub fn build() -> Result<()> {
    demo::build()?;
    let mut cargo = process::cargo();
    cargo.args([
        "build",
        "--release",
        "--package",
        "memtrace",
        "--example",
        "bare_probes",
        "--example",
        "system_calls",
        "--example",
        "watch_probes",
        "--example",
        "bpf_objects",
    ]);
    cargo.env_remove("CARGO_TARGET_DIR");
    process::run(&mut cargo, "building the bare probes")
}

/// The same run through sudo; what was built belongs to who built it.
pub fn again_as_root() -> Result<()> {
    let own = std::env::current_exe().context("finding the path of xtask")?;
    let mut command = Root::find_out()?
        .command(own)
        .context("attaching probes needs root, and there is no sudo here")?;
    command.args(std::env::args_os().skip(1)).arg("--built");
    process::run(&mut command, "running as root")
}

fn chosen<'a, T>(all: &'a [T], names: &[String], name_of: fn(&T) -> &'static str) -> Result<Vec<&'a T>> {
    for name in names {
        if !all.iter().any(|one| name_of(one) == name) {
            let known: Vec<&str> = all.iter().map(name_of).collect();
            bail!("there is no {name:?} to choose; there are {}", known.join(", "));
        }
    }
    let wanted = |one: &&T| names.is_empty() || names.iter().any(|name| name_of(one) == name);
    Ok(all.iter().filter(wanted).collect())
}

fn run(options: &Options, workloads: &[&Workload], arms: &[&'static Arm], scratch: &Path) -> Result<()> {
    let began = Instant::now();
    let machine = Machine::look()?;
    say(&machine.in_words());
    let mut missing: Vec<String> = arms.iter().filter_map(|arm| arm.missing()).collect();
    let mut workloads = workloads.to_vec();
    workloads.retain(|workload| match workload.needs() {
        Some((program, package)) if process::find(program).is_none() => {
            missing.push(format!(
                "workload {}: {program} is not installed (Debian and Ubuntu: apt-get install {package})",
                workload.name
            ));
            false
        }
        _ => true,
    });
    let arms: Vec<&'static Arm> = arms.iter().copied().filter(|arm| arm.missing().is_none()).collect();
    for line in &missing {
        say(&format!("missing: {line}"));
    }

    let rules = Rules {
        rounds: options.rounds.unwrap_or(if options.quick { 3 } else { 7 }),
        pair_rounds: 3,
        peer_rounds: if options.quick { 1 } else { 2 },
        window: Duration::from_millis(if options.quick { 120 } else { 250 }),
        alternations: options.alternations.unwrap_or(if options.quick { 12 } else { 40 }),
    };
    let raced: Vec<&'static Arm> = arms.iter().copied().filter(|arm| arm.name != arm::AUTO).collect();
    let mut results = race::run(&workloads, &raced, &rules, scratch);
    for workload in &workloads {
        race::alternate(workload, &raced, &rules, &mut results);
    }
    let mut beside = Beside::default();
    if arms.iter().any(|arm| arm.name == "syscalls") {
        say("how much of each workload is system calls");
        for workload in &workloads {
            beside.system_calls.push(system_calls::measure(workload)?);
        }
    }
    if let Some(calls) = arms.iter().find(|arm| arm.name == "calls") {
        say("the probes' coming and going");
        for _ in 0..5 {
            beside.attach.push(attach::measure(calls)?);
        }
        say("a storm of records");
        for _ in 0..3 {
            beside.drain.push(drain::measure(calls, Duration::from_secs(3))?);
        }
    }
    if let Some(auto) = arms.iter().find(|arm| arm.name == arm::AUTO) {
        let length = Duration::from_secs(options.budget_seconds.unwrap_or(if options.quick { 8 } else { 60 }));
        for workload in &workloads {
            say(&format!("the budget on {}: {} s", workload.name, length.as_secs()));
            beside.budget.push(budget::measure(workload, auto, length)?);
        }
    }
    let figures = figures::all(&results, &beside, &workloads);
    let shown = Shown {
        machine: &machine,
        workloads: &workloads,
        arms: &arms,
        results: &results,
        beside: &beside,
        figures: &figures,
        missing: &missing,
    };
    print!("{}", shown.text());
    println!("\nxtask bench: {:.0} s", began.elapsed().as_secs_f64());
    if let Some(file) = &options.json {
        write_json(file, &shown)?;
    }
    if options.write_readme {
        readme::put("README.md", MARKERS, &shown.factors_markdown())?;
        readme::put("docs/bench.md", MARKERS, &shown.figures_markdown())?;
    }
    Ok(())
}

/// Written in place, so that a file keeps its owner when root writes it.
fn write_json(file: &Path, shown: &Shown) -> Result<()> {
    let results: &Results = shown.results;
    let document = json!({
        "bench_version": VERSION,
        "machine": shown.machine,
        "figures": shown.figures,
        "samples": results.samples,
        "alternations": results.alternations,
        "failures": results.failures,
        "attach": shown.beside.attach,
        "drain": shown.beside.drain,
        "budget": shown.beside.budget,
        "system_calls": shown.beside.system_calls,
        "missing": shown.missing,
    });
    let text = serde_json::to_string_pretty(&document).context("writing the samples as JSON")?;
    fs::write(file, text + "\n").with_context(|| format!("writing {}", file.display()))
}
