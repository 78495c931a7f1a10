//! A heap's bookkeeping kept for later: the words that a look made use of, and nothing of what the program stored.
//!
//! Headers of chunks, links of free ones, arenas, thread caches and settings are a hundredth of a heap. What is not
//! among them reads as zero. A look at an image finds what the look at the process found.
//!
//! ```text
//! "MTHEAP\r\n" version:u32 | header:u64 and its bytes (JSON: everything but the words) | words:u64 | (address, word)...
//!                                                                         each word as: steps of 8 from the last, value
//! ```

use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;

use serde::{Deserialize, Serialize};

use super::layout::Version;
use super::locate::{Anatomy, Machine};
use super::look::{self, Taken, Target};
use super::mapping::{Mapping, holding};
use super::memory::{ReadMemory, Unreadable};
use super::residency::PackedPages;

pub const MAGIC: &[u8; 8] = b"MTHEAP\r\n";
pub const IMAGE_VERSION: u32 = 1;

/// (address, word), in order of addresses; words that are not among them are zero.
pub type Words = Vec<(u64, u64)>;

/// Passes reads on, and keeps what was made use of.
pub struct Recorder<'m, M: ?Sized> {
    memory: &'m M,
    words: RefCell<Words>,
}

impl<'m, M: ReadMemory + ?Sized> Recorder<'m, M> {
    pub fn new(memory: &'m M) -> Self {
        Recorder {
            memory,
            words: RefCell::new(Vec::new()),
        }
    }

    /// The words, in order of their addresses.
    pub fn finish(self) -> Words {
        let mut words = self.words.into_inner();
        words.sort_by_key(|(address, _)| *address);
        // What was read again later is newer.
        words.reverse();
        words.dedup_by_key(|(address, _)| *address);
        words.reverse();
        words.retain(|(_, word)| *word != 0);
        words
    }
}

impl<M: ReadMemory + ?Sized> ReadMemory for Recorder<'_, M> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.memory.read(address, into)
    }

    fn readily(&self, address: u64) -> u64 {
        self.memory.readily(address)
    }

    fn words(&self, addresses: &[u64], into: &mut Vec<Option<u64>>) {
        self.memory.words(addresses, into);
    }

    fn note(&self, address: u64, bytes: &[u8]) {
        let words = bytes
            .chunks_exact(8)
            .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
        self.words.borrow_mut().extend((address..).step_by(8).zip(words));
    }
}

/// Everything that a look rests on, of one moment of one process, but for the heap's words and the pages' states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub target: Target,
    pub taken: Taken,
    pub program: String,
    pub mappings: Vec<Mapping>,
    pub stack_pointers: Vec<u64>,
    pub environment: Vec<(String, String)>,
    pub machine: Option<look::Machine>,
    pub cgroup: Option<look::Cgroup>,
    pub not_seen: Vec<String>,
    pub damaged: bool,
    /// None where malloc's books could not be read, for this reason.
    pub library: Option<LibraryFacts>,
    pub heap_unknown: Option<String>,
    /// States of the pages of anonymous mappings; only in a stored image.
    #[serde(default)]
    pub pages: Vec<PackedPages>,
}

/// What [`Anatomy`] is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryFacts {
    pub machine: Machine,
    pub version: Version,
    pub mp: u64,
    pub main_arena: u64,
    /// Load address.
    pub base: u64,
}

impl LibraryFacts {
    pub fn of(anatomy: &Anatomy, base: u64) -> LibraryFacts {
        let Anatomy {
            machine,
            version,
            mp,
            main_arena,
            ..
        } = *anatomy;
        LibraryFacts {
            machine,
            version,
            mp,
            main_arena,
            base,
        }
    }

    pub fn anatomy(&self) -> Option<Anatomy> {
        self.version
            .is_known()
            .then(|| Anatomy::known(self.machine, self.version, self.mp, self.main_arena))
    }
}

/// Why bytes are no image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadImage {
    NotAnImage,
    /// Written by another version of memtrace.
    Version(u32),
    Damaged,
    CutShort,
}

impl fmt::Display for BadImage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadImage::NotAnImage => write!(out, "it is no image of a heap"),
            BadImage::Version(version) => {
                write!(
                    out,
                    "it is of version {version}, and this memtrace reads version {IMAGE_VERSION}"
                )
            }
            BadImage::Damaged => write!(out, "it is damaged"),
            BadImage::CutShort => write!(out, "it ends too early"),
        }
    }
}

impl core::error::Error for BadImage {}

/// Header and words as bytes; `header` is the header as JSON.
pub fn encode(header: &[u8], words: &[(u64, u64)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(header.len().saturating_add(words.len().saturating_mul(6)));
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&IMAGE_VERSION.to_le_bytes());
    out.extend_from_slice(&(header.len() as u64).to_le_bytes());
    out.extend_from_slice(header);
    out.extend_from_slice(&(words.len() as u64).to_le_bytes());
    let mut last = 0u64;
    for (address, word) in words {
        push(&mut out, address.wrapping_sub(last) / 8);
        push(&mut out, *word);
        last = *address;
    }
    out
}

/// The header's JSON and the words.
pub fn decode(bytes: &[u8]) -> Result<(&[u8], Words), BadImage> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(BadImage::NotAnImage)?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(BadImage::CutShort)?;
    let version = u32::from_le_bytes(*version);
    if version != IMAGE_VERSION {
        return Err(BadImage::Version(version));
    }
    let (length, rest) = rest.split_first_chunk::<8>().ok_or(BadImage::CutShort)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| BadImage::Damaged)?;
    let (header, rest) = rest.split_at_checked(length).ok_or(BadImage::CutShort)?;
    let (count, mut rest) = rest.split_first_chunk::<8>().ok_or(BadImage::CutShort)?;
    let count = u64::from_le_bytes(*count);
    let mut words = Vec::new();
    let mut last = 0u64;
    for index in 0..count {
        let step = pull(&mut rest)?;
        let word = pull(&mut rest)?;
        let address = last
            .checked_add(step.checked_mul(8).ok_or(BadImage::Damaged)?)
            .ok_or(BadImage::Damaged)?;
        if index > 0 && address <= last || address % 8 != 0 {
            return Err(BadImage::Damaged);
        }
        words.push((address, word));
        last = address;
    }
    if rest.is_empty() {
        Ok((header, words))
    } else {
        Err(BadImage::Damaged)
    }
}

fn push(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn pull(rest: &mut &[u8]) -> Result<u64, BadImage> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or(BadImage::CutShort)?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(BadImage::Damaged)
}

/// The words of an image as memory: what lies in a readable mapping and was not kept is zero.
pub struct ImageMemory<'a> {
    pub words: &'a [(u64, u64)],
    pub mappings: &'a [Mapping],
}

impl ReadMemory for ImageMemory<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let end = address.checked_add(into.len() as u64).ok_or(Unreadable { address })?;
        let mut at = address;
        while at < end {
            let mapping = holding(self.mappings, at).filter(|mapping| mapping.readable);
            at = mapping.ok_or(Unreadable { address: at })?.end;
        }
        into.fill(0);
        let first = self
            .words
            .partition_point(|(place, _)| place.saturating_add(8) <= address);
        let words = self.words.get(first..).unwrap_or(&[]);
        for (place, word) in words.iter().take_while(|(place, _)| *place < end) {
            for (index, byte) in (0u64..).zip(word.to_le_bytes()) {
                let offset = place
                    .wrapping_add(index)
                    .checked_sub(address)
                    .and_then(|offset| usize::try_from(offset).ok());
                if let Some(slot) = offset.and_then(|offset| into.get_mut(offset)) {
                    *slot = byte;
                }
            }
        }
        Ok(())
    }
}
