//! glibc's settings and arenas as the process itself holds them, read through /proc/PID/mem.
//!
//! Allowed for one's own children without root, which is what the lab looks at.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail};
use memtrace_analysis::glibc::{Anatomy, Version};

/// What mp_ and the ring of arenas say. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Books {
    pub version: Version,
    pub mmap_threshold: u64,
    pub trim_threshold: u64,
    pub top_pad: u64,
    pub arena_max: u64,
    pub mmap_max: u64,
    /// Blocks with a mapping of their own.
    pub mapped_blocks: u64,
    /// No knob has frozen the dynamic threshold.
    pub dynamic: bool,
    pub tcache_count: u64,
    pub tcache_max_bytes: u64,
    pub arenas: u64,
}

impl Books {
    pub fn read(pid: u32) -> Result<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).context("reading its maps")?;
        let (path, base) = find_libc(&maps).context("it maps no libc.so.6")?;
        // Through the process's own root, so that another glibc than this machine's is found as well.
        let opened = format!("/proc/{pid}/root{path}");
        let file = fs::read(&opened).with_context(|| format!("reading {opened}"))?;
        let anatomy = Anatomy::of_library(&file).with_context(|| format!("looking for glibc's books in {path}"))?;
        let memory = File::open(format!("/proc/{pid}/mem")).context("opening its memory")?;
        let word = |address: u64| read_u64(&memory, address);
        let mp = base + anatomy.mp;
        let par = &anatomy.malloc_par;
        let setting = |offset: u64| word(mp + offset);
        let int = |offset: u64| word(mp + offset).map(|word| word & 0xffff_ffff);
        Ok(Self {
            version: anatomy.version,
            mmap_threshold: setting(par.mmap_threshold)?,
            trim_threshold: setting(par.trim_threshold)?,
            top_pad: setting(par.top_pad)?,
            arena_max: setting(par.arena_max)?,
            mmap_max: int(par.n_mmaps_max)?,
            mapped_blocks: int(par.n_mmaps)?,
            dynamic: int(par.no_dyn_threshold)? == 0,
            tcache_count: setting(par.tcache_count)?,
            tcache_max_bytes: setting(par.tcache_max_bytes)?,
            arenas: count_arenas(base + anatomy.main_arena, anatomy.malloc_state.next, word)?,
        })
    }
}

/// The libc's path and load address.
fn find_libc(maps: &str) -> Option<(&str, u64)> {
    maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        let name = path.rsplit('/').next()?;
        let is_libc = name == "libc.so.6" || (name.starts_with("libc-2.") && name.ends_with(".so"));
        let start = u64::from_str_radix(line.split('-').next()?, 16).ok()?;
        is_libc.then_some((path, start))
    })
}

fn count_arenas(main: u64, next: u64, word: impl Fn(u64) -> Result<u64>) -> Result<u64> {
    const MOST: u64 = 100_000;
    let mut arena = main;
    for count in 1..=MOST {
        arena = word(arena + next)?;
        if arena == main {
            return Ok(count);
        }
    }
    bail!("the ring of arenas does not close within {MOST}")
}

fn read_u64(memory: &File, address: u64) -> Result<u64> {
    let mut bytes = [0; 8];
    memory
        .read_exact_at(&mut bytes, address)
        .with_context(|| format!("reading its memory at {address:#x}"))?;
    Ok(u64::from_ne_bytes(bytes))
}
