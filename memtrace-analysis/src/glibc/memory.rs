//! Foreign memory as an argument: who has the bytes does not matter to those who read them.
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "offsets of known layouts, added to addresses that were checked to lie in a mapping; places in lists made here"
    )
)]

use alloc::vec::Vec;
use core::fmt;

use super::elf::u64_at;

/// A byte that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub address: u64,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "memory at {:#x} cannot be read", self.address)
    }
}

impl core::error::Error for Unreadable {}

/// Another process's memory, or an image of it.
pub trait ReadMemory {
    /// Fills `into` with what stands at `address`, or fails as a whole.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable>;

    /// How many bytes from `address` on can be read without touching a page that is not in memory: reading such a page
    /// would fetch it from swap, or map the zero page. Reads of less than a page are always allowed.
    fn readily(&self, address: u64) -> u64 {
        let _ = address;
        u64::MAX
    }

    /// The reader has made use of these bytes. Those that go into an image are told by this: a read of many chunks at
    /// once also passes over the program's data.
    fn note(&self, address: u64, bytes: &[u8]) {
        let _ = (address, bytes);
    }

    fn word(&self, address: u64) -> Result<u64, Unreadable> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Many words at once, for those who can do that at less than a call each; None for each unreadable one.
    fn words(&self, addresses: &[u64], into: &mut Vec<Option<u64>>) {
        into.clear();
        into.extend(addresses.iter().map(|address| self.word(*address).ok()));
    }
}

/// Reads of which one is above the other, through a buffer that takes in more the denser they come: a walk over small
/// chunks reads 256 KiB at a time, one over huge chunks only the page of each header.
pub struct Window<'m, M: ?Sized> {
    memory: &'m M,
    buffer: Vec<u8>,
    start: u64,
    /// Bytes to ask for next.
    appetite: u64,
    /// Nothing is read from here on.
    limit: u64,
}

impl<'m, M: ReadMemory + ?Sized> Window<'m, M> {
    const LEAST: u64 = 4096;
    const MOST: u64 = 256 * 1024;

    pub fn new(memory: &'m M, limit: u64) -> Self {
        Window {
            memory,
            buffer: Vec::new(),
            start: 0,
            appetite: Self::LEAST,
            limit,
        }
    }

    /// `length` bytes at `address`; `length` is a few KiB at most.
    #[inline]
    pub fn bytes(&mut self, address: u64, length: usize) -> Result<&[u8], Unreadable> {
        let offset = address.wrapping_sub(self.start);
        if offset
            .checked_add(length as u64)
            .is_none_or(|end| end > self.buffer.len() as u64)
        {
            self.refill(address, length)?;
        }
        let offset = address.wrapping_sub(self.start) as usize;
        self.buffer.get(offset..offset + length).ok_or(Unreadable { address })
    }

    /// Bytes that were made use of; see [`ReadMemory::note`].
    pub fn note(&mut self, address: u64, length: usize) {
        let memory = self.memory;
        if let Ok(bytes) = self.bytes(address, length) {
            memory.note(address, bytes);
        }
    }

    /// The chunk header at `address`: prev_size and size.
    #[inline]
    pub fn header(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        self.bytes(address, 16)?;
        let offset = address.wrapping_sub(self.start) as usize;
        let bytes = &self.buffer[offset..];
        match (u64_at(bytes, 0), u64_at(bytes, 8)) {
            (Some(previous), Some(size)) => {
                // Where the chunk below is in use, prev_size is the end of its block.
                let skipped = if size & 1 == 1 { 8 } else { 0 };
                self.memory
                    .note(address + skipped as u64, &self.buffer[offset + skipped..offset + 16]);
                Ok((previous, size))
            }
            _ => Err(Unreadable { address }),
        }
    }

    fn refill(&mut self, address: u64, length: usize) -> Result<(), Unreadable> {
        let end = self.start.wrapping_add(self.buffer.len() as u64);
        let near = address >= self.start && address.wrapping_sub(end) < self.appetite / 4 || address < end;
        self.appetite = if near {
            (self.appetite * 2).min(Self::MOST)
        } else {
            Self::LEAST
        };
        let room = self.limit.saturating_sub(address);
        if room < length as u64 {
            return Err(Unreadable { address });
        }
        // Up to the page's end is always right; beyond it only what is there already.
        let page_end = (Self::LEAST - address % Self::LEAST).max(length as u64);
        let wanted = self.appetite.min(self.memory.readily(address)).max(page_end).min(room);
        self.start = address;
        self.buffer.resize(wanted as usize, 0);
        if self.memory.read(address, &mut self.buffer).is_ok() {
            return Ok(());
        }
        // A hole ahead: be content with what was asked for.
        self.buffer.truncate(length);
        let result = self.memory.read(address, &mut self.buffer);
        if result.is_err() {
            self.buffer.clear();
        }
        result
    }
}
