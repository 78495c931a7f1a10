//! Why a process cannot be traced, a sentence each, and what would help.

use std::{fmt, io};

use crate::privileges::{Capabilities, Capability};

use super::process::says_gone;

#[derive(Debug)]
pub enum TargetError {
    NoSuchProcess {
        pid: u32,
    },
    /// It was there when memtrace began.
    EndedMeanwhile {
        pid: u32,
        name: String,
        /// What memtrace did: "attaching to it".
        doing: &'static str,
    },
    /// The id is that of a thread other than the first.
    Thread {
        tid: u32,
        pid: u32,
    },
    KernelThread {
        pid: u32,
        name: String,
    },
    Zombie {
        pid: u32,
        name: String,
    },
    /// This file of /proc/PID may not be read.
    Permission {
        pid: u32,
        file: String,
    },
    ThirtyTwoBit {
        pid: u32,
        name: String,
    },
    /// Reading this file of /proc/PID failed.
    Proc {
        pid: u32,
        file: String,
        error: io::Error,
    },
    /// Its program or a library in it is not what an ELF file is.
    Malformed {
        pid: u32,
        path: String,
        what: String,
    },
    NoProcessNamed {
        name: String,
    },
    NoProcessInCgroup {
        path: String,
    },
    /// /proc itself.
    ProcList {
        error: io::Error,
    },
}

/// Advice where the kernel refuses what the capability for it should allow.
pub const SHIELDED: &str = "memtrace has CAP_SYS_PTRACE already: this process is shielded from root too, by a security \
                            module or since it belongs to a user namespace above this one";

/// Whether memtrace has what looking into other users' processes takes.
pub fn may_look_anywhere() -> bool {
    Capabilities::effective().is_ok_and(|have| have.has(Capability::SysPtrace))
}

impl TargetError {
    pub(super) fn from_proc(pid: u32, file: &str, error: io::Error) -> Self {
        if says_gone(&error) {
            Self::NoSuchProcess { pid }
        } else if error.kind() == io::ErrorKind::PermissionDenied {
            Self::Permission {
                pid,
                file: file.to_owned(),
            }
        } else {
            Self::Proc {
                pid,
                file: file.to_owned(),
                error,
            }
        }
    }

    /// What to do about it, where something can be done.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Thread { pid, .. } => Some(format!("name the whole process: --pid {pid}")),
            Self::Permission { .. } => Some(String::from(if may_look_anywhere() {
                SHIELDED
            } else {
                "run memtrace as root, or give it CAP_SYS_PTRACE (sudo setcap cap_sys_ptrace+ep .../memtrace)"
            })),
            Self::ThirtyTwoBit { .. } => Some(String::from("valgrind --tool=massif works for 32-bit programs")),
            Self::NoProcessNamed { .. } => Some(String::from(
                "names are those of ps -e (the kernel keeps 15 characters of them)",
            )),
            Self::NoProcessInCgroup { .. } => Some(String::from(
                "give the path below /sys/fs/cgroup, as /proc/PID/cgroup shows it",
            )),
            Self::EndedMeanwhile { .. } => Some(String::from(
                "a program that ends soon can be started by memtrace: memtrace -- COMMAND",
            )),
            Self::NoSuchProcess { .. }
            | Self::KernelThread { .. }
            | Self::Zombie { .. }
            | Self::Proc { .. }
            | Self::Malformed { .. }
            | Self::ProcList { .. } => None,
        }
    }
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchProcess { pid } => write!(f, "there is no process {pid}"),
            Self::EndedMeanwhile { pid, name, doing } => {
                write!(f, "process {pid} ({name}) ended while memtrace was {doing}")
            }
            Self::Thread { tid, pid } => write!(f, "{tid} is a thread of process {pid}, not a process"),
            Self::KernelThread { pid, name } => {
                write!(
                    f,
                    "process {pid} ({name}) is a thread of the kernel and has no memory of its own"
                )
            }
            Self::Zombie { pid, name } => {
                write!(
                    f,
                    "process {pid} ({name}) has ended already and only waits for its parent to notice (a zombie)"
                )
            }
            Self::Permission { pid, file } => {
                write!(
                    f,
                    "reading /proc/{pid}/{file} is not permitted: process {pid} belongs to someone else, or is shielded"
                )
            }
            Self::ThirtyTwoBit { pid, name } => {
                write!(
                    f,
                    "process {pid} ({name}) is a 32-bit process, and memtrace traces 64-bit ones"
                )
            }
            Self::Proc { pid, file, error: _ } => write!(f, "reading /proc/{pid}/{file} failed"),
            Self::Malformed { pid, path, what } => write!(f, "process {pid} maps {path}, which cannot be read: {what}"),
            Self::NoProcessNamed { name } => write!(f, "no process is named {name}"),
            Self::NoProcessInCgroup { path } => write!(f, "no process is in the control group {path}"),
            Self::ProcList { error: _ } => write!(f, "reading /proc failed"),
        }
    }
}

impl std::error::Error for TargetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Proc { error, .. } | Self::ProcList { error } => Some(error),
            _ => None,
        }
    }
}
