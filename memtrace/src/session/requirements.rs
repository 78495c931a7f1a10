//! What must be given before anything is loaded, each with a sentence of its own.

use std::fs;
use std::io;

use anyhow::{Result, bail};

use super::returns::{self, Release};
use crate::privileges::{self, Capabilities, Task};

/// Ring buffers came with it.
const OLDEST: Release = Release {
    major: 5,
    minor: 8,
    patch: 0,
};

/// Whether the kernel is new enough; one whose release cannot be read is taken to be.
pub fn release() -> Result<()> {
    if let Some(release) = returns::release()
        && release < OLDEST
    {
        bail!("Linux {release} is too old: memtrace needs {OLDEST} or later, which brought BPF ring buffers");
    }
    Ok(())
}

/// Why the kernel side cannot be loaded here, if so.
pub fn check() -> Result<()> {
    self::release()?;
    // What cannot be read is found out by trying.
    if let Ok(capabilities) = Capabilities::effective() {
        let missing = privileges::missing(capabilities, &[Task::LoadPrograms, Task::AttachTracepoints]);
        if !missing.is_empty() {
            let names: Vec<&str> = missing.iter().map(|missing| missing.any_of[0].name()).collect();
            bail!(
                "loading the kernel side needs {}, which this process does not have: run memtrace as root (sudo memtrace ...)",
                names.join(" and ")
            );
        }
    }
    if !bpf_system_call_exists() {
        bail!(
            "this kernel has no bpf system call, or it is switched off for this process (CONFIG_BPF_SYSCALL, seccomp)"
        );
    }
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    if lockdown.contains("[confidentiality]") {
        bail!("kernel lockdown is in confidentiality mode, which forbids BPF programs to read memory");
    }
    Ok(())
}

/// An invalid command is refused with EINVAL by a kernel that knows the call at all.
fn bpf_system_call_exists() -> bool {
    // SAFETY: a null attribute of size 0 is not looked at.
    let result = unsafe { libc::syscall(libc::SYS_bpf, -1i32, std::ptr::null::<u8>(), 0u32) };
    result != -1 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}
