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
