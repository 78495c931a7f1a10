//! tracefs, where the kernel lists its tracepoints: mounted for this process alone when nobody has mounted it.

use std::ffi::CStr;
use std::fs;
use std::io;

use anyhow::{Context, Result};

const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Mounts tracefs in a mount namespace of memtrace's own when it is not mounted; nobody else sees it, and it goes with
/// memtrace. Returns whether that was necessary.
///
/// Only the calling thread (and threads and processes that it starts afterwards) enters the namespace: to be called
/// before any thread is started.
pub fn mount_if_missing() -> Result<bool> {
    if PLACES
        .iter()
        .any(|place| fs::metadata(format!("{place}/events")).is_ok())
    {
        return Ok(false);
    }
    mount_privately().context(
        "mounting tracefs, which lists the kernel's tracepoints (as root, `mount -t tracefs tracefs /sys/kernel/tracing` does it for all)",
    )?;
    Ok(true)
}

fn mount_privately() -> Result<()> {
    // SAFETY: changes nothing but this thread's mount namespace.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }).context("making a mount namespace")?;
    // Else a shared mount would hand the new one on to where it came from. What was changed into by chroot(2) need not be a
    // mount itself: then the nearest one around the place is.
    let private = |at: &CStr| mount(None, at, None, libc::MS_REC | libc::MS_PRIVATE);
    let is_no_mount = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    [c"/", c"/sys/kernel/tracing", c"/sys/kernel", c"/sys"]
        .into_iter()
        .map(private)
        .find(|result| !result.as_ref().is_err_and(is_no_mount))
        .unwrap_or_else(|| {
            Err(io::Error::other(
                "neither / nor /sys nor anything below it is a mount here",
            ))
        })
        .context("making mounts private")?;
    mount(Some(c"tracefs"), c"/sys/kernel/tracing", Some(c"tracefs"), 0).context("mounting on /sys/kernel/tracing")
}

fn mount(source: Option<&CStr>, target: &CStr, kind: Option<&CStr>, flags: libc::c_ulong) -> io::Result<()> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the strings live through the call; there is no data.
    check(unsafe { libc::mount(pointer(source), target.as_ptr(), pointer(kind), flags, std::ptr::null()) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
