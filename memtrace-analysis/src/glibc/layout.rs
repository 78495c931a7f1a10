//! How glibc's structures are laid out, by version; equal on amd64 and arm64.
//!
//! Offsets and sizes are bytes. They were checked against the debug symbols of 2.31, 2.36, 2.41, 2.43 and 2.44; what
//! lies between two of these was compared in glibc's malloc/malloc.c and malloc/arena.c.

use core::fmt;

use serde::{Deserialize, Serialize};

/// A release of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl Version {
    /// The oldest and the newest release whose layouts are known.
    pub const OLDEST: Version = Version { major: 2, minor: 31 };
    pub const NEWEST: Version = Version { major: 2, minor: 44 };

    pub const fn is_known(self) -> bool {
        self.major == 2 && self.minor >= Self::OLDEST.minor && self.minor <= Self::NEWEST.minor
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.major, self.minor)
    }
}

/// `struct malloc_par`: the settings and totals that all arenas share, as the symbol `mp_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MallocPar {
    pub trim_threshold: u64,
    pub top_pad: u64,
    pub mmap_threshold: u64,
    pub arena_test: u64,
    pub arena_max: u64,
    /// u64; the size of transparent huge pages, 0 where they are not asked for. From 2.35; on arm64 from 2.43 on they are
    /// unless a knob says otherwise.
    pub thp_pagesize: Option<u64>,
    /// u64; glibc.malloc.hugetlb's page size, 0 where it is off. From 2.35.
    pub hp_pagesize: Option<u64>,
    /// int: blocks with a mapping of their own.
    pub n_mmaps: u64,
    /// int
    pub n_mmaps_max: u64,
    /// int
    pub max_n_mmaps: u64,
    /// int: 1 once a knob froze the dynamic mmap threshold.
    pub no_dyn_threshold: u64,
    pub mmapped_mem: u64,
    pub max_mmapped_mem: u64,
    /// Where the main arena's first break stood.
    pub sbrk_base: u64,
    /// Bins of a thread cache; from 2.42 the small ones only.
    pub tcache_bins: u64,
    pub tcache_max_bytes: u64,
    /// Blocks a bin of a thread cache may hold.
    pub tcache_count: u64,
    pub size: u64,
}

impl MallocPar {
    const SINCE_2_26: MallocPar = MallocPar {
        trim_threshold: 0,
        top_pad: 8,
        mmap_threshold: 16,
        arena_test: 24,
        arena_max: 32,
        thp_pagesize: None,
        hp_pagesize: None,
        n_mmaps: 40,
        n_mmaps_max: 44,
        max_n_mmaps: 48,
        no_dyn_threshold: 52,
        mmapped_mem: 56,
        max_mmapped_mem: 64,
        sbrk_base: 72,
        tcache_bins: 80,
        tcache_max_bytes: 88,
        tcache_count: 96,
        size: 112,
    };

    const SINCE_2_35: MallocPar = MallocPar {
        thp_pagesize: Some(40),
        hp_pagesize: Some(48),
        n_mmaps: 60,
        n_mmaps_max: 64,
        max_n_mmaps: 68,
        no_dyn_threshold: 72,
        mmapped_mem: 80,
        max_mmapped_mem: 88,
        sbrk_base: 96,
        tcache_bins: 104,
        tcache_max_bytes: 112,
        tcache_count: 120,
        size: 136,
        ..Self::SINCE_2_26
    };

    const SINCE_2_43: MallocPar = MallocPar {
        thp_pagesize: Some(48),
        hp_pagesize: Some(56),
        n_mmaps: 68,
        n_mmaps_max: 72,
        max_n_mmaps: 76,
        no_dyn_threshold: 80,
        mmapped_mem: 88,
        max_mmapped_mem: 96,
        sbrk_base: 104,
        tcache_bins: 112,
        tcache_max_bytes: 120,
        tcache_count: 128,
        size: 144,
        ..Self::SINCE_2_26
    };

    const SINCE_2_44: MallocPar = MallocPar {
        size: 136,
        ..Self::SINCE_2_43
    };

    pub(super) const fn of(version: Version) -> MallocPar {
        match version.minor {
            ..35 => Self::SINCE_2_26,
            35..43 => Self::SINCE_2_35,
            43 => Self::SINCE_2_43,
            44.. => Self::SINCE_2_44,
        }
    }
}

/// `struct malloc_state`: an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MallocState {
    /// int: bit 1 (NONCONTIGUOUS_BIT) says that the break is not relied on.
    pub flags: u64,
    /// Ten list heads, by chunk size from 32 in steps of 16. None from 2.43, which has no fastbins.
    pub fastbins: Option<u64>,
    pub top: u64,
    pub last_remainder: u64,
    /// 254 pointers: (fd, bk) of the unsorted bin, 62 small bins, 63 large bins and one that is not used.
    pub bins: u64,
    /// The ring of arenas; the last one points back to main_arena.
    pub next: u64,
    pub next_free: u64,
    /// Threads that use this arena; 0 for one whose threads are gone.
    pub attached_threads: u64,
    pub system_mem: u64,
    pub max_system_mem: u64,
    pub size: u64,
}

impl MallocState {
    pub const FASTBINS: u64 = 10;

    const SINCE_2_27: MallocState = MallocState {
        flags: 4,
        fastbins: Some(16),
        top: 96,
        last_remainder: 104,
        bins: 112,
        next: 2160,
        next_free: 2168,
        attached_threads: 2176,
        system_mem: 2184,
        max_system_mem: 2192,
        size: 2200,
    };

    const SINCE_2_43: MallocState = MallocState {
        flags: 4,
        fastbins: None,
        top: 8,
        last_remainder: 16,
        bins: 24,
        next: 2072,
        next_free: 2080,
        attached_threads: 2088,
        system_mem: 2096,
        max_system_mem: 2104,
        size: 2112,
    };

    pub(super) const fn of(version: Version) -> MallocState {
        match version.minor {
            ..43 => Self::SINCE_2_27,
            43.. => Self::SINCE_2_43,
        }
    }
}

/// `struct _heap_info`: opens each segment of a thread arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapInfo {
    /// The arena it belongs to.
    pub ar_ptr: u64,
    /// The segment before it, 0 in the first one.
    pub prev: u64,
    /// Bytes in use, from the segment's begin.
    pub used: u64,
    pub mprotect_size: u64,
    pub size: u64,
}

impl HeapInfo {
    pub(super) const fn of(version: Version) -> HeapInfo {
        let size = if version.minor < 35 { 32 } else { 48 };
        HeapInfo {
            ar_ptr: 0,
            prev: 8,
            used: 16,
            mprotect_size: 24,
            size,
        }
    }
}

/// `struct tcache_perthread_struct`: one thread's cache of free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcacheLayout {
    /// Bins, large ones included.
    pub bins: u64,
    /// Of these, how many hold one chunk size each.
    pub small_bins: u64,
    /// u16 for each bin, at offset 0: blocks it holds or (see `counts_down`) may still take.
    pub counts: u64,
    pub counts_down: bool,
    /// A list head for each bin.
    pub entries: u64,
    pub size: u64,
    /// The key in a cached block is the address of the cache; else a random word that all of the process share.
    pub key_is_address: bool,
}

impl TcacheLayout {
    pub(super) const fn of(version: Version) -> TcacheLayout {
        let bins = if version.minor < 42 { 64u64 } else { 76 };
        TcacheLayout {
            bins,
            small_bins: 64,
            counts: 0,
            counts_down: version.minor >= 42,
            entries: bins.saturating_mul(2),
            size: bins.saturating_mul(10),
            key_is_address: version.minor < 34,
        }
    }
}
