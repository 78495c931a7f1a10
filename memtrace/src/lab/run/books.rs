//! glibc's settings and the number of its arenas, as the process itself holds them.
//!
//! Reading one's own children needs no root.

use crate::page_size::page_size;
use anyhow::{Context, Result, bail};
use memtrace_analysis::glibc::{ReadMemory, Residency, Settings, Version};

use crate::inspect::process_memory::ProcessMemory;
use crate::inspect::{library, mappings};

/// What mp_ and the ring of arenas say. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Books {
    pub version: Version,
    pub mmap_threshold: u64,
    pub trim_threshold: u64,
    pub top_pad: u64,
    /// Arenas from which on the processors are counted to find their limit.
    pub arena_test: u64,
    pub arena_max: u64,
    pub mmap_max: u64,
    /// Blocks with a mapping of their own.
    pub mapped_blocks: u64,
    /// No knob has frozen the dynamic threshold.
    pub dynamic: bool,
    pub tcache_count: u64,
    pub arenas: u64,
}

impl Books {
    pub fn read(pid: u32) -> Result<Self> {
        let mappings = mappings::read_smaps(pid)?;
        let library = library::find(pid, &mappings)?;
        // Single words are read wherever they are.
        let residency = Residency::new(page_size());
        let memory = ProcessMemory::new(pid, &residency);
        let settings = Settings::read(&memory, &library.anatomy, library.base).context("reading malloc's settings")?;
        let address = |offset: u64| library.base.wrapping_add(offset);
        let arena_test = memory
            .word(address(
                library.anatomy.mp.wrapping_add(library.anatomy.malloc_par.arena_test),
            ))
            .context("reading malloc's settings")?;
        let next = library.anatomy.malloc_state.next;
        Ok(Self {
            version: library.anatomy.version,
            mmap_threshold: settings.mmap_threshold,
            trim_threshold: settings.trim_threshold,
            top_pad: settings.top_pad,
            arena_test,
            arena_max: settings.arena_max,
            mmap_max: settings.mapped_blocks_max.into(),
            mapped_blocks: settings.mapped_blocks.into(),
            dynamic: settings.dynamic,
            tcache_count: settings.tcache_count,
            arenas: count_arenas(&memory, address(library.anatomy.main_arena), next)?,
        })
    }
}

fn count_arenas(memory: &impl ReadMemory, main: u64, next: u64) -> Result<u64> {
    const MOST: u64 = 100_000;
    let mut arena = main;
    for count in 1..=MOST {
        arena = memory
            .word(arena.wrapping_add(next))
            .context("following the ring of arenas")?;
        if arena == main {
            return Ok(count);
        }
    }
    bail!("the ring of arenas does not close within {MOST}")
}
