//! The settings and the arenas as they stand in a process: fixed structures, read before any chunk is.
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "offsets of known layouts, added to addresses that were checked to lie in a mapping; places in lists made here"
    )
)]

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::elf::{u32_at, u64_at};
use super::locate::Anatomy;
use super::mapping::{Mapping, holding};
use super::memory::{ReadMemory, Unreadable};
use super::problem::Problem;

/// Arenas and segments beyond these numbers are no heap but damage. glibc's usual limit is eight arenas for a core.
const MOST_ARENAS: usize = 16 * 1024;
const MOST_SEGMENTS: usize = 1024 * 1024;

/// A segment's reserved range is this long, and aligned to it, where no huge pages are asked for.
const SEGMENT_RESERVE: u64 = 64 << 20;

/// mp_ in the process. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    pub trim_threshold: u64,
    pub top_pad: u64,
    pub mmap_threshold: u64,
    /// The dynamic rule is in force: no knob was set.
    pub dynamic: bool,
    pub arena_max: u64,
    /// Of glibc.malloc.hugetlb; 0 where it is off.
    pub huge_page_bytes: u64,
    /// Transparent huge pages are asked for, of this size; else 0. The break is moved by multiples of it. Only a look itself
    /// needs it.
    #[serde(skip)]
    pub transparent_huge_page_bytes: u64,
    /// Blocks that have a mapping of their own now.
    pub mapped_blocks: u32,
    pub mapped_blocks_max: u32,
    /// Bytes of these mappings.
    pub mapped_bytes: u64,
    pub max_mapped_bytes: u64,
    /// Where the break stood when the main arena first moved it; 0 before that.
    pub sbrk_base: u64,
    pub tcache_count: u64,
    pub tcache_max_bytes: u64,
}

impl Settings {
    pub fn read<M: ReadMemory + ?Sized>(memory: &M, anatomy: &Anatomy, base: u64) -> Result<Settings, Unreadable> {
        let layout = &anatomy.malloc_par;
        let address = base.wrapping_add(anatomy.mp);
        let mut bytes = vec![0; layout.size as usize];
        memory.read(address, &mut bytes)?;
        memory.note(address, &bytes);
        let wide = |offset: u64| u64_at(&bytes, offset as usize).ok_or(Unreadable { address });
        let int = |offset: u64| u32_at(&bytes, offset as usize).ok_or(Unreadable { address });
        Ok(Settings {
            trim_threshold: wide(layout.trim_threshold)?,
            top_pad: wide(layout.top_pad)?,
            mmap_threshold: wide(layout.mmap_threshold)?,
            dynamic: int(layout.no_dyn_threshold)? == 0,
            arena_max: wide(layout.arena_max)?,
            huge_page_bytes: layout.hp_pagesize.map_or(Ok(0), wide)?,
            transparent_huge_page_bytes: layout.thp_pagesize.map_or(Ok(0), wide)?,
            mapped_blocks: int(layout.n_mmaps)?,
            mapped_blocks_max: int(layout.n_mmaps_max)?,
            mapped_bytes: wide(layout.mmapped_mem)?,
            max_mapped_bytes: wide(layout.max_mmapped_mem)?,
            sbrk_base: wide(layout.sbrk_base)?,
            tcache_count: wide(layout.tcache_count)?,
            tcache_max_bytes: wide(layout.tcache_max_bytes)?,
        })
    }

    /// Lengths and alignments that the range can have which a thread arena's segment reserves: with huge pages it is of
    /// four of them in some releases (2.35 to 2.41, not in 2.43), and as without them in others.
    fn segment_reserves(&self) -> [u64; 2] {
        let huge = match self.huge_page_bytes {
            0 => SEGMENT_RESERVE,
            page => page
                .saturating_mul(4)
                .checked_next_power_of_two()
                .unwrap_or(SEGMENT_RESERVE),
        };
        [huge, SEGMENT_RESERVE]
    }
}

/// A segment of a thread arena: the part in use, from its heap_info on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub start: u64,
    pub end: u64,
}

/// One malloc_state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaBooks {
    pub address: u64,
    pub main: bool,
    /// A thread was inside it.
    pub locked: bool,
    /// The main arena has given up relying on the break.
    pub noncontiguous: bool,
    /// Heads of the fastbins; none from 2.43.
    pub fastbins: Vec<u64>,
    pub top: u64,
    /// Bytes of the top chunk; 0 where the arena has none yet.
    pub top_size: u64,
    /// The chunk below the top is in use.
    pub top_previous_in_use: bool,
    /// The top's prev_size: the size of the chunk below, where that is free.
    pub top_previous_size: u64,
    pub attached_threads: u64,
    pub system_bytes: u64,
    pub max_system_bytes: u64,
    /// Of a thread arena, oldest first.
    pub segments: Vec<Segment>,
    /// The structure as it was read, to tell later whether it has changed.
    raw: Vec<u8>,
}

impl ArenaBooks {
    /// It has never had memory: its top points into its own bins.
    pub fn is_unused(&self, anatomy: &Anatomy) -> bool {
        self.top == 0 || self.top == self.address.wrapping_add(anatomy.malloc_state.bins).wrapping_sub(16)
    }

    pub fn top_end(&self) -> u64 {
        self.top.saturating_add(self.top_size)
    }

    /// The lock aside, which may be taken and released without a change.
    pub fn has_changed<M: ReadMemory + ?Sized>(&self, memory: &M) -> bool {
        let mut now = vec![0; self.raw.len()];
        memory.read(self.address, &mut now).is_err() || now[4..] != self.raw[4..]
    }
}

impl ArenaBooks {
    /// The top chunk ends where memory of the arena ends.
    pub fn top_fits(&self, mappings: &[Mapping]) -> bool {
        let end = self.top_end();
        if self.top_size < 32 || !self.top_size.is_multiple_of(16) {
            return false;
        }
        match self.segments.last() {
            Some(segment) => end == segment.end,
            // Parts of the range may be mappings of their own; that it ends inside of one is what counts.
            None => holding(mappings, end - 1).is_some_and(Mapping::is_anonymous),
        }
    }
}

/// Follows the ring of arenas, main_arena first.
pub fn read_arenas<M: ReadMemory + ?Sized>(
    memory: &M,
    anatomy: &Anatomy,
    base: u64,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) -> Vec<ArenaBooks> {
    let main = base.wrapping_add(anatomy.main_arena);
    let mut arenas = Vec::new();
    let mut seen = BTreeSet::new();
    let mut address = main;
    loop {
        if arenas.len() >= MOST_ARENAS || !seen.insert(address) {
            problems.push(Problem::ArenaRing { arena: address });
            return arenas;
        }
        match read_arena(memory, anatomy, address, address == main, settings, problems) {
            Ok((arena, next)) => {
                arenas.push(arena);
                if next == main {
                    return arenas;
                }
                address = next;
            }
            Err(Unreadable { address }) => {
                problems.push(Problem::Unreadable { address });
                problems.push(Problem::ArenaRing { arena: address });
                return arenas;
            }
        }
    }
}

fn read_arena<M: ReadMemory + ?Sized>(
    memory: &M,
    anatomy: &Anatomy,
    address: u64,
    main: bool,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) -> Result<(ArenaBooks, u64), Unreadable> {
    let layout = &anatomy.malloc_state;
    let mut raw = vec![0; layout.size as usize];
    memory.read(address, &mut raw)?;
    memory.note(address, &raw);
    let wide = |offset: u64| u64_at(&raw, offset as usize).ok_or(Unreadable { address });
    let int = |offset: u64| u32_at(&raw, offset as usize).ok_or(Unreadable { address });
    let fastbins = match layout.fastbins {
        Some(heads) => (0..10).map(|index| wide(heads + index * 8)).collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    let mut arena = ArenaBooks {
        address,
        main,
        locked: int(0)? != 0,
        noncontiguous: int(layout.flags)? & 2 != 0,
        fastbins,
        top: wide(layout.top)?,
        top_size: 0,
        top_previous_in_use: true,
        top_previous_size: 0,
        attached_threads: wide(layout.attached_threads)?,
        system_bytes: wide(layout.system_mem)?,
        max_system_bytes: wide(layout.max_system_mem)?,
        segments: Vec::new(),
        raw: Vec::new(),
    };
    let next = wide(layout.next)?;
    arena.raw = raw;
    if !arena.is_unused(anatomy) {
        match (memory.word(arena.top), memory.word(arena.top.wrapping_add(8))) {
            (Ok(previous), Ok(size)) => {
                if size & 1 == 0 {
                    memory.note(arena.top, &previous.to_le_bytes());
                }
                memory.note(arena.top.wrapping_add(8), &size.to_le_bytes());
                arena.top_size = size & !7;
                arena.top_previous_in_use = size & 1 == 1;
                arena.top_previous_size = previous;
            }
            _ => problems.push(Problem::TopOutside {
                arena: address,
                top: arena.top,
            }),
        }
        if !main {
            arena.segments = read_segments(memory, anatomy, &arena, settings, problems);
        }
    }
    Ok((arena, next))
}

/// From the segment that holds the top back to the first one.
fn read_segments<M: ReadMemory + ?Sized>(
    memory: &M,
    anatomy: &Anatomy,
    arena: &ArenaBooks,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) -> Vec<Segment> {
    let layout = &anatomy.heap_info;
    let owns = |reserve: &u64| {
        let start = arena.top & !(*reserve - 1);
        memory.word(start.wrapping_add(layout.ar_ptr)) == Ok(arena.address)
    };
    let reserve = settings
        .segment_reserves()
        .into_iter()
        .find(owns)
        .unwrap_or(SEGMENT_RESERVE);
    let mut segments = Vec::new();
    let mut seen = BTreeSet::new();
    let mut start = arena.top & !(reserve - 1);
    while start != 0 {
        let field = |offset: u64| memory.word(start.wrapping_add(offset));
        let (Ok(owner), Ok(previous), Ok(used)) = (field(layout.ar_ptr), field(layout.prev), field(layout.used)) else {
            problems.push(Problem::Segment {
                arena: arena.address,
                segment: start,
            });
            break;
        };
        memory.note(start.wrapping_add(layout.ar_ptr), &owner.to_le_bytes());
        memory.note(start.wrapping_add(layout.prev), &previous.to_le_bytes());
        memory.note(start.wrapping_add(layout.used), &used.to_le_bytes());
        let sound = owner == arena.address && used >= layout.size && used <= reserve && start & (reserve - 1) == 0;
        if !sound || segments.len() >= MOST_SEGMENTS || !seen.insert(start) {
            problems.push(Problem::Segment {
                arena: arena.address,
                segment: start,
            });
            break;
        }
        segments.push(Segment {
            start,
            end: start.saturating_add(used),
        });
        start = previous;
    }
    segments.reverse();
    segments
}
