//! How much of a workload is system calls: how many a unit of work makes, and the part of its processor time that the kernel
//! takes. Without any tool but a counter, which takes no part in the second.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::arm;
use super::workload::{Class, Running, Workload};
use crate::lines::Lines;
use crate::workspace;

#[derive(Clone, Debug, Serialize)]
pub struct SystemCalls {
    pub workload: &'static str,
    /// Of the workload's work: a pair, a request.
    pub unit: &'static str,
    pub calls_per_unit: f64,
    /// Of the processor time of the workload's process.
    pub kernel_share: f64,
    /// It is there to do nothing else, so it is left out of the figures of depth syscalls.
    pub nothing_else: bool,
}

impl SystemCalls {
    pub fn in_words(&self) -> String {
        let calls = match self.calls_per_unit {
            calls if calls >= 0.01 => format!("{calls:.2}"),
            _ => "less than 0.01".to_owned(),
        };
        format!(
            "{calls} system calls a {}, {:.0} % of its processor time in the kernel",
            self.unit,
            self.kernel_share * 100.0
        )
    }

    /// With a word on a workload that the bound of depth syscalls leaves out.
    pub fn with_class(&self) -> String {
        let class = if self.nothing_else {
            "; it does nothing else"
        } else {
            ""
        };
        format!("{}{class}", self.in_words())
    }
}

/// The kernel's clock of a process's two parts goes in hundredths of a second.
const WINDOW: Duration = Duration::from_secs(2);
const COUNTED: Duration = Duration::from_millis(500);

pub fn measure(workload: &Workload) -> Result<SystemCalls> {
    let mut process = Running::start(workload, &[])?;
    process.window(COUNTED)?;
    let before = ticks(process.pid())?;
    process.window(WINDOW)?;
    let after = ticks(process.pid())?;
    let (user, system) = (after.0 - before.0, after.1 - before.1);
    if user + system <= 0.0 {
        bail!("{} took no processor time", workload.name);
    }

    let mut counter = Command::new(workspace::target().join("release").join(arm::SYSTEM_CALLS))
        .args(["count", &process.pid().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting system_calls")?;
    let mut lines = Lines::of(counter.stdout.take().context("no standard output")?);
    lines.wait_for("attached")?;
    let window = process.window(COUNTED)?;
    drop(counter.stdin.take());
    let line = lines.wait_for("calls=")?;
    counter.wait().context("waiting for system_calls")?;
    let calls = line.strip_prefix("calls=").and_then(|calls| calls.parse::<f64>().ok());
    let calls = calls.with_context(|| format!("reading a line of system_calls: {line}"))?;
    Ok(SystemCalls {
        workload: workload.name,
        unit: workload.unit,
        calls_per_unit: calls / window.work,
        kernel_share: system / (user + system),
        nothing_else: workload.class == Class::SystemCalls,
    })
}

/// What a process has used itself, and in the kernel for it: proc_pid_stat(5), fields 14 and 15.
fn ticks(pid: u32) -> Result<(f64, f64)> {
    let file = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&file).with_context(|| format!("reading {file}"))?;
    // The name, which may hold anything, ends at the last bracket; field 3 follows.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace());
    let mut fields = fields.with_context(|| format!("reading {file}"))?.skip(14 - 3);
    let mut next = || fields.next()?.parse::<f64>().ok();
    next().zip(next()).with_context(|| format!("reading {file}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_computes_uses_time_of_its_own() {
        let own = std::process::id();
        let before = ticks(own).unwrap();
        let mut sum = 0u64;
        while ticks(own).unwrap().0 - before.0 < 5.0 {
            for i in 0..10_000_000 {
                sum = std::hint::black_box(sum.wrapping_add(i));
            }
        }
        let after = ticks(own).unwrap();
        assert!(after.0 - before.0 > after.1 - before.1, "{before:?} {after:?}");
    }
}
