//! From a pid or a command to the process that is traced: who it is, which libc it maps, who serves its malloc.

use std::path::PathBuf;

use memtrace_analysis::event::{Allocator, Module};

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
    /// The libc it maps; None where malloc cannot be traced (static, musl, another allocator in front).
    pub libc: Option<MappedLibrary>,
    pub modules: Vec<Module>,
    /// Seccomp mode of its main thread: 0 off, 1 strict, 2 filter.
    pub seccomp: u8,
}

/// A library as one process maps it.
#[derive(Clone, Debug)]
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
