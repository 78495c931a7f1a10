//! The kernel side, tried out: it is loaded, a hit is measured, and a process is watched for a moment.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memtrace_analysis::event::Depth;

use super::machine::check;
use crate::commands::trace::meter::Meter;
use crate::probe::ProbePlan;
use crate::report::doctor::{Check, Hit, MapSize, Memory, State};
use crate::session::{self, Begin, Calibration, Options, Session, Source};
use crate::target::Target;

/// How long a process is watched at a depth.
const LOOK: Duration = Duration::from_millis(100);

pub struct Trial {
    /// Why the kernel side does not load.
    failure: Option<String>,
    registers: bool,
    side_by_side: bool,
    calibration: Result<Calibration, String>,
    syscall_ns: Option<f64>,
    pub rates: Option<Rates>,
    rates_failure: Option<String>,
}

/// What a process does to each depth.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    pub calls: Option<Rate>,
    pub slow_path: Option<Rate>,
    pub syscalls: Option<Rate>,
}

#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub hits_per_second: f64,
    /// Of any kind.
    pub syscalls_per_second: f64,
    /// What the hits took, and what made system calls longer; None where the process used no CPU time meanwhile.
    pub share: Option<f64>,
}

/// Leaves nothing behind.
pub fn try_out(target: Option<&Target>, plan: Option<&ProbePlan>) -> Trial {
    let mut trial = Trial {
        failure: None,
        registers: false,
        side_by_side: false,
        calibration: Err("the kernel side cannot be loaded".to_owned()),
        syscall_ns: None,
        rates: None,
        rates_failure: None,
    };
    // A mount namespace is a thread's own: before the runtime has any.
    let loaded = session::check_requirements()
        .and_then(|()| session::mount_if_missing())
        .and_then(|_| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.context("starting the event loop")
        })
        .and_then(|runtime| {
            let inside = runtime.enter();
            let session = Session::load(&Options::default());
            drop(inside);
            session.map(|session| (runtime, session))
        });
    let (runtime, mut session) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            trial.failure = Some(format!("{error:#}"));
            return trial;
        }
    };
    let inside = runtime.enter();
    trial.registers = session.capabilities().frame_check;
    trial.side_by_side = session.detaches_together();
    trial.syscall_ns = session.system_call().map(|call| call.added_ns());
    trial.calibration = session.calibrate().map_err(|error| format!("{error:#}"));
    if let (Some(target), Some(plan)) = (target, plan) {
        match rates(&mut session, target, plan, trial.calibration.as_ref().ok().copied()) {
            Ok(rates) => trial.rates = Some(rates),
            Err(error) => trial.rates_failure = Some(format!("{error:#}")),
        }
    }
    session.detach();
    drop(session);
    drop(inside);
    trial
}

fn rates(session: &mut Session, target: &Target, plan: &ProbePlan, calibration: Option<Calibration>) -> Result<Rates> {
    session
        .prepare_every_call()
        .and_then(|_| session.count_syscalls())
        .context("counting system calls")?;
    session
        .add_at(Depth::Syscalls, target, Some(plan), false, Begin::Now)
        .with_context(|| format!("attaching to {} (pid {})", target.name, target.pid))?;
    let added_ns = session.system_call().map_or(0.0, |call| call.added_ns());
    let look = |session: &mut Session| {
        let mut meter = Meter::new(calibration, session.system_call(), 1.0);
        meter.begin(target.pid);
        let before = session.totals(target.pid).map_or(0, |totals| totals.hits);
        let syscalls_before = session.counted_syscalls(target.pid);
        let begin = Instant::now();
        thread::sleep(LOOK);
        let mut totals = session.totals(target.pid)?;
        totals.hits = totals.hits.saturating_sub(before);
        let syscalls = session.counted_syscalls(target.pid).saturating_sub(syscalls_before) as f64;
        // What is dear is so at each depth alike; the calls by entry point are of all the time.
        meter.read(target.pid, &totals, &[], 0);
        let seconds = begin.elapsed().as_secs_f64();
        let cost = meter.cost(target.pid, (0, 0))?;
        drop(session.pending());
        let taken_ns = cost.trace_ns as f64 + syscalls * added_ns;
        Some(Rate {
            hits_per_second: totals.hits as f64 / seconds,
            syscalls_per_second: syscalls / seconds,
            share: (cost.cpu_ns > 0).then(|| taken_ns / cost.cpu_ns as f64),
        })
    };
    // From the least on: probes that are taken away are still hit for a while.
    let syscalls = look(session);
    let slow_path = if session.has_slow_path() {
        session.change_depth(Depth::SlowPath, Source::Tracepoints, || ())?;
        look(session)
    } else {
        None
    };
    session.change_depth(Depth::Calls, Source::Tracepoints, || ())?;
    Ok(Rates {
        calls: look(session),
        slow_path,
        syscalls,
    })
}

impl Trial {
    pub fn checks(&self) -> Vec<Check> {
        if let Some(why) = &self.failure {
            return vec![check("kernel side", State::Missing, why.clone(), None)];
        }
        let registers = if self.registers {
            check(
                "registers",
                State::Ok,
                "shown at system calls: which allocator call made one is proven",
                None,
            )
        } else {
            check(
                "registers",
                State::Less,
                "not shown at system calls (before Linux 5.15): which allocator call made one is likely, not proven, and not known at depth syscalls",
                None,
            )
        };
        let links = if self.side_by_side {
            check("probe links", State::Ok, "probes are taken away side by side", None)
        } else {
            check(
                "probe links",
                State::Less,
                "probes are taken away one after the other, about 0.1 s each (before Linux 6.11)",
                None,
            )
        };
        let kernel_side = check("kernel side", State::Ok, "loads, and the kernel has verified it", None);
        vec![registers, links, kernel_side]
    }

    pub fn obstacle(&self) -> Option<String> {
        self.failure
            .as_ref()
            .map(|_| "the kernel side cannot be loaded, see CHECKS".to_owned())
    }

    pub fn without_registers(&self) -> Option<String> {
        (self.failure.is_none() && !self.registers)
            .then(|| "this kernel does not show a task's registers at a system call (before 5.15)".to_owned())
    }

    pub fn hit_ns(&self) -> Option<f64> {
        self.calibration.as_ref().ok().map(|calibration| calibration.hit_ns)
    }

    pub fn hit(&self) -> Hit {
        Hit {
            ns: self.hit_ns(),
            pause_ns: self.calibration.as_ref().ok().map(|calibration| calibration.pause_ns),
            syscall_ns: self.syscall_ns,
            unknown: self.calibration.as_ref().err().cloned(),
        }
    }

    pub fn rates_unknown(&self) -> Option<String> {
        Some(match &self.rates_failure {
            Some(why) => format!("not measured: {why}"),
            None => "not measured: there was nothing to probe".to_owned(),
        })
    }
}

/// What the kernel side takes, at the sizes that a trace has when nothing else is said.
pub fn memory() -> Memory {
    let maps: Vec<MapSize> = session::memory_bound(&Options::default())
        .into_iter()
        .map(|(name, bytes)| MapSize {
            name: name.to_owned(),
            bytes,
        })
        .collect();
    Memory {
        bytes: maps.iter().map(|map| map.bytes).sum(),
        maps,
    }
}
