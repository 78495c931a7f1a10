//! Batches: what was allocated between two growths.
//!
//! As long as a process has one thread, the process's running totals say it exactly. With several threads a growth is
//! one of an arena, and its batch is what the arena's users have allocated since each was last accounted for: the
//! thread that grows it up to this moment, the others up to their last record. What they did since goes into the next
//! batch, so that nothing is counted twice or lost. The block that a growth is made for is served after it, and belongs
//! to the next batch too. A block with a mapping of its own closes the batch of its thread's
//! arena.

use alloc::collections::BTreeMap;

use crate::event::{Frame, Snapshot};
use crate::report::{Batch, BatchScope};

/// Most threads, and most arenas, told apart.
const MAX_KEYS: usize = 16_384;

/// Which arena a growth is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ArenaKey {
    Main,
    /// By the address of its malloc_state, or of its segment where that is not known.
    Thread(u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    blocks: u64,
    bytes: u64,
}

impl Count {
    const fn since(self, earlier: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_sub(earlier.blocks),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_add(other.blocks),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn least(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.min(other.blocks),
            bytes: self.bytes.min(other.bytes),
        }
    }
}

/// A thread.
#[derive(Clone, Copy, Debug, Default)]
struct User {
    seen: Count,
    /// What it has allocated since its arena's batch of this number began; of a later one nothing yet.
    open: Count,
    batch: u64,
    arena: Option<ArenaKey>,
}

/// An arena's batch that is not closed yet. It is kept as a sum, so that closing it does not take a look at every thread.
#[derive(Clone, Copy, Debug, Default)]
struct Arena {
    open: Count,
    /// Counts the batches.
    batch: u64,
    users: usize,
    grown: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Batches {
    users: BTreeMap<u32, User>,
    arenas: BTreeMap<ArenaKey, Arena>,
    process_accounted: Count,
    several_threads: bool,
}

impl Batches {
    /// More than one thread is at work.
    pub const fn set_several_threads(&mut self) {
        self.several_threads = true;
    }

    /// A record of thread `tid`.
    pub fn observe(&mut self, tid: u32, snapshot: &Snapshot) {
        if self.users.len() >= MAX_KEYS && !self.users.contains_key(&tid) {
            return;
        }
        let user = self.users.entry(tid).or_default();
        let seen = Count {
            blocks: user.seen.blocks.max(snapshot.thread_allocated_blocks),
            bytes: user.seen.bytes.max(snapshot.thread_allocated_bytes),
        };
        let more = seen.since(user.seen);
        user.seen = seen;
        if let Some(arena) = user.arena.and_then(|arena| self.arenas.get_mut(&arena)) {
            user.open = user.open_in(arena).plus(more);
            user.batch = arena.batch;
            arena.open = arena.open.plus(more);
        } else {
            user.open = user.open.plus(more);
        }
    }

    /// Closes a batch: `cause` made thread `tid` grow `arena` (None: a mapped block, which is its thread's arena's).
    pub fn close(&mut self, tid: u32, arena: Option<ArenaKey>, cause: Option<&Frame>, snapshot: &Snapshot) -> Batch {
        self.observe(tid, snapshot);
        let of_user = self.users.get(&tid).and_then(|user| user.arena);
        let key = arena.or(of_user).unwrap_or(ArenaKey::Main);
        // The totals count the cause already.
        let own = match cause {
            Some(frame) if frame.makes_block() => Count {
                blocks: 1,
                bytes: frame.request,
            },
            _ => Count::default(),
        };
        let process = Count {
            blocks: snapshot.allocated_blocks,
            bytes: snapshot.allocated_bytes,
        }
        .since(own);
        let by_process = process.since(self.process_accounted);
        self.process_accounted = Count {
            blocks: self.process_accounted.blocks.max(process.blocks),
            bytes: self.process_accounted.bytes.max(process.bytes),
        };
        self.enter(tid, key);
        let (by_arena, users, first) = self.account(tid, key, own);
        let (count, scope) = match (self.several_threads, users) {
            (false, _) => (by_process, BatchScope::Process),
            (true, 0 | 1) => (by_arena, BatchScope::Thread),
            (true, _) => (by_arena, BatchScope::Threads),
        };
        Batch {
            blocks: count.blocks,
            requested_bytes: count.bytes,
            first,
            scope,
        }
    }

    /// Thread `tid` uses that arena from now on, and takes along what is not accounted for.
    fn enter(&mut self, tid: u32, key: ArenaKey) {
        let Some(user) = self.users.get_mut(&tid) else { return };
        if user.arena == Some(key) {
            return;
        }
        if let Some(left) = user.arena.take().and_then(|arena| self.arenas.get_mut(&arena)) {
            user.open = user.open_in(left);
            left.open = left.open.since(user.open);
            left.users = left.users.saturating_sub(1);
        }
        if self.arenas.len() >= MAX_KEYS && !self.arenas.contains_key(&key) {
            return;
        }
        let arena = self.arenas.entry(key).or_default();
        arena.open = arena.open.plus(user.open);
        arena.users = arena.users.saturating_add(1);
        user.batch = arena.batch;
        user.arena = Some(key);
    }

    /// Accounts for all that the users of an arena did but for `own`, thread `tid`'s call, which begins the next batch; how
    /// much that is, how many users there are, and whether it is the arena's first growth.
    fn account(&mut self, tid: u32, key: ArenaKey, own: Count) -> (Count, usize, bool) {
        let user = self.users.get_mut(&tid);
        let Some(arena) = self.arenas.get_mut(&key) else {
            return (Count::default(), 0, true);
        };
        let open_of_user = user.as_ref().map_or_else(Count::default, |user| user.open_in(arena));
        let kept = open_of_user.least(own);
        let sum = arena.open.since(kept);
        let first = !arena.grown;
        arena.grown = true;
        arena.open = kept;
        arena.batch = arena.batch.wrapping_add(1);
        if let Some(user) = user {
            user.open = kept;
            user.batch = arena.batch;
        }
        (sum, arena.users, first)
    }

    /// What it did stays in its arena's batch.
    pub fn exit(&mut self, tid: u32) {
        let user = self.users.remove(&tid);
        let arena = user.and_then(|user| user.arena);
        if let Some(arena) = arena.and_then(|arena| self.arenas.get_mut(&arena)) {
            arena.users = arena.users.saturating_sub(1);
        }
    }

    /// A new program: its arenas are new, the running totals are not.
    pub fn clear(&mut self, snapshot: &Snapshot) {
        *self = Self {
            process_accounted: Count {
                blocks: snapshot.allocated_blocks,
                bytes: snapshot.allocated_bytes,
            },
            users: core::mem::take(&mut self.users),
            ..Self::default()
        };
        for user in self.users.values_mut() {
            *user = User {
                seen: user.seen,
                ..User::default()
            };
        }
    }
}

impl User {
    /// What it has added to the batch that is open in its arena.
    const fn open_in(&self, arena: &Arena) -> Count {
        if self.batch == arena.batch {
            self.open
        } else {
            Count { blocks: 0, bytes: 0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Entry;

    fn frame(call: u64, request: u64) -> Frame {
        Frame {
            entry: Entry::Malloc,
            request,
            argument: 0,
            chunk: None,
            call,
            return_address: 0,
        }
    }

    /// Totals of the process, then of the thread: `bytes` are ten a block.
    fn snapshot(all: u64, thread: u64) -> Snapshot {
        Snapshot {
            allocated_blocks: all,
            allocated_bytes: all * 10,
            thread_allocated_blocks: thread,
            thread_allocated_bytes: thread * 10,
            ..Snapshot::default()
        }
    }

    const ARENA: Option<ArenaKey> = Some(ArenaKey::Thread(1));

    #[test]
    fn one_threads_batches_add_up() {
        let mut batches = Batches::default();
        let first = batches.close(1, Some(ArenaKey::Main), Some(&frame(1, 10)), &snapshot(1, 1));
        assert_eq!((first.blocks, first.first, first.scope), (0, true, BatchScope::Process));
        // Nine more, the ninth of which makes the next growth; a mapped block closes a batch too.
        let second = batches.close(1, None, Some(&frame(9, 10)), &snapshot(10, 10));
        assert_eq!((second.blocks, second.requested_bytes, second.first), (9, 90, false));
        let third = batches.close(1, Some(ArenaKey::Main), Some(&frame(30, 10)), &snapshot(30, 30));
        assert_eq!(third.blocks, 20);
    }

    #[test]
    fn a_call_that_grows_twice_has_an_empty_second_batch() {
        let mut batches = Batches::default();
        batches.close(1, Some(ArenaKey::Main), Some(&frame(5, 10)), &snapshot(5, 5));
        let again = batches.close(1, None, Some(&frame(5, 10)), &snapshot(5, 5));
        assert_eq!((again.blocks, again.requested_bytes), (0, 0));
    }

    #[test]
    fn an_arenas_batch_is_its_users() {
        let mut batches = Batches::default();
        batches.set_several_threads();
        // Threads 1 and 2 share an arena, thread 3 has another one.
        batches.close(1, ARENA, Some(&frame(1, 10)), &snapshot(1, 1));
        batches.close(2, ARENA, Some(&frame(1, 10)), &snapshot(2, 1));
        batches.close(3, Some(ArenaKey::Thread(2)), Some(&frame(1, 10)), &snapshot(1000, 999));
        batches.observe(2, &snapshot(1006, 7));
        let batch = batches.close(1, ARENA, Some(&frame(5, 10)), &snapshot(1010, 5));
        // Thread 1: its 2nd to 4th, the 1st being in the batch of thread 2's growth; thread 2: its 1st to 7th.
        assert_eq!((batch.blocks, batch.scope), (3 + 7, BatchScope::Threads));
    }

    #[test]
    fn a_thread_that_has_ended_leaves_its_blocks_to_its_arena() {
        let mut batches = Batches::default();
        batches.set_several_threads();
        batches.close(1, ARENA, Some(&frame(1, 10)), &snapshot(1, 1));
        batches.close(2, ARENA, Some(&frame(1, 10)), &snapshot(2, 1));
        batches.observe(2, &snapshot(9, 8));
        batches.exit(2);
        let batch = batches.close(1, ARENA, Some(&frame(2, 10)), &snapshot(10, 2));
        assert_eq!((batch.blocks, batch.scope), (8, BatchScope::Thread));
    }

    #[test]
    fn what_is_no_block_counts_as_none() {
        let mut batches = Batches::default();
        let realloc = Frame {
            entry: Entry::Realloc,
            argument: 0x1000,
            ..frame(3, 50)
        };
        let batch = batches.close(1, Some(ArenaKey::Main), Some(&realloc), &snapshot(4, 4));
        assert_eq!(batch.blocks, 4, "realloc of a block is no block of its own");
    }

    #[test]
    fn a_thread_takes_what_is_open_to_its_next_arena() {
        let mut batches = Batches::default();
        batches.set_several_threads();
        batches.close(1, ARENA, Some(&frame(1, 10)), &snapshot(1, 1));
        batches.close(2, ARENA, Some(&frame(1, 10)), &snapshot(2, 1));
        batches.observe(1, &snapshot(6, 5));
        let other = batches.close(1, Some(ArenaKey::Thread(2)), Some(&frame(9, 10)), &snapshot(10, 9));
        assert_eq!(
            other.blocks, 7,
            "its 2nd to 8th: its 1st was in the batch of thread 2's growth"
        );
        let left = batches.close(2, ARENA, Some(&frame(3, 10)), &snapshot(12, 3));
        assert_eq!(
            (left.blocks, left.scope),
            (2, BatchScope::Thread),
            "its own 1st and 2nd"
        );
    }

    /// What each thread has allocated is in one batch, and once, whatever the order.
    #[test]
    fn no_block_is_counted_twice_or_lost() {
        let mut batches = Batches::default();
        batches.set_several_threads();
        let (mut totals, mut process, mut counted, mut chance) = ([0_u64; 6], 0, 0, 7_u64);
        for _ in 0..5_000 {
            chance = chance
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let (thread, arena) = ((chance >> 33) as usize % 6, chance >> 40 & 1);
            totals[thread] += 1 + (chance >> 50) % 4;
            process = totals.iter().sum();
            let seen = snapshot(process, totals[thread]);
            if chance >> 63 == 0 {
                batches.observe(thread as u32, &seen);
            } else {
                let cause = frame(totals[thread], 10);
                counted += batches
                    .close(thread as u32, Some(ArenaKey::Thread(arena)), Some(&cause), &seen)
                    .blocks;
            }
        }
        for thread in 0..6 {
            let seen = snapshot(process, totals[thread as usize]);
            for arena in [0, 1] {
                counted += batches.close(thread, Some(ArenaKey::Thread(arena)), None, &seen).blocks;
            }
        }
        assert_eq!(counted, process);
    }
}
