//! Memory was taken from the system: the step, held against the rule, with its cause and its batch.

use alloc::string::ToString;

use super::Story;
use super::syscall::thresholds;
use crate::batch::ArenaKey;
use crate::chunk;
use crate::event::{Frame, HeapState, Syscall};
use crate::growth;
use crate::meaning::Growth;
use crate::owner::Owner;
use crate::predict::{self, Known};
use crate::regions::RegionKind;
use crate::report::{self, Cause, StepKind};
use crate::rule::HEAP_MAX;
use crate::stream::News;

/// Segments whose arena is remembered.
const MAX_SEGMENTS: usize = 16_384;

const UNSEEN_BEGIN: &str = "system calls were not watched just before it: where it began is malloc's word, which knows of no sbrk of \
                           the program's own";

impl Story {
    /// `begin_seen`: where the break was before this is known from an earlier system call or a look from outside, not from malloc's
    /// books alone.
    pub(super) fn grown(
        &mut self,
        time_ns: u64,
        tid: u32,
        syscall: &Syscall,
        whose: Owner,
        growth: &Growth,
        begin_seen: bool,
    ) {
        let arena = self.arena_of(growth, syscall.heap.as_ref());
        let (frame, cause) = self.cause(syscall, whose);
        let batch = match frame {
            Some(frame) => {
                let counted = self.watch.counts_since_last_growth();
                let batch = self.batches.close(tid, arena, Some(frame), &syscall.snapshot);
                counted.then_some(batch)
            }
            // What others take closes nobody's batch.
            None => Some(report::Batch::default()),
        };
        let mut step = growth::step(growth, time_ns, tid, cause, batch);
        step.arena = match arena {
            Some(ArenaKey::Thread(address)) => Some(address),
            Some(ArenaKey::Main) | None => None,
        };
        let request_known = matches!(whose, Owner::Call { certainty, .. } if certainty.knows_request());
        if frame.is_some() && !request_known {
            step.reason = Some("what was asked for is not known at this depth".to_string());
        } else if let Some(frame) = frame {
            let call = self.threads.current(tid, frame);
            let prediction = predict::predict(
                growth,
                &Known {
                    frame,
                    heap: syscall.heap.as_ref(),
                    top_pad: thresholds(syscall)
                        .map(|read| read.top_pad)
                        .or(self.threshold.top_pad()),
                    page_size: self.page_size(),
                    version: self.version,
                    break_steps: call.break_steps,
                },
            );
            let served = prediction.chunk.or(chunk::asked_of_arena(frame, self.page_size()));
            step.predicted_bytes = prediction.bytes;
            step.reason = prediction.reason;
            let differs = step.predicted_bytes.is_some_and(|predicted| predicted != step.bytes);
            if differs && !begin_seen && step.reason.is_none() {
                step.reason = Some(UNSEEN_BEGIN.to_string());
            }
            if let Some(chunk) = served.filter(|_| growth.kind != StepKind::Mremap) {
                let own_mapping = growth.kind == StepKind::Mmap;
                let in_force = thresholds(syscall).map(|read| read.mmap_threshold);
                self.threshold
                    .large_request(chunk, own_mapping, call.map_refused, in_force);
            }
        } else {
            step.reason = Some(match whose {
                Owner::Unknown if self.start.is_some() && !self.tells_owners() => {
                    "the allocator's calls are not watched, so whose step it is cannot be told".to_string()
                }
                Owner::Unknown => "whose step it is could not be told".to_string(),
                _ if self.start.is_some() && !self.tells_owners() => {
                    "made by an allocator, or a program, whose calls are not watched".to_string()
                }
                _ => "moved outside the allocator (sbrk or brk of the program's own)".to_string(),
            });
        }
        let matching = frame.is_some() && step.predicted_bytes == Some(step.bytes);
        self.remember_growth(tid, frame, growth);
        self.tell(|| News::Growth(step.clone()));
        self.growth.enter(growth::Entry { step, arena, matching });
    }

    fn cause<'a>(&self, syscall: &'a Syscall, whose: Owner<'a>) -> (Option<&'a Frame>, Cause) {
        match whose {
            Owner::Call { frame, certainty } => (
                Some(frame),
                growth::cause(frame.entry.name(), frame.request, certainty.name()),
            ),
            Owner::Direct { .. } => (None, growth::cause(report::DIRECT, 0, report::DIRECT)),
            Owner::Unknown => {
                let request = syscall.args[0];
                (None, growth::cause(report::UNKNOWN, request, report::UNKNOWN))
            }
        }
    }

    /// The arena a growth is one of; None for mapped blocks.
    fn arena_of(&mut self, growth: &Growth, heap: Option<&HeapState>) -> Option<ArenaKey> {
        match growth.kind {
            StepKind::Brk | StepKind::MmapMain => Some(ArenaKey::Main),
            StepKind::Mmap | StepKind::Mremap => None,
            StepKind::Arena | StepKind::ArenaSegment => {
                let segment = self
                    .regions
                    .find(growth.from)
                    .map_or(growth.from, |region| region.start);
                let read = heap.filter(|heap| !heap.main).and_then(|heap| heap.arena);
                Some(ArenaKey::Thread(self.arena_of_segment(segment, read)))
            }
        }
    }

    /// A segment's arena: as read, as read before, else the segment's own address stands for it.
    pub(super) fn arena_of_segment(&mut self, segment: u64, read: Option<u64>) -> u64 {
        let known = self.segments.get(&segment).copied();
        let Some(arena) = read.or(known) else { return segment };
        if known.is_none() && self.segments.len() < MAX_SEGMENTS {
            self.segments.insert(segment, arena);
            self.growth.rename(ArenaKey::Thread(segment), ArenaKey::Thread(arena));
        }
        arena
    }

    fn remember_growth(&mut self, tid: u32, frame: Option<&Frame>, growth: &Growth) {
        if let Some(frame) = frame {
            let call = self.threads.enter(tid, frame);
            call.starved = false;
            // What was refused has been made up for; the call may need memory once more.
            (call.break_refused, call.map_refused, call.segment_refused) = (false, false, false);
            if growth.kind == StepKind::Brk {
                call.break_steps = call.break_steps.saturating_add(1);
            }
        }
        let bytes = growth.bytes();
        match growth.kind {
            StepKind::Brk => {}
            StepKind::Mmap => self.regions.insert(growth.from, bytes, RegionKind::MappedBlock),
            StepKind::MmapMain => {
                self.regions.insert(growth.from, bytes, RegionKind::MainPiece);
            }
            StepKind::Mremap => {
                if let Some((start, old)) = growth.replaced {
                    self.regions.remove(start, old);
                    self.regions.insert(
                        growth.from.saturating_sub(old),
                        bytes.saturating_add(old),
                        RegionKind::MappedBlock,
                    );
                }
            }
            StepKind::ArenaSegment => {
                let reserved = self
                    .regions
                    .find(growth.from)
                    .map_or(HEAP_MAX, |region| region.end.saturating_sub(growth.from));
                self.regions.insert(growth.from, reserved, RegionKind::ArenaHeap);
                if let Some(region) = self.regions.at_mut(growth.from) {
                    region.usable = bytes;
                }
            }
            StepKind::Arena => {
                let start = self.regions.find(growth.from).map(|region| region.start);
                if let Some(region) = start.and_then(|start| self.regions.at_mut(start)) {
                    region.usable = growth.to.saturating_sub(region.start);
                }
            }
        }
    }
}
