//! From a system call to the allocator call it was made in, where not every call is seen: the stack says which entry
//! point was called, the probes of the slow path what it was asked for.

use memtrace_analysis::event::{Attribution, Entry, Frame, SyscallKind};

use super::held::Waiting;
use super::unwind::{Climb, Found, Registers, Unwinder};

/// A system call as its record has it.
pub struct Made<'a> {
    pub kind: SyscallKind,
    pub registers: Registers,
    pub base: u64,
    pub stack: &'a [u64],
    /// The last call of an entry point that has a probe at this depth.
    pub kept: Option<Kept>,
    /// The last call of the slow path.
    pub slow: Option<Slow>,
    pub in_handler: bool,
    /// The thread's hits so far.
    pub hits: u64,
    /// The slow path has a probe.
    pub requests_seen: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Kept {
    pub slot: u64,
    pub frame: Frame,
}

#[derive(Clone, Copy, Debug)]
pub struct Slow {
    pub slot: u64,
    pub request: u64,
    pub call: u64,
}

/// What is known of a system call's owner.
pub struct Known {
    pub attribution: Attribution,
    pub frame: Option<Frame>,
    /// What was asked for will be known when the slow path is entered.
    pub waiting: Option<Waiting>,
}

impl Known {
    const fn of(attribution: Attribution, frame: Option<Frame>) -> Self {
        Self {
            attribution,
            frame,
            waiting: None,
        }
    }
}

/// Numbers of calls that no probe saw are told from those of hits by this bit.
const UNSEEN: u64 = 1 << 63;

/// Calls of which only system calls are seen: which of them belong to one call.
#[derive(Clone, Debug, Default)]
pub struct Unseen {
    last: Option<(Vec<Entry>, u64, u64, u64)>,
    /// The last system call was one that others of the same call follow.
    goes_on: bool,
    number: u64,
}

impl Unseen {
    /// The number of the call that this system call belongs to. Setting up an arena takes several, and so does giving
    /// back what several segments have; a free that lowers the break or unmaps its block makes one.
    fn number(&mut self, found: &Found, hits: u64, kind: SyscallKind) -> u64 {
        let identity = (found.entries.clone(), found.slot, found.return_address, hits);
        if !(self.goes_on && self.last.as_ref() == Some(&identity)) {
            self.number += 1;
        }
        let reserving = self.goes_on && self.last.as_ref() == Some(&identity) && kind == SyscallKind::Munmap;
        self.goes_on = reserving || matches!(kind, SyscallKind::Mmap | SyscallKind::Mprotect | SyscallKind::Madvise);
        self.last = Some(identity);
        UNSEEN | self.number
    }
}

/// Whose a system call is.
pub fn owner(unwinder: &mut Unwinder, unseen: &mut Unseen, made: &Made<'_>) -> Known {
    let slow_slot = made.slow.map(|slow| slow.slot);
    let found = match unwinder.climb(made.registers, made.base, slow_slot, made.stack) {
        Climb::Call(found) => found,
        Climb::Outside if made.in_handler => return Known::of(Attribution::InSignalHandler, None),
        Climb::Outside => return Known::of(Attribution::Stale, None),
        Climb::Lost => return Known::of(Attribution::Unreadable, None),
        Climb::Perhaps(found) => {
            // Only where the block is known can this be told from the program's own call.
            let frame = entry_alone(&found, unseen.number(&found, made.hits, made.kind));
            return Known::of(Attribution::Unchecked, frame);
        }
    };
    if let Some(kept) = made.kept
        && kept.slot == found.slot
        && leads_to(&kept.frame, &found)
    {
        return Known::of(Attribution::Proven, Some(kept.frame));
    }
    let own = |entry: &Entry| matches!(entry, Entry::Malloc | Entry::Calloc);
    if !made.requests_seen || !found.entries.iter().all(own) {
        let frame = entry_alone(&found, unseen.number(&found, made.hits, made.kind));
        return Known::of(Attribution::EntryOnly, frame);
    }
    if let Some(slow) = made.slow.filter(|_| found.slow_path_is_its_own) {
        let frame = entry_alone(&found, slow.call).map(|frame| Frame {
            request: slow.request,
            ..frame
        });
        return Known::of(Attribution::Proven, frame);
    }
    let frame = entry_alone(&found, unseen.number(&found, made.hits, made.kind));
    Known {
        attribution: Attribution::EntryOnly,
        frame,
        waiting: Some(Waiting {
            entries: found.entries,
            slot: found.slot,
            return_address: found.return_address,
        }),
    }
}

fn entry_alone(found: &Found, call: u64) -> Option<Frame> {
    Some(Frame {
        entry: *found.entries.first()?,
        request: 0,
        argument: 0,
        chunk: None,
        call,
        return_address: found.return_address,
    })
}

/// The frame that was kept is the one found: by what runs in it, and by where it returns to. A return probe puts the
/// address of a trampoline, the first of a page, in the place of the return address.
fn leads_to(kept: &Frame, found: &Found) -> bool {
    let jumps_to_malloc = match kept.entry {
        Entry::Realloc => kept.argument == 0,
        Entry::Memalign | Entry::AlignedAlloc | Entry::PosixMemalign => true,
        _ => false,
    };
    let runs = found.entries.contains(&kept.entry) || jumps_to_malloc && found.entries.contains(&Entry::Malloc);
    let trampoline = matches!(kept.entry, Entry::Realloc | Entry::MallocTrim)
        && found.return_address != 0
        && found.return_address & 0xfff == 0;
    runs && (kept.return_address == found.return_address || trampoline)
}
