//! What can be told of the machine without loading anything.

use std::fs;
use std::path::Path;

use crate::privileges::{self, Capabilities, Task};
use crate::report::doctor::{Check, State};
use crate::session;

pub fn checks() -> Vec<Check> {
    let mut checks = vec![kernel(), btf(), tracefs(), lockdown(), return_probes()];
    checks.extend(capabilities());
    checks
}

pub fn check(name: &str, state: State, found: impl Into<String>, advice: Option<&str>) -> Check {
    Check {
        name: name.to_owned(),
        state,
        found: found.into(),
        advice: advice.map(str::to_owned),
    }
}

fn kernel() -> Check {
    let name = "kernel";
    let full = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let full = full.trim();
    match session::check_release() {
        Ok(()) if full.is_empty() => check(name, State::Unknown, "its release cannot be read", None),
        Ok(()) => check(
            name,
            State::Ok,
            format!("Linux {full} {}", std::env::consts::ARCH),
            None,
        ),
        Err(error) => check(name, State::Missing, error.to_string(), Some("boot a newer kernel")),
    }
}

fn btf() -> Check {
    let path = "/sys/kernel/btf/vmlinux";
    match fs::metadata(path) {
        Ok(file) => check("BTF", State::Ok, format!("{path}, {} KiB", file.len() >> 10), None),
        Err(error) => check(
            "BTF",
            State::Less,
            format!("{path}: {error}; births of threads, and resident memory at each system call, are not seen"),
            Some("a kernel with CONFIG_DEBUG_INFO_BTF has it"),
        ),
    }
}

fn tracefs() -> Check {
    let places = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
    let seen = |place: &&&str| match fs::metadata(format!("{place}/events")) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    };
    match places.iter().find(seen) {
        Some(place) => check("tracefs", State::Ok, format!("mounted on {place}"), None),
        None if Path::new(places[0]).exists() => check(
            "tracefs",
            State::Ok,
            "not mounted; memtrace mounts it for itself while it runs, which takes CAP_SYS_ADMIN",
            None,
        ),
        None => check(
            "tracefs",
            State::Missing,
            format!("there is no {}", places[0]),
            Some("a kernel with CONFIG_FTRACE has it; in a container, /sys must be the kernel's"),
        ),
    }
}

fn lockdown() -> Check {
    let text = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let mode = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    match mode.map(|(mode, _)| mode) {
        Some("confidentiality") => check(
            "lockdown",
            State::Missing,
            "confidentiality: BPF programs may not read memory",
            Some("boot with lockdown=integrity, or without Secure Boot's lockdown"),
        ),
        Some(mode) => check("lockdown", State::Ok, mode, None),
        None => check("lockdown", State::Ok, "none that can be seen", None),
    }
}

fn return_probes() -> Check {
    if session::return_probes_are_safe() {
        check(
            "return probes",
            State::Ok,
            "harmless on this kernel, also under seccomp",
            None,
        )
    } else {
        check(
            "return probes",
            State::Less,
            "could kill a process with a seccomp filter on this kernel, so none is used: what realloc returned is not seen",
            Some("Linux 6.14, 6.13.2 and 6.12.13 have the repair"),
        )
    }
}

/// One check for each thing that memtrace needs a capability for.
fn capabilities() -> Vec<Check> {
    let Ok(held) = Capabilities::effective() else {
        return vec![check(
            "capabilities",
            State::Unknown,
            "/proc/thread-self/status cannot be read",
            None,
        )];
    };
    let missing = privileges::missing(held, &Task::NEEDED);
    if missing.is_empty() {
        return vec![check("capabilities", State::Ok, "all that a trace needs", None)];
    }
    let advice = privileges::hint(&missing);
    let last = missing.len() - 1;
    let checks = missing.iter().enumerate().map(|(index, missing)| {
        let advice = advice.as_deref().filter(|_| index == last);
        check("capabilities", State::Missing, missing.to_string(), advice)
    });
    checks.collect()
}
