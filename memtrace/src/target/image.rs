//! What a process has loaded: its ELF files in the order in which the loader searches them.

use crate::page_size::page_size;
use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use memtrace_analysis::event::{Module, ModuleRole};

use super::allocator::{self, Candidate, Served};
use super::facts::{Facts, NoFacts};
use super::maps::{self, FileId, Mapping, Name};
use super::process::{self, Process};
use super::{MappedLibrary, TargetError, link_map, printable};

pub(super) struct Image {
    pid: u32,
    mappings: Vec<Mapping>,
    /// The program first, then in search order.
    files: Vec<LoadedFile>,
    page_size: u64,
}

/// See [`Image::loading`].
pub(super) enum Loading {
    /// A libc's code is mapped, or the program does not wait for one.
    Done,
    /// The loader, at these addresses, is still at work.
    WaitsForLibc { loader: Range<u64> },
}

struct LoadedFile {
    id: FileId,
    shown: String,
    facts: Facts,
    is_loader: bool,
}

/// Largest static program whose text is searched for signs of an allocator.
const LARGEST_SEARCHED: u64 = 512 << 20;

impl Image {
    pub fn of(process: &Process) -> Result<Self, TargetError> {
        let pid = process.pid;
        let mappings = as_the_process_names_them(pid, maps::parse(&process::read(pid, "maps")?));
        let program = Facts::read(&open(pid, "exe")?).map_err(|why| match why {
            NoFacts::ThirtyTwoBit => TargetError::ThirtyTwoBit {
                pid,
                name: process.name.clone(),
            },
            NoFacts::NotElf => malformed(pid, "its program", "it is not an ELF file"),
            NoFacts::Malformed(what) => malformed(pid, "its program", &what),
        })?;
        let program_id = program_id(pid, &mappings)?;
        let loader_at = auxiliary(&process::read(pid, "auxv")?, AT_BASE).filter(|&base| base != 0);
        let mut files = Vec::new();
        let mut seen: HashSet<FileId> = HashSet::new();
        for mapping in mappings
            .iter()
            .filter(|mapping| mapping.is_file() && mapping.inode != 0)
        {
            let id = mapping.file_id();
            // A library has code; a mapped data file is not worth opening.
            if !mapping.executable || !seen.insert(id) {
                continue;
            }
            let facts = if id == program_id {
                program.clone()
            } else {
                match open_mapping(pid, mapping).ok().map(|file| Facts::read(&file)) {
                    Some(Ok(facts)) => facts,
                    // Data that is mapped executable, or a file that cannot be opened any more: it defines nothing.
                    _ => Facts::default(),
                }
            };
            let begins_at = |at: u64| mappings.iter().any(|m| m.start == at && m.file_id() == id);
            let is_loader = match loader_at {
                Some(base) => begins_at(base),
                // Run as a command (ld.so PROGRAM), the loader is the program that the kernel started.
                None => id == program_id && facts.r_debug.is_some(),
            };
            files.push(LoadedFile {
                id,
                shown: shown(mapping),
                facts,
                is_loader,
            });
        }
        if !seen.contains(&program_id) {
            files.push(LoadedFile {
                id: program_id,
                shown: program_name(pid),
                facts: program,
                is_loader: false,
            });
        }
        let mut image = Self {
            pid,
            mappings,
            files,
            page_size: page_size(),
        };
        image.put_in_order(program_id);
        Ok(image)
    }

    /// Search order as the loader's list has it; what is not (yet) listed keeps its place in the address space, libc
    /// last: while a program is being loaded, all that is mapped before libc comes before it in the search too.
    fn put_in_order(&mut self, program: FileId) {
        let listed = self.listed();
        let rank = |file: &LoadedFile| {
            let place = listed.iter().position(|id| *id == file.id);
            let is_libc = allocator::is_glibc(&file.shown, &file.facts);
            (
                file.id != program,
                place.is_none() && is_libc,
                place.unwrap_or(usize::MAX),
            )
        };
        self.files.sort_by_key(rank);
    }

    fn listed(&self) -> Vec<FileId> {
        let Some(loader) = self.files.iter().find(|file| file.is_loader) else {
            return Vec::new();
        };
        let Some(r_debug) = loader.facts.r_debug.zip(self.base(loader)) else {
            return Vec::new();
        };
        let Ok(memory) = File::open(process::path(self.pid, "mem")) else {
            return Vec::new();
        };
        let sections = link_map::dynamic_sections(&memory, r_debug.0.wrapping_add(r_debug.1));
        let holding = |address: &u64| self.mappings.iter().find(|m| (m.start..m.end).contains(address));
        sections.iter().filter_map(holding).map(Mapping::file_id).collect()
    }

    fn base(&self, file: &LoadedFile) -> Option<u64> {
        let code = self.code(file.id).next()?;
        file.facts.base(code.start, code.offset, self.page_size)
    }

    /// How far the loader has come.
    pub fn loading(&self) -> Loading {
        let Some(program) = self.files.first() else {
            return Loading::Done;
        };
        let is_static = program.facts.interpreter.is_none() && !program.is_loader;
        let by_musl = program.facts.interpreter.as_deref().is_some_and(allocator::is_musl);
        if is_static
            || by_musl
            || self
                .files
                .iter()
                .any(|file| allocator::is_glibc(&file.shown, &file.facts))
        {
            return Loading::Done;
        }
        let loader = self.files.iter().find(|file| file.is_loader);
        let extent = loader.and_then(|file| {
            let (base, (start, end)) = (self.base(file)?, file.facts.extent(self.page_size)?);
            Some(base.wrapping_add(start)..base.wrapping_add(end))
        });
        extent.map_or(Loading::Done, |loader| Loading::WaitsForLibc { loader })
    }

    /// Who serves malloc; indices are those of `shown`, `library` and `identity`.
    pub fn served(&self) -> Served {
        let Some(program) = self.files.first() else {
            return allocator::dynamic(&[]);
        };
        let is_static = program.facts.interpreter.is_none() && !program.is_loader;
        if is_static {
            return allocator::static_program(&program.facts, |needle| self.program_contains(needle));
        }
        let candidates: Vec<Candidate<'_>> = self
            .files
            .iter()
            .enumerate()
            .map(|(index, file)| Candidate {
                shown: &file.shown,
                facts: &file.facts,
                is_program: index == 0,
                is_loader: file.is_loader,
            })
            .collect();
        allocator::dynamic(&candidates)
    }

    fn program_contains(&self, needle: &[u8]) -> bool {
        let Ok(file) = open(self.pid, "exe") else { return false };
        let mut bytes = Vec::new();
        if file.take(LARGEST_SEARCHED).read_to_end(&mut bytes).is_err() {
            return false;
        }
        bytes.windows(needle.len()).any(|window| window == needle)
    }

    pub fn shown(&self, index: usize) -> &str {
        &self.files[index].shown
    }

    /// Version (of a glibc) and build id.
    pub fn identity(&self, index: usize) -> (Option<String>, Option<String>) {
        let file = &self.files[index];
        let version = self
            .library(index)
            .filter(|_| allocator::is_glibc(&file.shown, &file.facts) || index == 0);
        let version = version
            .and_then(|library| library.read().ok())
            .and_then(|bytes| crate::elf::glibc_release(&bytes));
        (version, file.facts.build_id.clone())
    }

    pub fn library(&self, index: usize) -> Option<MappedLibrary> {
        let file = &self.files[index];
        let code = self.code(file.id).next()?;
        let base = self.base(file)?;
        let (start, end) = file.facts.extent(self.page_size)?;
        Some(MappedLibrary {
            shown: file.shown.clone(),
            opened: way_to(self.pid, code),
            base,
            range: (base.wrapping_add(start), base.wrapping_add(end)),
            inode: file.id.inode,
            device: file.id.device,
        })
    }

    fn code(&self, id: FileId) -> impl Iterator<Item = &Mapping> {
        self.mappings
            .iter()
            .filter(move |mapping| mapping.executable && mapping.file_id() == id)
    }

    /// What about the libc may mislead.
    pub fn doubts(&self, library: &MappedLibrary) -> Vec<String> {
        let mut doubts = Vec::new();
        let others = self
            .files
            .iter()
            .filter(|file| allocator::is_glibc(&file.shown, &file.facts));
        for other in others.filter(|file| (file.id.device, file.id.inode) != (library.device, library.inode)) {
            doubts.push(format!(
                "the process maps a second libc, {} (dlmopen?); its allocations are not seen",
                other.shown
            ));
        }
        let id = FileId {
            device: library.device,
            inode: library.inode,
        };
        // Loaded twice, its code stands at two distances from its place in the file; a file that is merely mapped to be
        // read (as debuggers and backtraces do) has no code there.
        let file = self.files.iter().find(|file| file.id == id);
        let base = |code: &Mapping| file.and_then(|file| file.facts.base(code.start, code.offset, self.page_size));
        let copies: BTreeSet<u64> = self.code(id).filter_map(base).collect();
        if copies.len() > 1 {
            doubts.push(format!(
                "the process has loaded {} {} times (dlmopen); calls of all copies are counted together, and only one's \
                 books are read",
                library.shown,
                copies.len()
            ));
        }
        doubts
    }

    /// What is mapped executable.
    pub fn modules(&self) -> Vec<Module> {
        let mut modules: Vec<Module> = Vec::new();
        for mapping in self.mappings.iter().filter(|mapping| mapping.executable) {
            let (path, role) = match &mapping.name {
                Name::Anonymous => (String::new(), ModuleRole::Anonymous),
                Name::Kernel(name) => (format!("[{name}]"), kernel_role(name)),
                Name::File { .. } => {
                    let place = self.files.iter().position(|file| file.id == mapping.file_id());
                    let file = place.map(|index| &self.files[index]);
                    let is_loader = file.is_some_and(|file| file.is_loader);
                    let shown = shown(mapping);
                    let facts = file.map(|file| &file.facts).filter(|facts| !facts.segments.is_empty());
                    let role = allocator::role(&shown, facts, place == Some(0), is_loader);
                    (shown, role)
                }
            };
            match modules.last_mut() {
                Some(last) if last.end == mapping.start && last.path == path => last.end = mapping.end,
                _ => modules.push(Module {
                    start: mapping.start,
                    end: mapping.end,
                    path,
                    role,
                }),
            }
        }
        modules
    }
}

/// Start addresses of all that is mapped executable from files.
pub(super) fn code_mapped(pid: u32) -> Result<Vec<u64>, TargetError> {
    let mappings = maps::parse(&process::read(pid, "maps")?);
    Ok(mappings
        .iter()
        .filter(|mapping| mapping.executable && mapping.is_file())
        .map(|mapping| mapping.start)
        .collect())
}

fn kernel_role(name: &str) -> ModuleRole {
    match name {
        "vdso" | "vsyscall" | "uprobes" => ModuleRole::Library,
        // Named anonymous memory, an executable heap or stack.
        _ => ModuleRole::Anonymous,
    }
}

fn shown(mapping: &Mapping) -> String {
    mapping
        .path()
        .map(|path| printable(path.as_os_str().as_bytes()))
        .unwrap_or_default()
}

fn program_name(pid: u32) -> String {
    let path = std::fs::read_link(process::path(pid, "exe"));
    path.map(|path| printable(path.as_os_str().as_bytes()))
        .unwrap_or_default()
}

/// The kernel writes paths as memtrace sees them. Of a process with another root directory in the same mount namespace
/// (chroot) they begin with that root.
fn as_the_process_names_them(pid: u32, mut mappings: Vec<Mapping>) -> Vec<Mapping> {
    let Ok(root) = std::fs::read_link(process::path(pid, "root")) else {
        return mappings;
    };
    for mapping in &mut mappings {
        if let Name::File { path, .. } = &mut mapping.name
            && let Ok(below) = path.strip_prefix(&root)
        {
            *path = Path::new("/").join(below);
        }
    }
    mappings
}

/// Which of the mapped files is the program: the one that /proc/PID/exe leads to. Some file systems (overlayfs, btrfs)
/// show another device number in maps than in stat, so the mapping with the program's path is the second guess.
fn program_id(pid: u32, mappings: &[Mapping]) -> Result<FileId, TargetError> {
    let exe = process::path(pid, "exe");
    let metadata = std::fs::metadata(&exe).map_err(|error| TargetError::from_proc(pid, "exe", error))?;
    let id = FileId {
        device: device(metadata.dev()),
        inode: metadata.ino(),
    };
    if mappings.iter().any(|mapping| mapping.file_id() == id) {
        return Ok(id);
    }
    let path = std::fs::read_link(&exe).map_err(|error| TargetError::from_proc(pid, "exe", error))?;
    let is_it = |mapping: &&Mapping| {
        mapping
            .path()
            .is_some_and(|mapped| path.ends_with(mapped.strip_prefix("/").unwrap_or(mapped)))
    };
    let by_path = mappings.iter().find(is_it);
    Ok(by_path.map_or(id, Mapping::file_id))
}

/// A path that leads to exactly the file that is mapped: through the process's root while its name still does, else
/// through the mapping itself, which also works for a file that has been replaced or deleted.
fn way_to(pid: u32, mapping: &Mapping) -> PathBuf {
    if let Name::File { path, deleted: false } = &mapping.name {
        let root = process::path(pid, "root");
        let named = root.join(path.strip_prefix("/").unwrap_or(path));
        let same = std::fs::metadata(&named)
            .is_ok_and(|metadata| metadata.ino() == mapping.inode && device(metadata.dev()) == mapping.device);
        if same {
            return named;
        }
    }
    process::path(pid, "map_files").join(format!("{:x}-{:x}", mapping.start, mapping.end))
}

fn open_mapping(pid: u32, mapping: &Mapping) -> std::io::Result<File> {
    File::open(way_to(pid, mapping))
}

fn open(pid: u32, file: &str) -> Result<File, TargetError> {
    File::open(process::path(pid, file)).map_err(|error| TargetError::from_proc(pid, file, error))
}

fn malformed(pid: u32, path: &str, what: &str) -> TargetError {
    TargetError::Malformed {
        pid,
        path: path.to_owned(),
        what: what.to_owned(),
    }
}

fn device(number: u64) -> (u32, u32) {
    (libc::major(number), libc::minor(number))
}

/// Address of the loader, in the auxiliary vector.
const AT_BASE: u64 = 7;

/// The value under `key` in /proc/PID/auxv, which is pairs of words.
fn auxiliary(auxv: &[u8], key: u64) -> Option<u64> {
    let word = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_ne_bytes);
    auxv.chunks_exact(16)
        .find(|pair| word(&pair[..8]) == Some(key))
        .and_then(|pair| word(&pair[8..]))
}
