//! What must be given before anything is loaded, each with a sentence of its own.

use std::fs;
use std::io;

use anyhow::{Result, bail};

use super::returns::{Release, release};

/// Ring buffers came with it.
const OLDEST: Release = Release {
    major: 5,
    minor: 8,
    patch: 0,
};

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Why the kernel side cannot be loaded here, if so.
pub fn check() -> Result<()> {
    if let Some(release) = release()
        && release < OLDEST
    {
        bail!("Linux {release} is too old: memtrace needs {OLDEST} or later, which brought BPF ring buffers");
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(effective) = effective_capabilities(&status) {
        let missing = missing_capabilities(effective);
        if !missing.is_empty() {
            bail!(
                "loading the kernel side needs {}, which this process does not have: run memtrace as root (sudo memtrace ...)",
                missing.join(" and ")
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

/// The mask behind `CapEff:`.
fn effective_capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// CAP_SYS_ADMIN stands for both of the newer ones.
fn missing_capabilities(effective: u64) -> Vec<&'static str> {
    let has = |capability: u32| effective >> capability & 1 == 1;
    if has(CAP_SYS_ADMIN) {
        return Vec::new();
    }
    [(CAP_BPF, "CAP_BPF"), (CAP_PERFMON, "CAP_PERFMON")]
        .into_iter()
        .filter(|&(capability, _)| !has(capability))
        .map(|(_, name)| name)
        .collect()
}

/// An invalid command is refused with EINVAL by a kernel that knows the call at all.
fn bpf_system_call_exists() -> bool {
    // SAFETY: a null attribute of size 0 is not looked at.
    let result = unsafe { libc::syscall(libc::SYS_bpf, -1i32, std::ptr::null::<u8>(), 0u32) };
    result != -1 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_status_file() {
        assert_eq!(
            effective_capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n"),
            Some(0x1ff_ffff_ffff)
        );
        assert_eq!(effective_capabilities("Name:\tx\n"), None);
        assert_eq!(missing_capabilities(1 << CAP_SYS_ADMIN), Vec::<&str>::new());
        assert_eq!(missing_capabilities(1 << CAP_BPF), ["CAP_PERFMON"]);
        assert_eq!(missing_capabilities(0), ["CAP_BPF", "CAP_PERFMON"]);
        assert_eq!(
            missing_capabilities(1 << CAP_BPF | 1 << CAP_PERFMON),
            Vec::<&str>::new()
        );
    }
}
