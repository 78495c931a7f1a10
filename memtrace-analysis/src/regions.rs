//! Which address ranges are what, learnt from the system calls that made them, and where the break stands.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::report::DirectKind;

/// Most ranges remembered; what comes beyond is counted and not known later.
const MAX_REGIONS: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// A mapping for one block.
    MappedBlock,
    /// A piece of the main arena, mapped since the break was blocked.
    MainPiece,
    /// Address space reserved for a thread arena's segment, not yet usable.
    Reservation,
    /// A thread arena's segment.
    ArenaHeap,
    ThreadStack,
    /// Made outside the allocator.
    Direct(DirectKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    pub kind: RegionKind,
    /// Bytes from the start that can be used (a segment's are made so step by step).
    pub usable: u64,
}

impl Region {
    pub const fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Regions {
    by_start: BTreeMap<u64, Region>,
    forgotten: u64,
    break_end: Option<u64>,
    /// The break was returned by the kernel, not taken from the heap's mapping (which ends on a page).
    break_exact: bool,
}

impl Regions {
    pub fn insert(&mut self, start: u64, bytes: u64, kind: RegionKind) {
        let end = start.saturating_add(bytes);
        if end <= start {
            return;
        }
        self.remove(start, bytes);
        if self.by_start.len() >= MAX_REGIONS {
            self.forgotten = self.forgotten.saturating_add(1);
            return;
        }
        let usable = if kind == RegionKind::Reservation { 0 } else { bytes };
        self.by_start.insert(
            start,
            Region {
                start,
                end,
                kind,
                usable,
            },
        );
    }

    /// Takes a range out and gives back the parts of known regions that lay in it.
    pub fn remove(&mut self, start: u64, bytes: u64) -> Vec<Region> {
        let end = start.saturating_add(bytes);
        let touched: Vec<Region> = self
            .by_start
            .range(..end)
            .rev()
            .map(|(_, region)| *region)
            .take_while(|region| region.end > start)
            .collect();
        let mut removed = Vec::new();
        for region in touched {
            self.by_start.remove(&region.start);
            let cut = Region {
                start: region.start.max(start),
                end: region.end.min(end),
                ..region
            };
            if region.start < cut.start {
                self.keep(Region {
                    end: cut.start,
                    ..region
                });
            }
            if cut.end < region.end {
                self.keep(Region {
                    start: cut.end,
                    ..region
                });
            }
            removed.push(cut);
        }
        removed
    }

    fn keep(&mut self, region: Region) {
        let region = Region {
            usable: region.usable.min(region.bytes()),
            ..region
        };
        self.by_start.insert(region.start, region);
    }

    /// The region an address lies in.
    pub fn find(&self, address: u64) -> Option<&Region> {
        let (_, region) = self.by_start.range(..=address).next_back()?;
        (address < region.end).then_some(region)
    }

    /// Changes the region that begins at `start`.
    pub fn at_mut(&mut self, start: u64) -> Option<&mut Region> {
        self.by_start.get_mut(&start)
    }

    pub const fn break_end(&self) -> Option<u64> {
        self.break_end
    }

    pub const fn break_exact(&self) -> bool {
        self.break_exact
    }

    /// The break as the kernel returned it.
    pub const fn set_break(&mut self, end: u64) {
        self.break_end = Some(end);
        self.break_exact = true;
    }

    /// The end of the heap's mapping as seen from outside: used while the kernel's word is not known.
    pub fn suggest_break(&mut self, end: Option<u64>) {
        if !self.break_exact && end.is_some() {
            self.break_end = end;
        }
    }

    /// Ranges that were not remembered for want of room.
    pub const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// What lies where may have changed unseen.
    pub fn lose_sight(&mut self) {
        self.by_start.clear();
        self.break_exact = false;
    }

    pub const fn forget_break(&mut self) {
        (self.break_end, self.break_exact) = (None, false);
    }

    /// A new program: nothing of the old address space is left.
    pub fn clear(&mut self) {
        self.by_start.clear();
        self.break_end = None;
        self.break_exact = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    fn op() -> impl Strategy<Value = (Option<RegionKind>, u64, u64)> {
        let kind = select(alloc::vec![
            None,
            Some(RegionKind::MappedBlock),
            Some(RegionKind::ThreadStack),
            Some(RegionKind::ArenaHeap),
        ]);
        (kind, 0u64..40, 0u64..20)
    }

    proptest! {
        /// The naive model: each address has a kind or none.
        #[test]
        fn each_address_is_what_was_done_to_it_last(ops in vec(op(), 0..60)) {
            let mut regions = Regions::default();
            let mut model = [None; 64];
            for (kind, start, bytes) in ops {
                let range = start as usize..(start + bytes) as usize;
                match kind {
                    Some(kind) => regions.insert(start, bytes, kind),
                    None => {
                        let removed: u64 = regions.remove(start, bytes).iter().map(Region::bytes).sum();
                        let known = model[range.clone()].iter().flatten().count() as u64;
                        prop_assert_eq!(removed, known);
                    }
                }
                model[range].fill(kind);
                for (address, kind) in model.iter().enumerate() {
                    prop_assert_eq!(regions.find(address as u64).map(|region| region.kind), *kind);
                }
            }
        }
    }

    #[test]
    fn the_kernels_word_on_the_break_beats_the_mapping() {
        let mut regions = Regions::default();
        regions.suggest_break(Some(0x2000));
        assert_eq!((regions.break_end(), regions.break_exact()), (Some(0x2000), false));
        regions.set_break(0x1800);
        regions.suggest_break(Some(0x2000));
        assert_eq!((regions.break_end(), regions.break_exact()), (Some(0x1800), true));
    }
}
