//! Probes as BPF links of their own (uprobe_multi), where the kernel has them.
//!
//! Probes through perf events are taken away one after the other, since the kernel holds a lock over the grace period
//! of each, about 100 ms: a second for a dozen. These links wait side by side. aya 0.14 does not know them, so their
//! programs are loaded here, from the same object and with the maps that aya has made.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::maps::{Map, MapData};
use aya_obj::generated::{bpf_attach_type, bpf_cmd, bpf_insn, bpf_prog_type};
use aya_obj::{Object, ProgramSection};

use super::returns::{Release, release};

/// Up to 6.10 such a link of one process misses what its other threads do.
const OLDEST: Release = Release {
    major: 6,
    minor: 11,
    patch: 0,
};

/// This kernel has such links, by its release.
fn are_there() -> bool {
    release().is_some_and(|release| release >= OLDEST)
}

/// BPF_F_UPROBE_MULTI_RETURN
const RETURN: u32 = 1;

/// The programs, verified and ready to be attached.
pub struct Programs {
    /// By name, with the flags to attach with.
    loaded: HashMap<String, (OwnedFd, u32)>,
}

/// The head of `union bpf_attr` for BPF_PROG_LOAD.
#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buffer: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

/// The head of `union bpf_attr` for BPF_LINK_CREATE with BPF_TRACE_UPROBE_MULTI.
#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    reference_counters: u64,
    cookies: u64,
    count: u32,
    probe_flags: u32,
    pid: u32,
    _pad: u32,
}

impl Programs {
    /// Loads the object's uprobe programs; None where this kernel has no such links, or refuses the programs: then aya
    /// loads them, and says why not.
    pub fn load(object: &[u8], ebpf: &Ebpf) -> Result<Option<Self>> {
        if !are_there() {
            return Ok(None);
        }
        let mut object = Object::parse(object).context("reading the kernel side")?;
        let sections: HashSet<usize> = object.functions.keys().map(|&(section, _)| section).collect();
        let maps = std::mem::take(&mut object.maps);
        let with_files = ebpf.maps().filter_map(|(name, map)| {
            let definition = maps.get(name)?;
            Some((name, file_of(map)?, definition))
        });
        object
            .relocate_maps(with_files, &sections)
            .context("giving the kernel side's probes their maps")?;
        object
            .relocate_calls(&sections)
            .context("linking the kernel side's probes")?;
        object.sanitize_functions(aya::features());
        let mut loaded = HashMap::new();
        for (name, program) in &object.programs {
            let flags = match program.section {
                ProgramSection::UProbe { .. } => 0,
                ProgramSection::URetProbe { .. } => RETURN,
                _ => continue,
            };
            let Some(function) = object.functions.get(&program.function_key()) else {
                return Ok(None);
            };
            match load_program(name, &function.instructions, &program.license) {
                Ok(file) => loaded.insert(name.clone(), (file, flags)),
                Err(_) => return Ok(None),
            };
        }
        Ok(Some(Self { loaded }))
    }

    /// Attaches a program at a place in a file, for one process or for all. Closing what is returned takes it away.
    pub fn attach(&self, name: &str, offset: u64, path: &Path, pid: Option<u32>) -> Result<OwnedFd> {
        let (program, flags) = self
            .loaded
            .get(name)
            .with_context(|| format!("the kernel side has no program {name}"))?;
        let path = CString::new(path.as_os_str().as_bytes()).context("the path has a NUL byte in it")?;
        let offsets = [offset];
        let attributes = LinkCreate {
            program: program.as_raw_fd() as u32,
            target: 0,
            attach_type: bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32,
            flags: 0,
            path: path.as_ptr() as u64,
            offsets: offsets.as_ptr() as u64,
            reference_counters: 0,
            cookies: 0,
            count: 1,
            probe_flags: *flags,
            pid: pid.unwrap_or(0),
            _pad: 0,
        };
        // SAFETY: the path and the offsets live through the call.
        Ok(unsafe { bpf(bpf_cmd::BPF_LINK_CREATE, &attributes) }?)
    }
}

fn load_program(name: &str, instructions: &[bpf_insn], license: &CString) -> io::Result<OwnedFd> {
    let mut short = [0; 16];
    for (kept, &byte) in short[..15].iter_mut().zip(name.as_bytes()) {
        *kept = byte;
    }
    let attributes = ProgramLoad {
        kind: bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32,
        instruction_count: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buffer: 0,
        kernel_version: 0,
        flags: 0,
        name: short,
        interface: 0,
        attach_type: bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32,
    };
    // SAFETY: the instructions and the license live through the call.
    unsafe { bpf(bpf_cmd::BPF_PROG_LOAD, &attributes) }
}

/// # Safety
/// `attributes` is what the command takes, and what it points to lives through the call.
unsafe fn bpf<T>(command: bpf_cmd, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller vouches for the attributes; the kernel reads no more than their size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as i32,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    let file = RawFd::try_from(result).map_err(io::Error::other)?;
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both commands return a new file descriptor that is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// The kinds of map that the kernel side has.
fn file_of(map: &Map) -> Option<RawFd> {
    let data: &MapData = match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::PerCpuArray(data)
        | Map::ProgramArray(data)
        | Map::Queue(data)
        | Map::RingBuf(data) => data,
        _ => return None,
    };
    Some(data.fd().as_fd().as_raw_fd())
}
