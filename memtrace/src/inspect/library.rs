//! Which glibc a process runs on, as bytes and load address.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use memtrace_analysis::glibc::{Anatomy, Mapping};

use crate::printable::printable;

/// A glibc in a process.
pub struct Library {
    pub anatomy: Anatomy,
    pub base: u64,
    /// As the process names it.
    pub path: String,
}

/// A libc is a few MiB; a static program can be larger.
const MOST_BYTES: u64 = 512 << 20;

/// Finds the glibc that serves a process, in its libraries or in its program.
pub fn find(pid: u32, mappings: &[Mapping]) -> Result<Library> {
    if let Some(mapping) = mappings
        .iter()
        .find(|mapping| mapping.executable && is_libc(&mapping.path))
    {
        return open(pid, mapping, mappings);
    }
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).with_context(|| format!("reading /proc/{pid}/exe"))?;
    let program = printable(program.as_os_str().as_bytes());
    let Some(mapping) = mappings
        .iter()
        .find(|mapping| mapping.executable && mapping.path == program)
    else {
        bail!("it maps no libc.so.6, and its program {program:?} is not mapped either");
    };
    open(pid, mapping, mappings).context("it maps no libc.so.6; its program was looked at instead")
}

fn is_libc(path: &str) -> bool {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let name = path.rsplit('/').next().unwrap_or("");
    name == "libc.so.6" || name.starts_with("libc-2.") && name.ends_with(".so")
}

fn open(pid: u32, mapping: &Mapping, mappings: &[Mapping]) -> Result<Library> {
    let path = mapping.path.clone();
    let bytes = read_file(pid, mapping).with_context(|| format!("opening {path} as process {pid} maps it"))?;
    let anatomy = Anatomy::of_library(&bytes).with_context(|| format!("looking for malloc's books in {path}"))?;
    let lowest = mappings
        .iter()
        .find(|other| other.inode == mapping.inode && other.path == path);
    let start = lowest.unwrap_or(mapping).start;
    let base = start.wrapping_sub(anatomy.lowest);
    Ok(Library { anatomy, base, path })
}

/// The file itself where the kernel lets it be opened, else its name in the process's root if that is the same file.
fn read_file(pid: u32, mapping: &Mapping) -> Result<Vec<u8>> {
    let link = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end));
    let file = match File::open(&link) {
        Ok(file) => file,
        Err(_) => {
            let name = PathBuf::from(format!("/proc/{pid}/root{}", mapping.path));
            let file = File::open(&name).with_context(|| format!("opening {}", name.display()))?;
            if file.metadata()?.ino() != mapping.inode {
                bail!("the file of this name is another one by now");
            }
            file
        }
    };
    let mut bytes = Vec::new();
    file.take(MOST_BYTES)
        .read_to_end(&mut bytes)
        .context("reading the file")?;
    Ok(bytes)
}
