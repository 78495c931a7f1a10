//! `memtrace doctor`: what works on this machine, for this process, at what cost, and what to do where it does not.
//!
//! ```text
//! machine  what can be read without loading anything, also without root
//! patient  the process, its libc, where probes would sit
//! trial    the kernel side loaded, a hit measured, a short look at the process's rates
//! ```

mod machine;
mod patient;
mod trial;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::args::{self, Form};
use super::exit::Exit;
use super::output::{print, style_of};
use crate::privileges::{Capabilities, Capability};
use crate::report::doctor::{self, DOCTOR_VERSION, DepthFound, Doctor, State};
use trial::Trial;

const AFTER: &str = "\
Exit status:
  0  everything works
  1  something is missing; the answer says what, and what to do
  2  the command line makes no sense

With --pid, the process is watched for a moment (0.3 s) to tell what each depth would cost. Without root the doctor says as
much as can be told without it.";

#[derive(Debug, Args)]
#[command(after_help = AFTER)]
#[group(skip)]
pub struct DoctorArgs {
    /// Look at this process too
    #[arg(short, long, value_name = "PID", value_parser = args::pid, allow_negative_numbers = true)]
    pub pid: Option<u32>,
    /// Form of the answer; docs/doctor.schema.json describes the JSON document
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Form::Text)]
    pub output: Form,
    /// Write the answer to this file instead of standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    pub report_to: Option<PathBuf>,
}

pub fn run(args: &DoctorArgs) -> anyhow::Result<Exit> {
    let patient = patient::look(args.pid)?;
    let mut checks = machine::checks();
    checks.extend(patient.checks());
    let trial = trial::try_out(patient.target.as_ref(), patient.plan.as_ref());
    checks.extend(trial.checks());
    let held = Capabilities::effective().unwrap_or_default();
    let depths = depths(&trial, &patient, args.pid.is_some());
    let missing = checks.iter().any(|check| check.state == State::Missing) || depths.iter().any(|depth| !depth.works);
    let found = Doctor {
        doctor_version: DOCTOR_VERSION,
        works: !missing,
        checks,
        capabilities: Capability::ALL
            .into_iter()
            .map(|capability| (capability.name().to_owned(), held.has(capability)))
            .collect::<BTreeMap<_, _>>(),
        memory: trial::memory(),
        hit: trial.hit(),
        libc: patient.libc(trial.hit_ns()),
        libc_unknown: patient.unknown.clone(),
        target: patient.described(),
        depths,
    };
    let text = match args.output {
        Form::Json => doctor::json(&found).context("rendering the answer as JSON")?,
        Form::Text => {
            let on_terminal = args.report_to.is_none() && io::stdout().is_terminal();
            doctor::text::render(&found, style_of(on_terminal))
        }
    };
    match &args.report_to {
        Some(path) => fs::write(path, text).with_context(|| format!("writing {}", path.display()))?,
        None => print(&text)?,
    }
    Ok(if found.works { Exit::Success } else { Exit::Failure })
}

fn depths(trial: &Trial, patient: &patient::Patient, asked: bool) -> Vec<DepthFound> {
    let no_kernel = trial.obstacle();
    let no_plan = patient.unknown.clone();
    let no_slow_path = match &patient.plan {
        Some(plan) => plan.slow_path.as_ref().err().cloned(),
        None => no_plan.clone(),
    };
    let registers = trial.without_registers();
    let unknown = if asked {
        trial.rates_unknown()
    } else {
        Some("--pid PID tells it for a process".to_owned())
    };
    [
        ("calls", no_plan, trial.rates.map(|rates| rates.calls)),
        (
            "slow-path",
            no_slow_path.or(registers),
            trial.rates.map(|rates| rates.slow_path),
        ),
        ("syscalls", None, trial.rates.map(|rates| rates.syscalls)),
    ]
    .into_iter()
    .map(|(depth, obstacle, rate)| {
        let because = no_kernel.clone().or(obstacle);
        let works = because.is_none();
        DepthFound {
            depth: depth.to_owned(),
            works,
            because,
            hits_per_second: rate.flatten().map(|rate| rate.hits_per_second),
            syscalls_per_second: rate.flatten().map(|rate| rate.syscalls_per_second),
            cost_share: rate.flatten().and_then(|rate| rate.share),
            cost_unknown: match rate.flatten() {
                None => unknown.clone(),
                Some(trial::Rate { share: None, .. }) => {
                    Some("the process used no CPU time in the meantime".to_owned())
                }
                Some(_) => None,
            }
            .filter(|_| works),
        }
    })
    .collect()
}
