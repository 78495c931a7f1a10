//! Blocks and bytes allocated and freed, from running totals.
//!
//! The kernel side counts each call; the ledger keeps the most recent word of it, be it a snapshot in a record or the
//! totals read at intervals. A process that was attached to in mid-life frees blocks that it got before: whenever more
//! blocks were freed than allocated since the begin, at least the difference is of that kind, and no balance goes below
//! zero.

use crate::event::{Snapshot, Totals};

#[derive(Clone, Debug, Default)]
pub struct Ledger {
    latest: Snapshot,
    totals: Option<Totals>,
    /// Most by which frees ever exceeded allocations.
    blocks_from_before: u64,
}

impl Ledger {
    /// A snapshot; one that is older than what is known changes nothing.
    pub fn observe(&mut self, snapshot: &Snapshot) {
        self.raise(
            snapshot.allocated_blocks,
            snapshot.allocated_bytes,
            snapshot.freed_blocks,
            snapshot.freed_bytes,
        );
        // Only figures of one moment may be compared.
        self.blocks_from_before = self
            .blocks_from_before
            .max(snapshot.freed_blocks.saturating_sub(snapshot.allocated_blocks));
    }

    pub fn observe_totals(&mut self, totals: &Totals) {
        self.raise(
            totals.allocated_blocks,
            totals.allocated_bytes,
            totals.freed_blocks,
            totals.freed_bytes,
        );
        self.blocks_from_before = self
            .blocks_from_before
            .max(totals.freed_blocks.saturating_sub(totals.allocated_blocks));
        self.totals = Some(totals.clone());
    }

    fn raise(&mut self, allocated_blocks: u64, allocated_bytes: u64, freed_blocks: u64, freed_bytes: u64) {
        let latest = &mut self.latest;
        latest.allocated_blocks = latest.allocated_blocks.max(allocated_blocks);
        latest.allocated_bytes = latest.allocated_bytes.max(allocated_bytes);
        latest.freed_blocks = latest.freed_blocks.max(freed_blocks);
        latest.freed_bytes = latest.freed_bytes.max(freed_bytes);
    }

    pub const fn latest(&self) -> &Snapshot {
        &self.latest
    }

    pub const fn totals(&self) -> Option<&Totals> {
        self.totals.as_ref()
    }

    /// Blocks freed during the trace that were allocated before it: at least so many.
    pub const fn blocks_from_before(&self) -> u64 {
        self.blocks_from_before
    }

    /// Blocks allocated during the trace and not freed, if no more than [`Self::blocks_from_before`] of the freed ones
    /// came from before it; more otherwise. `failed` calls have left no block.
    pub fn live_blocks(&self, failed: u64) -> u64 {
        let born = self.latest.allocated_blocks.saturating_sub(failed);
        born.saturating_add(self.blocks_from_before)
            .saturating_sub(self.latest.freed_blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Allocate,
        /// Of a block that was there before the trace, or of one from during it.
        Free {
            before: bool,
        },
        Look,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            2 => Just(Op::Allocate),
            2 => any::<bool>().prop_map(|before| Op::Free { before }),
            1 => Just(Op::Look),
        ]
    }

    proptest! {
        /// The naive model knows each block; the ledger sees totals alone, from time to time, and must never claim more
        /// than is true.
        #[test]
        fn it_never_contradicts_a_model_that_knows_each_block(old in 0u64..10, ops in vec(op(), 0..200)) {
            let mut ledger = Ledger::default();
            let (mut old_left, mut live) = (old, 0u64);
            let mut now = Snapshot::default();
            for op in ops.into_iter().chain([Op::Look]) {
                match op {
                    Op::Allocate => {
                        now.allocated_blocks += 1;
                        now.allocated_bytes += 10;
                        live += 1;
                    }
                    Op::Free { before } => {
                        let pool = if before { &mut old_left } else { &mut live };
                        if *pool > 0 {
                            *pool -= 1;
                            now.freed_blocks += 1;
                            now.freed_bytes += 32;
                        }
                    }
                    Op::Look => {
                        ledger.observe(&now);
                        prop_assert!(ledger.blocks_from_before() <= old - old_left);
                        prop_assert!(ledger.live_blocks(0) <= live);
                        if old == 0 {
                            prop_assert_eq!(ledger.live_blocks(0), live, "seen from its birth it is exact");
                        }
                    }
                }
            }
            prop_assert_eq!(*ledger.latest(), now);
        }

        #[test]
        fn the_order_of_looks_does_not_matter(blocks in vec(0u64..1000, 1..20), order in any::<u64>()) {
            let looks: Vec<Snapshot> = blocks
                .iter()
                .scan(0, |sum, more| {
                    *sum += more;
                    Some(Snapshot { allocated_blocks: *sum, freed_blocks: *sum / 2, ..Snapshot::default() })
                })
                .collect();
            let mut shuffled = looks.clone();
            shuffled.rotate_left((order % looks.len() as u64) as usize);
            let read = |looks: &[Snapshot]| {
                let mut ledger = Ledger::default();
                looks.iter().for_each(|look| ledger.observe(look));
                (*ledger.latest(), ledger.blocks_from_before())
            };
            prop_assert_eq!(read(&looks), read(&shuffled));
        }
    }
}
