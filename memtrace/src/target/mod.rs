//! From a pid or a command to the process that is traced: who it is, which libc it maps, who serves its malloc.
//!
//! ```text
//! /proc/PID/status, stat   ->  is it a process that can be traced
//! /proc/PID/maps, exe      ->  which files it maps, by device and inode, whatever leads to them now
//! the loader's list        ->  whose malloc is found first
//! ```

mod allocator;
mod error;
mod facts;
mod image;
mod launch;
mod life;
mod link_map;
mod maps;
mod process;
mod select;
mod spawn;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use memtrace_analysis::event::{Allocator, Module};

pub use crate::printable::printable;
pub use error::{SHIELDED, TargetError, may_look_anywhere};
pub use life::Life;
pub use select::{pids_by_name, pids_in_cgroup};
pub use spawn::{Moment, SpawnError, Spawned};

use image::Image;
use process::Process;

/// A process as it was found.
#[derive(Clone, Debug)]
pub struct Target {
    /// As memtrace sees it, in its own PID namespace.
    pub pid: u32,
    /// The kernel's name of it, control characters removed.
    pub name: String,
    pub command: String,
    pub threads: u32,
    pub allocator: Allocator,
    /// The file with glibc's malloc in it: a libc.so.6, or the program itself where it is linked statically and has kept
    /// its symbols. None where malloc cannot be traced (musl, a stripped static program, another allocator in front);
    /// `allocator` says which, and the memory system calls can still be watched.
    pub libc: Option<MappedLibrary>,
    pub modules: Vec<Module>,
    /// Seccomp mode of its main thread: 0 off, 1 strict, 2 filter.
    pub seccomp: u8,
    /// What will not be seen, or may mislead, a sentence each.
    pub limits: Vec<String>,
}

/// A library as one process maps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedLibrary {
    /// As the process names it; to be shown.
    pub shown: String,
    /// Where this file can be opened and probed, through the process (`/proc/PID/map_files/...` or its root).
    pub opened: PathBuf,
    /// Load address: what is added to an ELF virtual address.
    pub base: u64,
    /// Lowest and highest address of its mappings.
    pub range: (u64, u64),
    pub inode: u64,
    pub device: (u32, u32),
}

impl Target {
    /// Looks at a process from the outside; it is neither stopped nor written to.
    pub fn of_pid(pid: u32) -> Result<Self, TargetError> {
        let process = Process::read(pid)?;
        let image = Image::of(&process)?;
        let served = image.served();
        let libc = served.glibc.and_then(|index| image.library(index));
        let mut limits = served.limits;
        if let Some(library) = &libc {
            limits.extend(image.doubts(library));
        } else if served.glibc.is_some() {
            limits.push(String::from(
                "the libc has no code of its own file mapped, so that no probe can be set in it",
            ));
        }
        let (version, build_id) = served.by.map_or((None, None), |index| image.identity(index));
        let Process {
            pid,
            name,
            command,
            threads,
            seccomp,
        } = process;
        Ok(Self {
            pid,
            name,
            command,
            threads,
            allocator: Allocator {
                kind: served.kind,
                version,
                path: served.by.map(|index| image.shown(index).to_owned()),
                build_id,
                evidence: served.evidence,
            },
            libc,
            modules: image.modules(),
            seccomp,
            limits,
        })
    }
}

impl MappedLibrary {
    /// The file's bytes, as the process maps them.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(&self.opened)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Whether there is such a process, with memory of its own: no thread, no part of the kernel, none that has ended.
pub fn examine(pid: u32) -> Result<(), TargetError> {
    Process::read(pid).map(drop)
}

/// What the process maps executable now; for a look at a process whose target has been made already.
pub fn modules(pid: u32) -> Result<Vec<Module>, TargetError> {
    Ok(Image::of(&Process::read(pid)?)?.modules())
}
