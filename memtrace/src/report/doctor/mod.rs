//! What the doctor found, as plain data; its JSON document is described by docs/doctor.schema.json.

pub mod text;

use std::collections::BTreeMap;

use serde::Serialize;

use super::plain::escape_json;

pub const DOCTOR_VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Doctor {
    pub doctor_version: u32,
    /// Nothing is missing: every depth works.
    pub works: bool,
    pub checks: Vec<Check>,
    /// By name, whether memtrace has it.
    pub capabilities: BTreeMap<String, bool>,
    /// What the kernel side allocates, all of it when it is loaded.
    pub memory: Memory,
    pub hit: Hit,
    pub libc: Option<Libc>,
    /// Why there is none.
    pub libc_unknown: Option<String>,
    pub target: Option<Patient>,
    /// The deepest first.
    pub depths: Vec<DepthFound>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Ok,
    /// Not there, and something does not work for it.
    Missing,
    /// Not there, and less is seen for it.
    Less,
    Unknown,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    pub name: String,
    pub state: State,
    pub found: String,
    /// What to do.
    pub advice: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    pub bytes: u64,
    pub maps: Vec<MapSize>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MapSize {
    pub name: String,
    pub bytes: u64,
}

/// What a hit of a cheap probe costs here.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Hit {
    pub ns: Option<f64>,
    /// Longest pause that a running thread saw while probes came and went.
    pub pause_ns: Option<u64>,
    /// What each system call of the machine takes longer while there is a trace, at every depth.
    pub syscall_ns: Option<f64>,
    /// Why it was not measured.
    pub unknown: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Libc {
    /// Whose: the process asked about, or this machine.
    pub of: String,
    pub path: String,
    pub allocator: String,
    pub version: Option<String>,
    pub build_id: Option<String>,
    pub probes: Vec<Probe>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Probe {
    pub function: String,
    pub offset: u64,
    pub instruction: String,
    /// "emulated" or "single-stepped".
    pub cost_class: String,
    /// By what was measured here, and the ratio of the classes elsewhere.
    pub expected_ns: Option<f64>,
}

/// The process asked about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Patient {
    pub pid: u32,
    pub name: String,
    pub threads: u32,
    /// 0 off, 1 strict, 2 filter.
    pub seccomp: u8,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DepthFound {
    pub depth: String,
    pub works: bool,
    /// Why not, and what to do.
    pub because: Option<String>,
    /// At the process's rate of a short look.
    pub hits_per_second: Option<f64>,
    /// System calls of any kind.
    pub syscalls_per_second: Option<f64>,
    /// What both take of its CPU time.
    pub cost_share: Option<f64>,
    /// Why that is not known.
    pub cost_unknown: Option<String>,
}

pub fn json(doctor: &Doctor) -> Result<String, serde_json::Error> {
    Ok(escape_json(&serde_json::to_string_pretty(doctor)?).into_owned() + "\n")
}
