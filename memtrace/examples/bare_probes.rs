//! What a probe costs at least: empty BPF programs at the places that memtrace would probe, and nothing else.
//!
//! ```text
//! bare_probes PID NAME...      malloc free: at those of the plan's sites, until the input ends
//! ```
//!
//! The program is two instructions, return 0; it is attached as memtrace attaches its own (one link of the kind uprobe_multi
//! for each place), or through perf events where the kernel has no such links. Says `attached` when all are in place.

use std::ffi::CString;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use memtrace::probe::ProbePlan;
use memtrace::target::Target;

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
/// `r0 = 0; exit`
const EMPTY: [u64; 2] = [0xb7, 0x95];
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
/// Where the kernel says which number its uprobe events have.
const UPROBE_TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let pid: u32 = words
        .next()
        .and_then(|word| word.parse().ok())
        .context("usage: bare_probes PID NAME...")?;
    let target = Target::of_pid(pid)?;
    let library = target.libc.context("the process has no glibc to probe")?;
    let bytes = library.read().with_context(|| format!("reading {}", library.shown))?;
    let plan = ProbePlan::for_library(&bytes).with_context(|| format!("planning probes in {}", library.shown))?;
    let links = load(BPF_TRACE_UPROBE_MULTI);
    let mut probes = Vec::new();
    for name in words {
        let Some(site) = plan.sites.iter().find(|site| site.symbol == name) else {
            bail!("{} has no place to probe for {name}", library.shown);
        };
        let probe = match &links {
            Ok(program) => link(program, &library.opened, site.file_offset, pid),
            Err(_) => perf_event(&load(0)?, &library.opened, site.file_offset, pid),
        };
        probes.push(probe.with_context(|| format!("probing {name}"))?);
    }
    println!("attached");
    io::stdin()
        .read_to_end(&mut Vec::new())
        .context("waiting for the end of the input")?;
    drop(probes);
    Ok(())
}

/// Has the kernel verify the empty program.
fn load(attach_type: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Load {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log: [u64; 2],
        version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attach_type: u32,
    }
    let attributes = Load {
        kind: BPF_PROG_TYPE_KPROBE,
        count: EMPTY.len() as u32,
        instructions: EMPTY.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log: [0; 2],
        version: 0,
        flags: 0,
        name: *b"empty\0\0\0\0\0\0\0\0\0\0\0",
        interface: 0,
        attach_type,
    };
    // SAFETY: the structure is what this command takes, and what it points to lives through the call.
    unsafe { bpf(BPF_PROG_LOAD, &attributes) }
}

fn link(program: &OwnedFd, path: &Path, offset: u64, pid: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Create {
        program: u32,
        target: u32,
        attach_type: u32,
        flags: u32,
        path: u64,
        offsets: u64,
        counters: u64,
        cookies: u64,
        count: u32,
        probe_flags: u32,
        pid: u32,
        _pad: u32,
    }
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attributes = Create {
        program: program.as_raw_fd() as u32,
        target: 0,
        attach_type: BPF_TRACE_UPROBE_MULTI,
        flags: 0,
        path: path.as_ptr() as u64,
        offsets: (&raw const offset) as u64,
        counters: 0,
        cookies: 0,
        count: 1,
        probe_flags: 0,
        pid,
        _pad: 0,
    };
    // SAFETY: as for `load`.
    unsafe { bpf(BPF_LINK_CREATE, &attributes) }
}

fn perf_event(program: &OwnedFd, path: &Path, offset: u64, pid: u32) -> io::Result<OwnedFd> {
    /// The begin of `struct perf_event_attr`, as far as a uprobe needs it.
    #[repr(C)]
    struct Attributes {
        kind: u32,
        size: u32,
        config: u64,
        sample_period: u64,
        sample_type: u64,
        read_format: u64,
        flags: u64,
        wakeup: u32,
        breakpoint_type: u32,
        /// config1: the path
        path: u64,
        /// config2
        offset: u64,
    }
    let kind = std::fs::read_to_string(UPROBE_TYPE)?;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attributes = Attributes {
        kind: kind.trim().parse().map_err(io::Error::other)?,
        size: size_of::<Attributes>() as u32,
        config: 0,
        sample_period: 0,
        sample_type: 0,
        read_format: 0,
        flags: 0,
        wakeup: 0,
        breakpoint_type: 0,
        path: path.as_ptr() as u64,
        offset,
    };
    // SAFETY: the structure and the path live through the call; the program outlives the event that is bound to it,
    // since the kernel keeps it.
    unsafe {
        let event = libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            pid,
            -1,
            -1,
            PERF_FLAG_FD_CLOEXEC,
        );
        let event = owned(event)?;
        if libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_BPF, program.as_raw_fd()) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(event)
    }
}

/// # Safety
/// `attributes` is what the command takes, and what it points to lives through the call.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    owned(result)
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let file = RawFd::try_from(result).map_err(io::Error::other)?;
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new file descriptor that is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}
