//! Where a libc keeps its books, found in its file without symbols.
//!
//! ```text
//! release version 2.36   which layouts       "release version 2.NN" in the read-only part
//! mp_                    settings            its initial values, unlike anything else in the writable part
//! main_arena             the first arena     it points to itself: a relocation whose place and pointer lie just one
//!                                            `next` apart, with the initial values of an arena around
//! ```
//!
//! Each must be found exactly once, and the three must agree on the layout; else the library is refused with a reason.
//! The *file* is searched, not the process: tunables change the live copy before main.

use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use super::elf::{self, Elf, u32_at, u64_at};
use super::layout::{HeapInfo, MallocPar, MallocState, TcacheLayout, Version};

/// What of glibc's insides is known for one library file. Addresses are the file's: add the load address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anatomy {
    pub machine: Machine,
    pub version: Version,
    /// Address of `mp_`.
    pub mp: u64,
    pub main_arena: u64,
    /// The file's lowest address, which the load address is measured from.
    pub lowest: u64,
    pub malloc_par: MallocPar,
    pub malloc_state: MallocState,
    pub heap_info: HeapInfo,
    pub tcache: TcacheLayout,
    /// Links of fastbins and thread caches are mangled with their own address (2.32 and later).
    pub safe_linking: bool,
    /// A block with a mapping of its own: the mapping's bytes beyond `prev_size` + chunk size.
    pub mapped_extra: u64,
    /// A thread's first free passes the entry of `free` twice (2.43 and later).
    pub first_free_twice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Machine {
    Amd64,
    Arm64,
}

/// Why a library's books cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    NotElf,
    /// 32-bit or big-endian.
    WordSize,
    /// ELF's e_machine.
    Machine(u16),
    /// No "release version" banner: not glibc.
    NoVersion,
    /// A release whose layouts are not known.
    Version(Version),
    /// A state between two releases; layouts may be those of either.
    Snapshot(Version),
    /// `mp_` was found this many times instead of once.
    MallocPar(usize),
    /// `main_arena` was found this many times instead of once.
    MainArena(usize),
}

impl fmt::Display for Unsupported {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsupported::NotElf => write!(out, "it is not an ELF file"),
            Unsupported::WordSize => write!(out, "it is not a 64-bit little-endian file"),
            Unsupported::Machine(machine) => {
                write!(out, "its processor (ELF machine {machine}) is neither amd64 nor arm64")
            }
            Unsupported::NoVersion => write!(out, "it carries no glibc release banner"),
            Unsupported::Version(version) => write!(
                out,
                "the layouts of glibc {version} are not known (those of {} to {} are)",
                Version::OLDEST,
                Version::NEWEST
            ),
            Unsupported::Snapshot(version) => write!(out, "it is a development snapshot after glibc {version}"),
            Unsupported::MallocPar(0) => write!(out, "malloc's settings (mp_) were not found in it"),
            Unsupported::MallocPar(hits) => write!(out, "{hits} places in it look like malloc's settings (mp_)"),
            Unsupported::MainArena(0) => write!(out, "malloc's main arena was not found in it"),
            Unsupported::MainArena(hits) => write!(out, "{hits} places in it look like malloc's main arena"),
        }
    }
}

impl core::error::Error for Unsupported {}

/// What a pointer at address `place` of a library or program holds before anything has run, without the load address.
pub fn initial_pointer(file: &[u8], place: u64) -> Option<u64> {
    let elf = Elf::parse(file).ok()?;
    let mut found = None;
    elf.each_pointer(|at, pointer| {
        if at == place {
            found = Some(pointer);
        }
    });
    found
}

impl Anatomy {
    /// Reads a libc.so.6 or a statically linked program.
    pub fn of_library(file: &[u8]) -> Result<Anatomy, Unsupported> {
        let elf = Elf::parse(file).map_err(|reason| match reason {
            elf::NotReadable::NotElf => Unsupported::NotElf,
            elf::NotReadable::Not64BitLittleEndian => Unsupported::WordSize,
        })?;
        let machine = match elf.machine {
            elf::MACHINE_AMD64 => Machine::Amd64,
            elf::MACHINE_ARM64 => Machine::Arm64,
            other => return Err(Unsupported::Machine(other)),
        };
        let version = release(&elf)?;
        let malloc_par = MallocPar::of(version);
        let malloc_state = MallocState::of(version);
        let mp = only(find_malloc_par(&elf, &malloc_par)).map_err(Unsupported::MallocPar)?;
        let main_arena = only(find_main_arena(&elf, &malloc_state)).map_err(Unsupported::MainArena)?;
        // A mapping begins at a page's begin, and pages of 4 KiB are the smallest there are.
        let lowest = elf
            .segments
            .iter()
            .map(|segment| segment.address & !0xfff)
            .min()
            .unwrap_or(0);
        Ok(Anatomy {
            lowest,
            ..Anatomy::known(machine, version, mp, main_arena)
        })
    }

    /// The anatomy of a known release whose addresses were found elsewhere (in a recorded image).
    pub fn known(machine: Machine, version: Version, mp: u64, main_arena: u64) -> Anatomy {
        Anatomy {
            machine,
            version,
            mp,
            main_arena,
            lowest: 0,
            malloc_par: MallocPar::of(version),
            malloc_state: MallocState::of(version),
            heap_info: HeapInfo::of(version),
            tcache: TcacheLayout::of(version),
            safe_linking: version.minor >= 32,
            mapped_extra: if version.minor >= 43 { 16 } else { 0 },
            first_free_twice: version.minor >= 43,
        }
    }
}

/// The one element, or how many there are.
fn only(found: Vec<u64>) -> Result<u64, usize> {
    match found[..] {
        [one] => Ok(one),
        _ => Err(found.len()),
    }
}

/// The release that the banner names, where its layouts are known.
fn release(elf: &Elf<'_>) -> Result<Version, Unsupported> {
    const BANNER: &[u8] = b"release version ";
    let banner = elf
        .segments
        .iter()
        .filter(|segment| !segment.writable)
        .find_map(|segment| {
            let at = find(segment.image, BANNER)?;
            segment.image.get(at.checked_add(BANNER.len())?..)
        });
    let mut parts = banner
        .ok_or(Unsupported::NoVersion)?
        .split(|byte| *byte == b'.')
        .map(leading_number);
    let (Some(Some(major)), Some(Some(minor))) = (parts.next(), parts.next()) else {
        return Err(Unsupported::NoVersion);
    };
    let version = Version { major, minor };
    // Between releases the banner says 2.NN.9000 and the like; 2.NN.1 does not occur since 2.20.
    match parts.next() {
        Some(Some(_)) => Err(Unsupported::Snapshot(version)),
        _ if version.is_known() => Ok(version),
        _ => Err(Unsupported::Version(version)),
    }
}

/// The decimal number that opens `text`.
fn leading_number(text: &[u8]) -> Option<u32> {
    let digits = text.iter().take(6).take_while(|byte| byte.is_ascii_digit());
    digits.fold(None, |number, digit| {
        let digit = u32::from(digit.wrapping_sub(b'0'));
        Some(number.unwrap_or(0).saturating_mul(10).saturating_add(digit))
    })
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    loop {
        let step = haystack.get(from..)?.iter().position(|byte| *byte == first)?;
        from = from.checked_add(step)?;
        if haystack.get(from..)?.starts_with(needle) {
            return Some(from);
        }
        from = from.checked_add(1)?;
    }
}

/// Places whose words are mp_'s initial values: three thresholds of 128 KiB, arena_test 8, no arena_max, 65536 mapped
/// blocks at most and 64 thread cache bins, the last two where this layout has them.
fn find_malloc_par(elf: &Elf<'_>, layout: &MallocPar) -> Vec<u64> {
    const HEAD: [u64; 5] = [0x20000, 0x20000, 0x20000, 8, 0];
    const MMAPS_MAX: u32 = 65536;
    const TCACHE_BINS: u64 = 64;
    let mut found = Vec::new();
    for segment in elf.segments.iter().filter(|segment| segment.writable) {
        let skew = (segment.address.wrapping_neg() & 7) as usize;
        for at in (skew..segment.image.len()).step_by(8) {
            let bytes = segment.image.get(at..).unwrap_or(&[]);
            if HEAD
                .iter()
                .zip((0..).step_by(8))
                .all(|(value, place)| u64_at(bytes, place) == Some(*value))
                && u32_at(bytes, layout.n_mmaps_max as usize) == Some(MMAPS_MAX)
                && u64_at(bytes, layout.tcache_bins as usize) == Some(TCACHE_BINS)
            {
                found.push(segment.address.wrapping_add(at as u64));
            }
        }
    }
    found
}

/// Arenas that point to themselves: `next` is a pointer to the arena's begin, everything before it is zero in the
/// file, and after it come no `next_free` and one attached thread.
fn find_main_arena(elf: &Elf<'_>, layout: &MallocState) -> Vec<u64> {
    let mut found = Vec::new();
    elf.each_pointer(|place, arena| {
        if place.wrapping_sub(arena) != layout.next {
            return;
        }
        let Some(bytes) = elf.bytes_from(arena) else { return };
        let field = |offset: u64| u64_at(bytes, offset as usize);
        let untouched = bytes
            .get(..layout.next as usize)
            .is_some_and(|head| head.iter().all(|byte| *byte == 0));
        if untouched && field(layout.next_free) == Some(0) && field(layout.attached_threads) == Some(1) {
            found.push(arena);
        }
    });
    found.sort_unstable();
    found.dedup();
    found
}
