//! A memory system call: whose it is, what it means, which books it goes into.

use super::Story;
use crate::chunk::SizeField;
use crate::event::{AllocatorKind, Entry, Frame, Syscall, SyscallKind, Thresholds};
use crate::meaning::{self, Meaning, Surroundings};
use crate::owner::{self, Certainty, Owner, mman};
use crate::regions::RegionKind;

impl Story {
    pub(super) fn syscall(&mut self, time_ns: u64, tid: u32, syscall: &Syscall) {
        self.snapshot(tid, &syscall.snapshot);
        self.resident(syscall.resident_bytes);
        let mut whose = owner::owner(syscall, &self.regions, self.page_size());
        if syscall.kind == SyscallKind::Brk && self.may_be_unwatched_malloc(syscall) {
            whose = Owner::Unknown;
        }
        self.tally.count(syscall, whose);
        let frame = match whose {
            Owner::Call { frame, .. } => Some(frame),
            Owner::Direct { .. } | Owner::Unknown => None,
        };
        match whose {
            Owner::Call { frame, certainty } => {
                self.threads.enter(tid, frame);
                if certainty != Certainty::Likely {
                    self.outside.origins.allocator_call(syscall);
                }
            }
            Owner::Direct { .. } | Owner::Unknown => {}
        }
        self.freed_mapped(time_ns, syscall, frame);
        self.heap(time_ns, syscall.heap.as_ref(), &syscall.snapshot);
        let around = Surroundings {
            regions: &self.regions,
            call: frame.map(|frame| self.threads.current(tid, frame)).unwrap_or_default(),
            mmap_threshold: thresholds(syscall)
                .map(|read| read.mmap_threshold)
                .or(self.threshold.mmap_threshold()),
            page_size: self.page_size(),
            version: self.version,
            request_known: !matches!(whose, Owner::Call { certainty, .. } if !certainty.knows_request()),
        };
        let meaning = meaning::read(syscall, whose, &around);
        let begin_seen = syscall.kind != SyscallKind::Brk || self.regions.break_end().is_some();
        if syscall.kind == SyscallKind::Brk {
            self.regions.set_break(syscall.result.cast_unsigned());
            self.break_begin = self.break_begin.or(self.regions.break_end());
        }
        match meaning {
            Meaning::Growth(growth) => self.grown(time_ns, tid, syscall, whose, &growth, begin_seen),
            Meaning::Return(returned) => self.gave_back(time_ns, tid, syscall, whose, &returned),
            Meaning::Refused => {
                if let Some(frame) = frame {
                    let call = self.threads.enter(tid, frame);
                    call.starved = true;
                    call.break_refused |= syscall.kind == SyscallKind::Brk;
                    call.map_refused |= syscall.kind == SyscallKind::Mmap;
                    call.segment_refused |= syscall.kind == SyscallKind::Mmap && syscall.args[2] == mman::PROT_NONE;
                }
            }
            Meaning::Reserved { start, bytes } => {
                self.regions.insert(start, bytes, RegionKind::Reservation);
                if let Some(frame) = frame {
                    let call = self.threads.enter(tid, frame);
                    call.reserved = Some((start, start.saturating_add(bytes)));
                    call.starved = false;
                }
            }
            Meaning::ReservationTrimmed => {
                self.regions.remove(syscall.args[0], syscall.args[1]);
            }
            Meaning::BreakAsked { .. } | Meaning::Nothing | Meaning::Direct => {}
        }
        if let Owner::Direct { in_handler } = whose {
            self.outside.enter(syscall, in_handler, &meaning, &mut self.regions);
        }
    }

    /// Where no allocator is watched, its own growths look like the program's, unless its code is a file of its own.
    fn may_be_unwatched_malloc(&self, syscall: &Syscall) -> bool {
        let Some(start) = self.start.as_ref().filter(|_| !self.tells_owners()) else {
            return false;
        };
        match start.allocator.kind {
            AllocatorKind::Jemalloc | AllocatorKind::Tcmalloc | AllocatorKind::Mimalloc => false,
            AllocatorKind::Glibc | AllocatorKind::GlibcStatic | AllocatorKind::Musl | AllocatorKind::Unknown => {
                !self.outside.is_apart(syscall, &self.regions)
            }
        }
    }

    /// free of a mapped chunk: the thresholds follow, before its munmap.
    fn freed_mapped(&mut self, time_ns: u64, syscall: &Syscall, frame: Option<&Frame>) {
        let Some(Frame {
            entry: Entry::Free,
            chunk: Some(field),
            ..
        }) = frame
        else {
            return;
        };
        if syscall.kind != SyscallKind::Munmap || !SizeField(*field).mapped() {
            return;
        }
        let before = self.threshold.changes();
        self.threshold
            .mapped_chunk_freed(time_ns, SizeField(*field).bytes(), thresholds(syscall).as_ref());
        self.tell_threshold(before);
    }
}

/// Thresholds as read at a system call.
pub fn thresholds(syscall: &Syscall) -> Option<Thresholds> {
    syscall.heap.and_then(|heap| heap.thresholds)
}
