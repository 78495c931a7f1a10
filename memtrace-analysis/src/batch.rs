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
