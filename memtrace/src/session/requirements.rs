//! What must be given before anything is loaded, each with a sentence of its own.

use std::fs;
use std::io;

use anyhow::{Result, bail};
use aya::maps::MapType;
use aya::sys::is_map_supported;

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
    // Without the right to ask, what is missing is that right.
    let ring_buffers = || is_map_supported(MapType::RingBuf).unwrap_or(true);
    if let Some(sentence) = too_old(returns::release(), ring_buffers) {
        bail!(sentence);
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

/// A distribution's kernel may have more than its number says, so an old number alone does not count.
fn too_old(release: Option<Release>, has_ring_buffers: impl FnOnce() -> bool) -> Option<String> {
    let release = release.filter(|&release| release < OLDEST)?;
    (!has_ring_buffers()).then(|| {
        format!("Linux {release} is too old: memtrace needs {OLDEST} or later, which brought BPF ring buffers")
    })
}

/// An invalid command is refused with EINVAL by a kernel that knows the call at all.
fn bpf_system_call_exists() -> bool {
    // SAFETY: a null attribute of size 0 is not looked at.
    let result = unsafe { libc::syscall(libc::SYS_bpf, -1i32, std::ptr::null::<u8>(), 0u32) };
    result != -1 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

#[cfg(test)]
mod tests {
    use super::super::returns::parse;
    use super::*;

    fn sentence(release: &str, has_ring_buffers: bool) -> Option<String> {
        let release = parse(release);
        assert!(release.is_some());
        too_old(release, || has_ring_buffers)
    }

    #[test]
    fn a_kernel_without_ring_buffers_is_refused_with_its_number() {
        let said = sentence("5.4.0-216-generic", false).unwrap();
        assert_eq!(
            said,
            "Linux 5.4 is too old: memtrace needs 5.8 or later, which brought BPF ring buffers"
        );
        assert!(
            sentence("4.19.0-27-cloud-amd64", false)
                .unwrap()
                .starts_with("Linux 4.19 ")
        );
    }

    #[test]
    fn an_old_number_with_ring_buffers_and_a_newer_one_are_not() {
        assert_eq!(sentence("4.18.0-553.el8_10.x86_64", true), None);
        assert_eq!(sentence("5.8.0", false), None);
        assert_eq!(too_old(None, || false), None);
    }
}
