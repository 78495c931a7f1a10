//! The small files of /proc/PID.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::printable::printable;

pub fn thread_ids(pid: u32) -> Result<Vec<libc::pid_t>> {
    let path = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&path).with_context(|| format!("listing {path}"))?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect())
}

/// Stack pointers of the threads that wait in the kernel; a running thread's is not shown.
pub fn stack_pointers(pid: u32) -> Vec<u64> {
    let threads = thread_ids(pid).unwrap_or_default();
    let pointer = |tid| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
        // "NUMBER ARGUMENTS... SP PC", "-1 SP PC" or "running"
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        u64::from_str_radix(words.get(words.len().checked_sub(2)?)?.strip_prefix("0x")?, 16).ok()
    };
    threads.into_iter().filter_map(pointer).collect()
}

/// The kernel's name of a process and its command line, without control characters.
pub fn names(pid: u32) -> Result<(String, String)> {
    let path = format!("/proc/{pid}/comm");
    if !Path::new(&format!("/proc/{pid}")).exists() {
        bail!("there is no process {pid}");
    }
    let name = fs::read(&path).with_context(|| format!("reading {path}"))?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> = command
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(printable)
        .collect();
    Ok((printable(name.trim_ascii_end()), words.join(" ")))
}

/// Nanoseconds since the process started.
pub fn age_ns(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    // Field 22, counted behind the name, which may hold blanks and parentheses.
    let ticks: u64 = text
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19)?.parse().ok())
        .with_context(|| format!("cannot make sense of {path}"))?;
    // SAFETY: sysconf has no preconditions.
    let rate = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) })
        .unwrap_or(100)
        .max(1);
    let started = ticks.saturating_mul(1_000_000_000 / rate);
    Ok(since_boot_ns().saturating_sub(started))
}

fn since_boot_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The variables of the environment the process began with that malloc reads.
pub fn malloc_environment(pid: u32) -> Vec<(String, String)> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    bytes
        .split(|byte| *byte == 0)
        .filter_map(|variable| {
            let text = printable(variable);
            let (name, value) = text.split_once('=')?;
            let known = name == "GLIBC_TUNABLES" || name.starts_with("MALLOC_");
            known.then(|| (name.to_owned(), value.to_owned()))
        })
        .collect()
}
