//! The machine a run was made on: a figure without it says little.

use crate::page_size::page_size;
use std::fs;
use std::path::Path;

use serde::Serialize;

use super::bench::Bench;
use super::inherited::Setting;

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub architecture: &'static str,
    pub kernel: String,
    pub memory_bytes: u64,
    pub page_size: u64,
    /// Of the lab's programs.
    pub glibc: Option<String>,
    /// Runs as a virtual machine: its disk and its clock are another machine's.
    pub virtual_machine: bool,
    /// Processes that wanted to run when the lab began.
    pub load: f64,
    pub transparent_huge_pages: Option<String>,
    /// Settings of malloc in the environment, which the lab's programs get too.
    pub inherited: Vec<String>,
    /// Whether memory system calls are traced; else why not.
    pub tracing: bool,
    pub without_tracing_because: Option<String>,
}

impl Machine {
    /// What cannot be read is left open.
    pub fn here(bench: &Bench) -> anyhow::Result<Self> {
        let glibc = bench.trial()?.glibc.clone();
        let tracing = bench.can_trace();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu_line = |name: &str| {
            cpuinfo
                .lines()
                .find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))
                .map(|value| value.trim().to_string())
        };
        let flags = cpu_line("flags").unwrap_or_default();
        let device_tree_guest = Path::new("/proc/device-tree/hypervisor").exists();
        Ok(Self {
            processor: cpu_line("model name").unwrap_or_else(|| "unknown processor".to_string()),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            architecture: std::env::consts::ARCH,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
            memory_bytes: meminfo_total(),
            page_size: page_size(),
            glibc,
            virtual_machine: flags.split_whitespace().any(|flag| flag == "hypervisor") || device_tree_guest,
            load: read("/proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
            inherited: bench.inherited().iter().map(Setting::show).collect(),
            transparent_huge_pages: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            tracing: tracing.is_ok(),
            without_tracing_because: tracing.err(),
        })
    }

    /// "memtrace lab on ..., ..."
    pub fn one_line(&self) -> String {
        let glibc = self
            .glibc
            .as_ref()
            .map_or_else(String::new, |version| format!(", glibc {version}"));
        let guest = if self.virtual_machine { ", virtual machine" } else { "" };
        format!(
            "{} x {}, Linux {} {}{glibc}, {} of memory{guest}",
            self.processors,
            self.processor,
            self.kernel,
            self.architecture,
            super::unit::Unit::Bytes.show(self.memory_bytes as f64),
        )
    }

    /// More wants to run than there are processors: timings will be noisy.
    pub fn is_busy(&self) -> bool {
        self.load > self.processors as f64 * 0.5
    }
}

fn meminfo_total() -> u64 {
    super::run::MachineMemory::now().map_or(0, |memory| memory.total as u64)
}

/// The word in brackets.
fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_string())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
