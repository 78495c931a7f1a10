//! The few parts of an ELF64 file that tell where glibc keeps its books: segments and relative relocations.
//!
//! A reader of its own, since the crate is `no_std`, and since every access has to survive a damaged or hostile file:
//! all offsets are checked, nothing is trusted to be in order.
//!
//! Format: System V ABI, "Object Files"; RELR: the generic ABI's relative relocation table (DT_RELR).

use alloc::vec::Vec;

pub(super) const MACHINE_AMD64: u16 = 62;
pub(super) const MACHINE_ARM64: u16 = 183;

const TYPE_EXECUTABLE: u16 = 2;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PF_W: u32 = 2;

const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_RELRSZ: u64 = 35;
const DT_RELR: u64 = 36;

const R_X86_64_RELATIVE: u32 = 8;
const R_AARCH64_RELATIVE: u32 = 1027;

/// Why a file is not one that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotReadable {
    NotElf,
    Not64BitLittleEndian,
}

/// A loadable segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    /// Virtual address of its first byte.
    pub address: u64,
    /// What the file holds of it (the rest of it is zero, and not here).
    pub image: &'a [u8],
    pub writable: bool,
}

pub(super) struct Elf<'a> {
    pub machine: u16,
    /// Linked to fixed addresses: its pointers stand in the file as they are, without relocations.
    fixed: bool,
    pub segments: Vec<Segment<'a>>,
    dynamic: &'a [u8],
}

/// The little-endian u16 at a byte offset.
pub(super) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_le_bytes(
        bytes.get(offset..offset.checked_add(2)?)?.try_into().ok()?,
    ))
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        bytes.get(offset..offset.checked_add(4)?)?.try_into().ok()?,
    ))
}

pub(super) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(
        bytes.get(offset..offset.checked_add(8)?)?.try_into().ok()?,
    ))
}

/// The part of a file that a program header names, cut where the file ends.
fn file_range(file: &[u8], offset: u64, length: u64) -> &[u8] {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(file.len());
    let end = usize::try_from(offset.saturating_add(length))
        .unwrap_or(usize::MAX)
        .min(file.len());
    file.get(start..end).unwrap_or(&[])
}

impl<'a> Elf<'a> {
    pub fn parse(file: &'a [u8]) -> Result<Self, NotReadable> {
        if file.get(..4) != Some(b"\x7fELF") {
            return Err(NotReadable::NotElf);
        }
        let (class, data) = (file.get(4).copied(), file.get(5).copied());
        if class != Some(2) || data != Some(1) {
            return Err(NotReadable::Not64BitLittleEndian);
        }
        let header = || {
            Some((
                u16_at(file, 16)?,
                u16_at(file, 18)?,
                u64_at(file, 32)?,
                u16_at(file, 54)?,
                u16_at(file, 56)?,
            ))
        };
        let (kind, machine, table, entry_size, entries) = header().ok_or(NotReadable::NotElf)?;

        let mut elf = Elf {
            machine,
            fixed: kind == TYPE_EXECUTABLE,
            segments: Vec::new(),
            dynamic: &[],
        };
        for index in 0..u64::from(entries) {
            let at = table.saturating_add(u64::from(entry_size).saturating_mul(index));
            let Ok(at) = usize::try_from(at) else { break };
            let field = |offset| u64_at(file, at.checked_add(offset)?);
            let (Some(kind), Some(flags), Some(offset), Some(address), Some(length)) = (
                u32_at(file, at),
                u32_at(file, at.saturating_add(4)),
                field(8),
                field(16),
                field(32),
            ) else {
                break;
            };
            let image = file_range(file, offset, length);
            match kind {
                PT_LOAD => elf.segments.push(Segment {
                    address,
                    image,
                    writable: flags & PF_W != 0,
                }),
                PT_DYNAMIC => elf.dynamic = image,
                _ => {}
            }
        }
        Ok(elf)
    }

    /// The u64 that the file holds for a virtual address.
    pub fn word(&self, address: u64) -> Option<u64> {
        self.bytes_from(address).and_then(|bytes| u64_at(bytes, 0))
    }

    /// What the file holds from a virtual address up to the end of its segment.
    pub fn bytes_from(&self, address: u64) -> Option<&'a [u8]> {
        self.segments.iter().find_map(|segment| {
            let offset = usize::try_from(address.checked_sub(segment.address)?).ok()?;
            segment.image.get(offset..)
        })
    }

    fn dynamic_value(&self, tag: u64) -> Option<u64> {
        self.dynamic
            .chunks_exact(16)
            .map(|entry| (u64_at(entry, 0), u64_at(entry, 8)))
            .take_while(|(found, _)| *found != Some(0))
            .find_map(|(found, value)| (found == Some(tag)).then_some(value).flatten())
    }

    fn table(&self, address: u64, size: u64) -> &'a [u8] {
        let Some(bytes) = self.dynamic_value(address).and_then(|address| self.bytes_from(address)) else {
            return &[];
        };
        let length = self
            .dynamic_value(size)
            .and_then(|size| usize::try_from(size).ok())
            .unwrap_or(0);
        bytes.get(..length).unwrap_or(bytes)
    }

    /// Calls `visit` with every (place, pointer) that the loader will relocate by the load address. In a file linked to
    /// fixed addresses, where there is nothing to relocate, with every aligned word of its writable segments.
    pub fn each_pointer(&self, mut visit: impl FnMut(u64, u64)) {
        if self.fixed {
            for segment in self.segments.iter().filter(|segment| segment.writable) {
                let skew = segment.address.wrapping_neg() & 7;
                let words = segment.image.get(skew as usize..).unwrap_or(&[]).chunks_exact(8);
                for (offset, word) in (skew..).step_by(8).zip(words) {
                    if let Some(word) = u64_at(word, 0) {
                        visit(segment.address.wrapping_add(offset), word);
                    }
                }
            }
            return;
        }
        let relative = match self.machine {
            MACHINE_ARM64 => R_AARCH64_RELATIVE,
            _ => R_X86_64_RELATIVE,
        };
        for entry in self.table(DT_RELA, DT_RELASZ).chunks_exact(24) {
            if u32_at(entry, 8) == Some(relative)
                && let (Some(place), Some(addend)) = (u64_at(entry, 0), u64_at(entry, 16))
            {
                visit(place, addend);
            }
        }
        // RELR: an even word is a place; an odd one a map of the 63 places after the last one.
        let mut next = 0u64;
        let mut relocate = |place| {
            if let Some(pointer) = self.word(place) {
                visit(place, pointer);
            }
        };
        for word in self
            .table(DT_RELR, DT_RELRSZ)
            .chunks_exact(8)
            .filter_map(|word| u64_at(word, 0))
        {
            if word & 1 == 0 {
                relocate(word);
                next = word.wrapping_add(8);
            } else {
                for (bit, offset) in (1..64).zip((0u64..).step_by(8)) {
                    if word >> bit & 1 == 1 {
                        relocate(next.wrapping_add(offset));
                    }
                }
                next = next.wrapping_add(63 * 8);
            }
        }
    }
}
