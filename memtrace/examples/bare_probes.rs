//! What a probe costs at least: empty BPF programs at the places that memtrace would probe, and nothing else.
//!
//! ```text
//! bare_probes PID NAME...      malloc free: at those of the plan's sites, until the input ends
//! ```
//!
//! The program is two instructions, return 0; it is attached as memtrace attaches its own (one link of the kind uprobe_multi
//! for each place), or through perf events where the kernel has no such links. Says `attached` when all are in place.

mod kernel;

use std::ffi::CString;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use memtrace::probe::ProbePlan;
use memtrace::target::Target;

const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
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
    let links = kernel::load(BPF_PROG_TYPE_KPROBE, BPF_TRACE_UPROBE_MULTI);
    let mut probes = Vec::new();
    for name in words {
        let Some(site) = plan.sites.iter().find(|site| site.symbol == name) else {
            bail!("{} has no place to probe for {name}", library.shown);
        };
        let probe = match &links {
            Ok(program) => link(program, &library.opened, site.file_offset, pid),
            Err(_) => perf_event(
                &kernel::load(BPF_PROG_TYPE_KPROBE, 0)?,
                &library.opened,
                site.file_offset,
                pid,
            ),
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
    // SAFETY: the structure is what this command takes, and what it points to lives through the call.
    unsafe { kernel::bpf(BPF_LINK_CREATE, &attributes) }
}

fn perf_event(program: &OwnedFd, path: &Path, offset: u64, pid: u32) -> io::Result<OwnedFd> {
    let kind = std::fs::read_to_string(UPROBE_TYPE)?;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let event = kernel::Event {
        kind: kind.trim().parse().map_err(io::Error::other)?,
        size: size_of::<kernel::Event>() as u32,
        config1: path.as_ptr() as u64,
        config2: offset,
        ..kernel::Event::default()
    };
    // SAFETY: the path lives through the call; the rest are numbers.
    let event = unsafe { kernel::open_event(&event, pid.cast_signed(), -1) }?;
    kernel::bind(&event, program)?;
    Ok(event)
}
