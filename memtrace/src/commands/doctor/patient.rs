//! The process asked about, or this machine's libc: its allocator, and where probes would sit in it.

use std::fs;
use std::io::ErrorKind;

use super::machine::check;
use crate::commands::exit::explained;
use crate::probe::{CostClass, ProbePlan};
use crate::report::doctor::{self, Check, Libc, Probe, State};
use crate::target::Target;

pub struct Patient {
    pub target: Option<Target>,
    libc: Option<Examined>,
    pub plan: Option<ProbePlan>,
    /// Why there is no plan.
    pub unknown: Option<String>,
}

/// A libc, whose it is, and who is malloc there.
struct Examined {
    of: String,
    path: String,
    allocator: String,
}

/// Where distributions have the libc that programs are linked with: Debian's, Fedora's, Arch's.
#[cfg(target_arch = "x86_64")]
const PLACES: [&str; 3] = [
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib64/libc.so.6",
    "/usr/lib/libc.so.6",
];
#[cfg(target_arch = "aarch64")]
const PLACES: [&str; 3] = [
    "/lib/aarch64-linux-gnu/libc.so.6",
    "/lib64/libc.so.6",
    "/usr/lib/libc.so.6",
];

/// An error is one of a process that was asked about.
pub fn look(pid: Option<u32>) -> anyhow::Result<Patient> {
    let Some(pid) = pid else { return Ok(of_this_machine()) };
    let target = Target::of_pid(pid).map_err(explained)?;
    let (plan, unknown) = plan(&target);
    let libc = target.libc.as_ref().map(|library| Examined {
        of: format!("{} (pid {})", target.name, target.pid),
        path: library.shown.clone(),
        allocator: format!("{:?}", target.allocator.kind).to_lowercase(),
    });
    Ok(Patient {
        target: Some(target),
        libc,
        plan,
        unknown,
    })
}

/// Not memtrace's own libc: it may have none, being static.
fn of_this_machine() -> Patient {
    let (mut libc, mut plan, mut unknown) = (None, None, None);
    for path in PLACES {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => {
                unknown = Some(format!("reading {path}: {error}"));
                break;
            }
        };
        libc = Some(Examined {
            of: "this machine".to_owned(),
            path: path.to_owned(),
            allocator: "glibc".to_owned(),
        });
        match ProbePlan::for_library(&bytes) {
            Ok(found) => plan = Some(found),
            Err(error) => unknown = Some(format!("{path} offers no place for probes: {error}")),
        }
        break;
    }
    if plan.is_none() && unknown.is_none() {
        unknown = Some(format!(
            "this machine has no glibc where it usually is ({}); --pid PID tells it for a process",
            PLACES.join(", ")
        ));
    }
    Patient {
        target: None,
        libc,
        plan,
        unknown,
    }
}

fn plan(target: &Target) -> (Option<ProbePlan>, Option<String>) {
    let Some(library) = &target.libc else {
        let why = format!(
            "malloc cannot be probed: {}; only its memory system calls can be watched",
            target.allocator.evidence
        );
        return (None, Some(why));
    };
    let bytes = match library.read() {
        Ok(bytes) => bytes,
        Err(error) => return (None, Some(format!("reading {}: {error}", library.shown))),
    };
    match ProbePlan::for_library(&bytes) {
        Ok(plan) => (Some(plan), None),
        Err(error) => (
            None,
            Some(format!("{} offers no place for probes: {error}", library.shown)),
        ),
    }
}

impl Patient {
    pub fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        if let Some(target) = &self.target {
            let mode = match target.seccomp {
                0 => "off",
                1 => "strict",
                _ => "a filter; no probe that is used here minds it",
            };
            checks.push(check("seccomp", State::Ok, mode, None));
            // Where there is no plan the reason says who is malloc.
            if self.plan.is_some() {
                let found = format!("glibc's: {}", target.allocator.evidence);
                checks.push(check("allocator", State::Ok, found, None));
            }
        }
        if let Some(plan) = &self.plan {
            checks.push(match &plan.slow_path {
                Ok(_) => check("slow path", State::Ok, "found and verified", None),
                Err(why) => check(
                    "slow path",
                    State::Less,
                    why.clone(),
                    Some("--depth calls and syscalls do without"),
                ),
            });
            for limit in &plan.limits {
                checks.push(check("libc", State::Less, limit.clone(), None));
            }
        }
        checks
    }

    pub fn described(&self) -> Option<doctor::Patient> {
        let target = self.target.as_ref()?;
        Some(doctor::Patient {
            pid: target.pid,
            name: target.name.clone(),
            threads: target.threads,
            seccomp: target.seccomp,
        })
    }

    pub fn libc(&self, hit_ns: Option<f64>) -> Option<Libc> {
        let (Examined { of, path, allocator }, plan) = (self.libc.as_ref()?, self.plan.as_ref()?);
        let probe = |function: &str, offset: u64, instruction: &str, cost: CostClass| Probe {
            function: function.to_owned(),
            offset,
            instruction: instruction.to_owned(),
            cost_class: cost.to_string(),
            expected_ns: hit_ns.map(|ns| ns * cost.times_cheapest()),
        };
        let mut probes: Vec<Probe> = plan
            .sites
            .iter()
            .map(|site| probe(&site.symbol, site.offset, &site.instruction, site.cost))
            .collect();
        if let Ok(slow) = &plan.slow_path {
            probes.push(probe("_int_malloc", slow.offset, &slow.instruction, slow.cost));
        }
        Some(Libc {
            of: of.clone(),
            path: path.clone(),
            allocator: allocator.clone(),
            version: plan.version.clone(),
            build_id: plan.build_id.clone(),
            probes,
        })
    }
}
