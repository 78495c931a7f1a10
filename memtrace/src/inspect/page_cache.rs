//! Which pages of a file the page cache holds, and which files a process holds.
//!
//! cachestat(2) (Linux 6.5) counts without touching a page and knows the dirty ones; before it, mincore(2) over a mapping
//! of the file. Both show strangers less than owners: a file that is neither ours nor writable for us counts as unknown.

use crate::page_size::page_size;
use crate::printable::printable;
use crate::sentence;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use anyhow::{Context, Result, bail};
use memtrace_analysis::files::{HeldFile, Holding, MachineFiles, Residency};
use memtrace_analysis::glibc::Mapping;

use super::mappings;

/// Dirty and writeback pages of the whole machine.
pub fn of_machine() -> Result<MachineFiles> {
    let text = fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    let bytes = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = value.and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kib.map(|kib| kib * 1024)
            .with_context(|| format!("/proc/meminfo has no {name}"))
    };
    Ok(MachineFiles {
        dirty: bytes("Dirty")?,
        writeback: bytes("Writeback")?,
    })
}

pub fn of_file(file: &File) -> Result<Residency> {
    let size = file.metadata().context("asking for the file's size")?.len();
    match cachestat(file) {
        Ok(found) => {
            let page = page_size();
            Ok(Residency {
                file: size,
                cached: found.cached * page,
                dirty: Some(found.dirty * page),
                writeback: Some(found.writeback * page),
                page,
            })
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => bail!(STRANGER),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP)) => {
            // To strangers mincore calls every page resident (Linux 5.2).
            if !is_ours(file)? {
                bail!(STRANGER);
            }
            let cached = mincore(file, size).context("asking by mincore which pages are cached")?;
            Ok(Residency {
                file: size,
                cached,
                dirty: None,
                writeback: None,
                page: page_size(),
            })
        }
        Err(error) => Err(error).context("asking by cachestat which pages are cached"),
    }
}

const STRANGER: &str = "the kernel tells only a file's owner and root what of it is cached";

fn is_ours(file: &File) -> Result<bool> {
    let owner = file.metadata().context("asking for the file's owner")?.uid();
    // SAFETY: asks for this process's own user id.
    let own = unsafe { libc::geteuid() };
    Ok(own == 0 || own == owner)
}

/// Every regular file that a process has open or maps, each once, the most cached first.
pub fn of_process(pid: u32) -> Result<Vec<HeldFile>> {
    let mut found: BTreeMap<(u64, u64), (PathBuf, PathBuf, Holding)> = BTreeMap::new();
    let descriptors = format!("/proc/{pid}/fd");
    let entries = fs::read_dir(&descriptors).with_context(|| format!("listing the files of process {pid}"))?;
    for entry in entries.flatten() {
        let number = entry.file_name().to_string_lossy().parse();
        if let (Some(held), Ok(number)) = (entry_of(&mut found, &entry.path(), None), number) {
            held.descriptors.push(number);
        }
    }
    let mut closed = BTreeMap::new();
    for mapping in mappings::read_smaps(pid)? {
        if mapping.inode == 0 || !mapping.path.starts_with('/') {
            continue;
        }
        match open_mapped(pid, &mapping).and_then(|link| entry_of(&mut found, &link, Some(&mapping.path))) {
            Some(held) => held.mapped = true,
            None => {
                closed.insert(mapping.inode, mapping.path);
            }
        }
    }
    let mut files: Vec<_> = found
        .into_values()
        .map(|(opened, named, how)| held_file(&opened, &named, how))
        .chain(closed.into_values().map(|path| HeldFile {
            shown: printable(path.as_bytes()),
            how: Holding {
                descriptors: Vec::new(),
                mapped: true,
            },
            residency: Err("only root can open what stands behind this mapping".to_owned()),
        }))
        .collect();
    let cached = |file: &HeldFile| file.residency.as_ref().map_or(0, |residency| residency.cached);
    files.sort_by(|a, b| cached(b).cmp(&cached(a)).then_with(|| a.shown.cmp(&b.shown)));
    Ok(files)
}

fn entry_of<'a>(
    found: &'a mut BTreeMap<(u64, u64), (PathBuf, PathBuf, Holding)>,
    link: &Path,
    name: Option<&str>,
) -> Option<&'a mut Holding> {
    // A descriptor may be closed between the listing and the look.
    let metadata = fs::metadata(link).ok()?;
    if !metadata.is_file() {
        return None;
    }
    let named = match name {
        Some(name) => PathBuf::from(name),
        None => fs::read_link(link).ok()?,
    };
    let held = found
        .entry((metadata.dev(), metadata.ino()))
        .or_insert_with(|| (link.to_path_buf(), named, Holding::default()));
    Some(&mut held.2)
}

fn held_file(opened: &Path, named: &Path, how: Holding) -> HeldFile {
    let residency = File::open(opened)
        .context("opening it")
        .and_then(|file| of_file(&file))
        .map_err(|error| sentence::of(&error));
    HeldFile {
        shown: printable(named.as_os_str().as_bytes()),
        how,
        residency,
    }
}

/// A mapped file's way in: the kernel's own link, which is root's, else its name if that is still the same file.
fn open_mapped(pid: u32, mapping: &Mapping) -> Option<PathBuf> {
    let link = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end));
    if fs::metadata(&link).is_ok() {
        return Some(link);
    }
    let path = PathBuf::from(format!("/proc/{pid}/root{}", mapping.path));
    let same = fs::metadata(&path).is_ok_and(|metadata| metadata.ino() == mapping.inode);
    same.then_some(path)
}

struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
}

/// Pages of the whole file.
fn cachestat(file: &File) -> io::Result<Counts> {
    /// The same number on every architecture.
    const SYS_CACHESTAT: libc::c_long = 451;
    // struct cachestat_range: offset, length (0: to the end); struct cachestat: cache, dirty, writeback, evicted,
    // recently evicted.
    let range = [0u64; 2];
    let mut counts = [0u64; 5];
    // SAFETY: the kernel reads two and writes five words.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) };
    match result {
        0 => Ok(Counts {
            cached: counts[0],
            dirty: counts[1],
            writeback: counts[2],
        }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes of the file's cached pages.
fn mincore(file: &File, size: u64) -> Result<u64> {
    let page = page_size();
    let length = usize::try_from(size).context("the file is larger than the address space")?;
    if length == 0 {
        return Ok(0);
    }
    let pages = size.div_ceil(page) as usize;
    let mut resident = vec![0u8; pages];
    // SAFETY: a mapping of our own, asked about with a byte of room for each page, and removed once.
    let error = unsafe {
        let start = libc::mmap(
            null_mut(),
            length,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        if start == libc::MAP_FAILED {
            bail!("mapping it: {}", io::Error::last_os_error());
        }
        let result = libc::mincore(start, length, resident.as_mut_ptr());
        let error = io::Error::last_os_error();
        libc::munmap(start, length);
        (result != 0).then_some(error)
    };
    match error {
        Some(error) => Err(error.into()),
        None => Ok(resident.iter().filter(|byte| **byte & 1 == 1).count() as u64 * page),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn written(bytes: usize) -> File {
        let path = std::env::temp_dir().join(format!("memtrace-page-cache-{}-{bytes}", std::process::id()));
        let mut file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all(&vec![1; bytes]).unwrap();
        file
    }

    #[test]
    fn a_file_just_written_is_cached_whole() {
        let residency = of_file(&written(100_000)).unwrap();
        assert_eq!(residency.file, 100_000);
        assert_eq!(residency.cached, 100_000u64.next_multiple_of(page_size()));
        assert_eq!(residency.share(), 1.0);
    }

    #[test]
    fn both_ways_of_asking_agree() {
        let file = written(50_000);
        let by_mincore = mincore(&file, 50_000).unwrap();
        assert_eq!(by_mincore, of_file(&file).unwrap().cached);
    }

    #[test]
    fn an_empty_file_is_no_division_by_zero() {
        assert_eq!(of_file(&written(0)).unwrap().share(), 0.0);
    }

    #[test]
    fn this_process_holds_its_own_program_and_what_it_opened() {
        let file = written(8_192);
        let held = of_process(std::process::id()).unwrap();
        let number = file.as_raw_fd() as u32;
        let mine = held.iter().find(|held| held.how.descriptors.contains(&number)).unwrap();
        assert!(mine.shown.ends_with("(deleted)") && !mine.how.mapped, "{mine:?}");
        let program = std::env::current_exe().unwrap();
        assert!(
            held.iter()
                .any(|held| held.shown == program.to_string_lossy() && held.how.mapped)
        );
    }
}
