//! The machine, as it has to be named beside any figure.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::process;

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    pub architecture: String,
    /// The processor says that a hypervisor is below it.
    pub virtual_machine: bool,
    pub glibc: String,
    /// Processes that wanted to run when the bench began (the load average of a minute).
    pub load: f64,
    /// UTC, "2026-01-31".
    pub date: String,
}

impl Machine {
    pub fn look() -> Result<Self> {
        let cpus = read("/proc/cpuinfo")?;
        let field = |name: &str| {
            cpus.lines()
                .find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))
                .map(|value| value.trim().to_owned())
        };
        let load = read("/proc/loadavg")?;
        let date = process::capture(Command::new("date").args(["-u", "+%F"]), "asking for the date")?;
        let glibc = process::capture(Command::new("getconf").arg("GNU_LIBC_VERSION"), "asking for the libc")?;
        Ok(Self {
            // arm64 names none.
            cpu: field("model name").unwrap_or_else(|| "unnamed processor".to_owned()),
            cores: std::thread::available_parallelism()
                .context("counting the processors")?
                .get(),
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            virtual_machine: field("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            glibc: glibc.trim().to_owned(),
            load: load
                .split(' ')
                .next()
                .and_then(|figure| figure.parse().ok())
                .context("reading the load average")?,
            date: date.trim().to_owned(),
        })
    }

    pub fn in_words(&self) -> String {
        let kind = if self.virtual_machine {
            ", a virtual machine"
        } else {
            ""
        };
        format!(
            "{} x {}{kind}, Linux {} {}, {}, load {:.1}, {}",
            self.cores, self.cpu, self.kernel, self.architecture, self.glibc, self.load, self.date
        )
    }
}

fn read(file: &str) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("reading {file}"))
}
