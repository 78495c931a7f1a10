//! The simulated process's system calls, each of which becomes an event.

use alloc::boxed::Box;

use super::{Program, TrueStep};
use crate::event::{Attribution, EventKind, HeapState, Syscall, SyscallKind};
use crate::report::StepKind;

const ENOMEM: i64 = -12;

impl Program {
    /// `books`: address of the arena, whether it is the main one, its top and the top's size.
    fn syscall(&mut self, tid: u32, kind: SyscallKind, args: [u64; 6], result: i64, books: Option<HeapState>) {
        let enter_ns = self.clock_ns;
        let event = Syscall {
            kind,
            args,
            result,
            enter_ns,
            attribution: if self.frame.is_some() {
                Attribution::Proven
            } else {
                Attribution::None
            },
            frame: self.frame,
            ip: None,
            stack: [0; 8],
            heap: books,
            snapshot: self.snapshot(tid),
            resident_bytes: None,
        };
        let failed = crate::tally::failed(&event);
        let place = SyscallKind::ALL.iter().position(|known| *known == kind).unwrap_or(0);
        for (table, counts) in [
            (&mut self.totals.syscalls, true),
            (&mut self.totals.syscalls_failed, failed),
        ] {
            if let (Some(count), true) = (table.get_mut(place), counts) {
                super::add(count, 1);
            }
        }
        self.emit(tid, EventKind::Syscall(Box::new(event)));
    }

    pub(super) fn main_books(&self) -> HeapState {
        HeapState {
            arena: Some(0x7fff_0000_0c80),
            main: true,
            top: self.main.top,
            top_size: self.main.top_size,
            thresholds: Some(self.thresholds()),
        }
    }

    fn arena_books(&self, tid: u32) -> HeapState {
        let arena = self.arenas.get(&tid).cloned().unwrap_or_default();
        HeapState {
            arena: arena.segment.map(|segment| segment.start.saturating_add(48)),
            main: false,
            top: arena.top,
            top_size: arena.top_size,
            thresholds: Some(self.thresholds()),
        }
    }

    /// Moves the break by `bytes`; where it was, or None when refused.
    pub(super) fn brk(&mut self, tid: u32, to: u64) -> Option<u64> {
        let from = self.break_end;
        let refused = self.refuse_break && to > from;
        let at = if refused { from } else { to };
        self.break_end = at;
        let books = self.main_books();
        self.syscall(
            tid,
            SyscallKind::Brk,
            [to, 0, 0, 0, 0, 0],
            at.cast_signed(),
            Some(books),
        );
        if refused {
            return None;
        }
        if to > from {
            self.true_step(StepKind::Brk, to.saturating_sub(from));
        }
        Some(from)
    }

    pub(super) fn true_step(&mut self, kind: StepKind, bytes: u64) {
        let by_allocator = self.frame.is_some();
        self.truth.steps.push(TrueStep {
            kind,
            bytes,
            by_allocator,
        });
    }

    /// Maps `bytes`, aligned to `alignment`; None when refused.
    pub(super) fn mmap(&mut self, tid: u32, bytes: u64, protection: u64, alignment: u64) -> Option<u64> {
        let at = self
            .next_mapping
            .checked_next_multiple_of(alignment)
            .unwrap_or(self.next_mapping);
        let at = if alignment > self.settings.page_size {
            at.saturating_add(self.settings.page_size)
        } else {
            at
        };
        let refused = self.refuse_mappings;
        if !refused {
            self.next_mapping = at.saturating_add(bytes).saturating_add(self.settings.page_size);
        }
        let result = if refused { ENOMEM } else { at.cast_signed() };
        let books = self.main_books();
        // Private and anonymous, no file.
        self.syscall(
            tid,
            SyscallKind::Mmap,
            [0, bytes, protection, 0x22, u64::MAX, 0],
            result,
            Some(books),
        );
        (!refused).then_some(at)
    }

    pub(super) fn munmap(&mut self, tid: u32, at: u64, bytes: u64) {
        let books = self.main_books();
        self.syscall(tid, SyscallKind::Munmap, [at, bytes, 0, 0, 0, 0], 0, Some(books));
    }

    /// Makes a mapping longer or shorter, where it is.
    pub(super) fn mremap(&mut self, tid: u32, at: u64, old: u64, new: u64) {
        let books = self.main_books();
        self.syscall(
            tid,
            SyscallKind::Mremap,
            [at, old, new, 1, 0, 0],
            at.cast_signed(),
            Some(books),
        );
    }

    pub(super) fn mprotect(&mut self, tid: u32, owner: u32, at: u64, bytes: u64) {
        let books = self.arena_books(owner);
        self.syscall(tid, SyscallKind::Mprotect, [at, bytes, 3, 0, 0, 0], 0, Some(books));
    }

    pub(super) fn madvise(&mut self, tid: u32, owner: u32, at: u64, bytes: u64) {
        let books = self.arena_books(owner);
        self.syscall(tid, SyscallKind::Madvise, [at, bytes, 4, 0, 0, 0], 0, Some(books));
    }
}
