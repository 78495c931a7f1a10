//! The chunks of one stretch of heap, in order, packed: a byte for a chunk below 512 bytes, two up to 64 KiB.
//!
//! A look walks foreign memory once and goes over the chunks several times; a million of them take a megabyte or two.

use alloc::vec::Vec;

/// What the flags say of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Free,
    /// Handed out, or set aside in a thread cache or a fastbin.
    InUse,
    /// A fencepost that closes a stretch.
    Fence,
    /// Memory inside the break's range that is not malloc's.
    Foreign,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub address: u64,
    pub size: u64,
    pub usage: Use,
}

impl Chunk {
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkLog {
    packed: Vec<u8>,
    pub chunks: u64,
}

impl ChunkLog {
    /// Bytes that the log itself takes.
    pub fn weight(&self) -> usize {
        self.packed.len()
    }

    /// `size` is a multiple of 16.
    #[inline]
    pub fn push(&mut self, size: u64, usage: Use) {
        let mut number = ((size / 16) << 2) | usage as u64;
        while number >= 0x80 {
            self.packed.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.packed.push(number as u8);
        self.chunks = self.chunks.saturating_add(1);
    }

    /// The chunks again, the first one at `start`.
    pub fn iter(&self, start: u64) -> impl Iterator<Item = Chunk> + '_ {
        let (mut rest, mut address) = (self.packed.iter(), start);
        core::iter::from_fn(move || {
            let mut number = 0u64;
            for shift in (0..64).step_by(7) {
                let byte = *rest.next()?;
                number |= u64::from(byte & 0x7f) << shift;
                if byte & 0x80 == 0 {
                    break;
                }
            }
            let usage = match number & 3 {
                0 => Use::Free,
                1 => Use::InUse,
                2 => Use::Fence,
                _ => Use::Foreign,
            };
            let chunk = Chunk {
                address,
                size: (number >> 2) << 4,
                usage,
            };
            address = chunk.end();
            Some(chunk)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_packed_comes_back(script in prop::collection::vec((0u64..1 << 40, 0u8..4), 0..200)) {
            let mut log = ChunkLog::default();
            let mut address = 0x5000_0000_0000;
            let mut expected = Vec::new();
            for (units, usage) in script {
                let usage = [Use::Free, Use::InUse, Use::Fence, Use::Foreign][usize::from(usage)];
                log.push(units * 16, usage);
                expected.push(Chunk { address, size: units * 16, usage });
                address += units * 16;
            }
            prop_assert_eq!(log.iter(0x5000_0000_0000).collect::<Vec<_>>(), expected);
        }
    }
}
