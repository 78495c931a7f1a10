//! Batches: what was allocated between two growths.
//!
//! As long as a process has one thread, the process's running totals say it exactly. With several threads a growth is
//! one of an arena, and its batch is what the arena's users have allocated since each was last accounted for: the
//! thread that grows it up to this moment, the others up to their last record. What they did since goes into the next
//! batch, so that nothing is counted twice or lost. The block that a growth is made for is served after it, and belongs
//! to the next batch too. A block with a mapping of its own closes the batch of its thread's
//! arena.

use alloc::collections::{BTreeMap, BTreeSet};

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
}

#[derive(Clone, Copy, Debug, Default)]
struct User {
    seen: Count,
    accounted: Count,
    arena: Option<ArenaKey>,
}

#[derive(Clone, Debug, Default)]
pub struct Batches {
    users: BTreeMap<u32, User>,
    grown: BTreeSet<ArenaKey>,
    /// What threads that have ended left unaccounted for.
    left: BTreeMap<ArenaKey, Count>,
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
        if let Some(user) = self.user(tid) {
            user.seen.blocks = user.seen.blocks.max(snapshot.thread_allocated_blocks);
            user.seen.bytes = user.seen.bytes.max(snapshot.thread_allocated_bytes);
        }
    }

    fn user(&mut self, tid: u32) -> Option<&mut User> {
        if self.users.len() >= MAX_KEYS && !self.users.contains_key(&tid) {
            return None;
        }
        Some(self.users.entry(tid).or_default())
    }

    /// Closes a batch: `cause` made thread `tid` grow `arena` (None: a mapped block, which is its thread's arena's).
    pub fn close(&mut self, tid: u32, arena: Option<ArenaKey>, cause: Option<&Frame>, snapshot: &Snapshot) -> Batch {
        self.observe(tid, snapshot);
        let of_user = self.users.get(&tid).and_then(|user| user.arena);
        let arena = arena.or(of_user).unwrap_or(ArenaKey::Main);
        let first = !self.grown.contains(&arena);
        if self.grown.len() < MAX_KEYS {
            self.grown.insert(arena);
        }
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
        let (by_arena, users) = self.account(tid, arena, own);
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

    /// Accounts for all users of `arena` but for `own`, thread `tid`'s call; what they allocated, and how many they are.
    fn account(&mut self, tid: u32, arena: ArenaKey, own: Count) -> (Count, usize) {
        if let Some(user) = self.user(tid) {
            user.arena = Some(arena);
        }
        let mut sum = self.left.remove(&arena).unwrap_or_default();
        let mut users: usize = 0;
        for (&id, user) in self.users.iter_mut().filter(|(_, user)| user.arena == Some(arena)) {
            let done = if id == tid { user.seen.since(own) } else { user.seen };
            sum = sum.plus(done.since(user.accounted));
            user.accounted = done;
            users = users.saturating_add(1);
        }
        (sum, users)
    }

    pub fn exit(&mut self, tid: u32) {
        let Some(User {
            seen,
            accounted,
            arena: Some(arena),
            ..
        }) = self.users.remove(&tid)
        else {
            return;
        };
        if self.left.len() < MAX_KEYS {
            let left = self.left.entry(arena).or_default();
            *left = left.plus(seen.since(accounted));
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
                accounted: user.seen,
                ..User::default()
            };
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
}
