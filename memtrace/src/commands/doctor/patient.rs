//! The process asked about, or memtrace itself: its allocator, its libc, and where probes would sit in it.

use super::machine::check;
use crate::commands::exit::explained;
use crate::probe::{CostClass, ProbePlan};
use crate::report::doctor::{self, Check, Libc, Probe, State};
use crate::target::{Target, TargetError};

pub struct Patient {
    asked: bool,
    pub target: Option<Target>,
    pub plan: Option<ProbePlan>,
    /// Why there is no plan.
    pub unknown: Option<String>,
}

/// An error is one of a process that was asked about.
pub fn look(pid: Option<u32>) -> anyhow::Result<Patient> {
    let asked = pid.is_some();
    let target = match Target::of_pid(pid.unwrap_or_else(std::process::id)) {
        Ok(target) => target,
        Err(error) if asked => return Err(explained(error)),
        Err(error) => return Ok(without(&error)),
    };
    let (plan, unknown) = plan(&target);
    let unknown = unknown.map(|why| {
        if asked {
            why
        } else {
            format!("{why} (of memtrace itself; --pid PID tells it for a process)")
        }
    });
    Ok(Patient {
        asked,
        target: Some(target),
        plan,
        unknown,
    })
}

fn without(error: &TargetError) -> Patient {
    Patient {
        asked: false,
        target: None,
        plan: None,
        unknown: Some(error.to_string()),
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
        if let Some(target) = self.target.as_ref().filter(|_| self.asked) {
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
        let (target, plan) = (self.target.as_ref()?, self.plan.as_ref()?);
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
            of: if self.asked {
                format!("{} (pid {})", target.name, target.pid)
            } else {
                "memtrace itself".to_owned()
            },
            path: target.libc.as_ref()?.shown.clone(),
            allocator: format!("{:?}", target.allocator.kind).to_lowercase(),
            version: plan.version.clone(),
            build_id: plan.build_id.clone(),
            probes,
        })
    }
}
