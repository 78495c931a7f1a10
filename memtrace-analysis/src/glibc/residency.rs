//! Which pages of a range of addresses are in memory.
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "offsets of known layouts, added to addresses that were checked to lie in a mapping; places in lists made here"
    )
)]

use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// Page states of some ranges of a process, one bit a page; pages outside of them count as absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    page: u64,
    ranges: Vec<Pages>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pages {
    start: u64,
    count: u64,
    present: Vec<u64>,
    swapped: Vec<u64>,
}

impl Residency {
    /// `page` is the page size in bytes, a power of two.
    pub fn new(page: u64) -> Residency {
        Residency {
            page: page.max(1).next_power_of_two(),
            ranges: Vec::new(),
        }
    }

    pub fn page(&self) -> u64 {
        self.page
    }

    /// Takes in a range that lies above all ranges so far; all its pages are absent at first.
    pub fn add_range(&mut self, start: u64, end: u64) {
        let start = start & !(self.page - 1);
        let start = self
            .ranges
            .last()
            .map_or(start, |last| start.max(last.start + last.count * self.page));
        let count = end.saturating_sub(start) / self.page;
        if count > 0 {
            let words = count.div_ceil(64) as usize;
            self.ranges.push(Pages {
                start,
                count,
                present: vec![0; words],
                swapped: vec![0; words],
            });
        }
    }

    /// Marks the page at `address`, which must lie in the range added last.
    pub fn mark(&mut self, address: u64, present: bool, swapped: bool) {
        let page = self.page;
        let Some(pages) = self.ranges.last_mut() else { return };
        let Some(index) = address.checked_sub(pages.start).map(|bytes| bytes / page) else {
            return;
        };
        if index < pages.count {
            let (word, bit) = ((index / 64) as usize, 1u64 << (index % 64));
            if present {
                pages.present[word] |= bit;
            }
            if swapped {
                pages.swapped[word] |= bit;
            }
        }
    }

    /// Bytes of [from, to) that lie in present pages.
    pub fn present(&self, from: u64, to: u64) -> u64 {
        self.sum(from, to, |pages| &pages.present)
    }

    /// Bytes of [from, to) whose pages are in swap.
    pub fn swapped(&self, from: u64, to: u64) -> u64 {
        self.sum(from, to, |pages| &pages.swapped)
    }

    pub fn is_present(&self, address: u64) -> bool {
        self.range_of(address)
            .is_some_and(|pages| pages.bit(&pages.present, (address - pages.start) / self.page))
    }

    /// From `address` on, how many bytes are of pages in the state of the first one; and whether it is present.
    pub fn run(&self, address: u64) -> (bool, u64) {
        let Some(pages) = self.range_of(address) else {
            let next = self
                .ranges
                .iter()
                .map(|pages| pages.start)
                .find(|start| *start > address);
            return (false, next.map_or(u64::MAX, |start| start - address));
        };
        let first = (address - pages.start) / self.page;
        let state = pages.bit(&pages.present, first);
        let mut index = first + 1;
        while index < pages.count {
            // Whole words of one state are skipped at once.
            let uniform = if state { u64::MAX } else { 0 };
            if index.is_multiple_of(64) && index + 64 <= pages.count && pages.present[(index / 64) as usize] == uniform
            {
                index += 64;
            } else if pages.bit(&pages.present, index) == state {
                index += 1;
            } else {
                break;
            }
        }
        (state, pages.start + index * self.page - address)
    }

    fn range_of(&self, address: u64) -> Option<&Pages> {
        let index = self
            .ranges
            .partition_point(|pages| pages.start <= address)
            .checked_sub(1)?;
        let pages = &self.ranges[index];
        (address - pages.start < pages.count * self.page).then_some(pages)
    }

    fn sum(&self, from: u64, to: u64, map: impl Fn(&Pages) -> &Vec<u64>) -> u64 {
        let first = self
            .ranges
            .partition_point(|pages| pages.start + pages.count * self.page <= from);
        let mut bytes = 0;
        for pages in self.ranges[first..].iter().take_while(|pages| pages.start < to) {
            let end = pages.start + pages.count * self.page;
            bytes += pages.bytes(map(pages), from.max(pages.start), to.min(end), self.page);
        }
        bytes
    }
}

/// The pages of one range as runs: (pages, state), state 1 present, 2 swapped, 0 neither.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedPages {
    start: u64,
    runs: Vec<(u64, u8)>,
}

impl Residency {
    pub fn pack(&self) -> Vec<PackedPages> {
        let pack = |pages: &Pages| {
            let state =
                |index| u8::from(pages.bit(&pages.present, index)) | u8::from(pages.bit(&pages.swapped, index)) << 1;
            let mut runs: Vec<(u64, u8)> = Vec::new();
            for index in 0..pages.count {
                match runs.last_mut() {
                    Some(run) if run.1 == state(index) => run.0 += 1,
                    _ => runs.push((1, state(index))),
                }
            }
            PackedPages {
                start: pages.start,
                runs,
            }
        };
        self.ranges.iter().map(pack).collect()
    }

    /// None where the runs contradict themselves.
    pub fn unpack(page: u64, packed: &[PackedPages]) -> Option<Residency> {
        /// More pages than this (16 TiB) are no process but damage.
        const MOST: u64 = 1 << 32;
        let mut residency = Residency::new(page);
        let mut total = 0u64;
        for range in packed {
            let count = range
                .runs
                .iter()
                .try_fold(0u64, |sum, (pages, _)| sum.checked_add(*pages))?;
            total = total.checked_add(count).filter(|total| *total <= MOST)?;
            let end = range.start.checked_add(count.checked_mul(residency.page)?)?;
            let last = residency
                .ranges
                .last()
                .map_or(0, |last| last.start + last.count * residency.page);
            if range.start < last || range.start % residency.page != 0 {
                return None;
            }
            residency.add_range(range.start, end);
            let mut address = range.start;
            for (pages, state) in &range.runs {
                for _ in 0..*pages {
                    if *state != 0 {
                        residency.mark(address, state & 1 == 1, state & 2 == 2);
                    }
                    address += residency.page;
                }
            }
        }
        Some(residency)
    }
}

impl Pages {
    fn bit(&self, map: &[u64], index: u64) -> bool {
        map[(index / 64) as usize] >> (index % 64) & 1 == 1
    }

    /// Bytes of [from, to), which lies inside, whose page has its bit set.
    fn bytes(&self, map: &[u64], from: u64, to: u64, page: u64) -> u64 {
        if from >= to {
            return 0;
        }
        let (first, last) = ((from - self.start) / page, (to - 1 - self.start) / page);
        let mut bytes = (first..=last)
            .step_by_words()
            .map(|(word, mask)| u64::from((map[word] & mask).count_ones()) * page)
            .sum::<u64>();
        // The first and the last page count by the part of them that is asked for.
        if self.bit(map, first) {
            bytes -= (from - self.start) % page;
        }
        if self.bit(map, last) {
            bytes -= self.start + (last + 1) * page - to;
        }
        bytes
    }
}

/// Walks a range of bit numbers by the words that hold them.
trait StepByWords {
    fn step_by_words(self) -> impl Iterator<Item = (usize, u64)>;
}

impl StepByWords for core::ops::RangeInclusive<u64> {
    fn step_by_words(self) -> impl Iterator<Item = (usize, u64)> {
        let (first, last) = (*self.start(), *self.end());
        (first / 64..=last / 64).map(move |word| {
            let low = if word == first / 64 {
                u64::MAX << (first % 64)
            } else {
                u64::MAX
            };
            let high = if word == last / 64 {
                u64::MAX >> (63 - last % 64)
            } else {
                u64::MAX
            };
            (word as usize, low & high)
        })
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Sums and runs over the bitmap equal those counted byte by byte over a plain list of pages.
        #[test]
        fn sums_equal_a_plain_count(
            states in prop::collection::vec(any::<bool>(), 1..300), skip in 0u64..3, from in 0u64..1400, length in 0u64..1400,
        ) {
            const PAGE: u64 = 4;
            let base = skip * PAGE;
            let mut map = Residency::new(PAGE);
            map.add_range(base, base + states.len() as u64 * PAGE);
            for (index, state) in states.iter().enumerate() {
                map.mark(base + index as u64 * PAGE, *state, !*state);
            }
            let inside = |byte: u64| byte.checked_sub(base).and_then(|byte| states.get((byte / PAGE) as usize)).copied();
            let to = from + length;
            prop_assert_eq!(map.present(from, to), (from..to).filter(|byte| inside(*byte) == Some(true)).count() as u64);
            prop_assert_eq!(map.swapped(from, to), (from..to).filter(|byte| inside(*byte) == Some(false)).count() as u64);
            prop_assert_eq!(Residency::unpack(PAGE, &map.pack()), Some(map.clone()));
            prop_assert_eq!(map.is_present(from), inside(from) == Some(true));
            if let Some(state) = inside(from) {
                let end = (from..).find(|byte| inside(*byte) != Some(state)).unwrap();
                prop_assert_eq!(map.run(from), (state, end - from));
            }
        }
    }
}
