//! The user side under a storm of records: how much of a core it takes, and whether it loses any.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use super::arm::{Arm, Attached};
use super::workload::{self, Class, Running, Workload};

#[derive(Clone, Debug, Serialize)]
pub struct Drain {
    /// System calls that the target made in a second, each of them a record.
    pub events_per_second: f64,
    /// Processor time of memtrace itself, as a share of one core.
    pub cores: f64,
    pub lost: u64,
    pub seen: u64,
    pub made: u64,
}

const STORM: Workload = Workload {
    name: "storm",
    about: "mmap and munmap of a page, 100 000 calls in a second",
    unit: "call",
    class: Class::SystemCalls,
    kind: workload::Kind::Lab(&["system-calls", "--memory", "1", "--rate", "110000"]),
};
/// The pace is not to begin with what is still being set up.
const SETTLE: Duration = Duration::from_millis(500);

pub fn measure(arm: &Arm, length: Duration) -> Result<Drain> {
    let mut process = Running::start(&STORM, &[])?;
    let attached = Attached::to(arm.kind, process.pid())?;
    let warm = process.window(SETTLE)?;
    let before = workload::cpu_ns(attached.pid())?;
    let began = Instant::now();
    let window = process.window(length)?;
    // What is still in the buffer is drained at the next wake-up.
    thread::sleep(SETTLE);
    let cores = (workload::cpu_ns(attached.pid())? - before) / began.elapsed().as_nanos() as f64;
    let cores = cores * began.elapsed().as_nanos() as f64 / window.ns;
    let report = attached.stop()?.report.context("memtrace made no report")?;
    let calls = |name: &str| report["syscalls"][name]["count"].as_u64().unwrap_or(0);
    Ok(Drain {
        events_per_second: window.work / window.ns * 1e9,
        cores,
        lost: lost(&report)?,
        seen: calls("mmap") + calls("munmap"),
        made: (warm.work + window.work) as u64,
    })
}

/// Records that did not fit into the buffer.
pub fn lost(report: &Value) -> Result<u64> {
    report["coverage"]["lost_events"]
        .as_u64()
        .context("memtrace's report does not say how many events were lost")
}
