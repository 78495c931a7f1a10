//! Memory was given back to the system.

use alloc::string::ToString;

use super::Story;
use crate::batch::ArenaKey;
use crate::event::{Entry, Frame, Syscall};
use crate::meaning::{Return, ReturnWay};
use crate::owner::Owner;
use crate::regions::RegionKind;
use crate::rule;
use crate::stream::{News, ReturnEvent};

impl Story {
    pub(super) fn gave_back(&mut self, time_ns: u64, tid: u32, syscall: &Syscall, whose: Owner, returned: &Return) {
        let arena = match returned.way {
            ReturnWay::BreakDown => Some(ArenaKey::Main),
            ReturnWay::ArenaShrunk | ReturnWay::SegmentUnmapped => {
                let segment = self.regions.find(returned.start).map(|region| region.start);
                let read = syscall.heap.filter(|heap| !heap.main).and_then(|heap| heap.arena);
                segment.map(|segment| ArenaKey::Thread(self.arena_of_segment(segment, read)))
            }
            ReturnWay::PagesAdvised => self.arena_of_pages(syscall, returned.start),
            ReturnWay::Munmap | ReturnWay::Remapped => None,
        };
        if let Some(arena) = arena {
            self.growth.returned(arena, returned.bytes);
        }
        match returned.way {
            ReturnWay::Munmap | ReturnWay::SegmentUnmapped => {
                self.regions.remove(syscall.args[0], syscall.args[1]);
                self.segments.remove(&returned.start);
            }
            ReturnWay::Remapped => {
                self.regions.remove(syscall.args[0], syscall.args[1]);
                if let Some((start, bytes)) = returned.remains {
                    self.regions.insert(start, bytes, RegionKind::MappedBlock);
                }
            }
            ReturnWay::BreakDown | ReturnWay::ArenaShrunk | ReturnWay::PagesAdvised => {}
        }
        let Owner::Call { frame, certainty } = whose else {
            return;
        };
        let arguments = certainty.knows_request();
        if frame.entry == Entry::MallocTrim && arguments {
            let earlier = self.trims.returned(time_ns, tid, frame.call, frame.request, returned);
            self.tell_trim(earlier);
        }
        let call = self.threads.enter(tid, frame);
        self.returned.enter(returned, frame, call);
        let predicted_bytes = arguments.then(|| self.predict_trim(syscall, frame, returned)).flatten();
        self.tell(|| {
            News::Returned(ReturnEvent {
                time_ns,
                tid,
                way: way_name(returned.way).to_string(),
                start: returned.start,
                bytes: returned.bytes,
                entry: frame.entry.name().to_string(),
                pointer: (arguments && matches!(frame.entry, Entry::Free | Entry::Realloc)).then_some(frame.argument),
                predicted_bytes,
            })
        });
    }

    /// The arena of pages that malloc_trim gives back in the middle of a heap.
    fn arena_of_pages(&mut self, syscall: &Syscall, start: u64) -> Option<ArenaKey> {
        let segment = self
            .regions
            .find(start)
            .filter(|region| region.kind == RegionKind::ArenaHeap);
        if let Some(segment) = segment.map(|region| region.start) {
            let read = syscall.heap.filter(|heap| !heap.main).and_then(|heap| heap.arena);
            return Some(ArenaKey::Thread(self.arena_of_segment(segment, read)));
        }
        self.regions
            .break_end()
            .is_some_and(|end| start < end)
            .then_some(ArenaKey::Main)
    }

    fn predict_trim(&self, syscall: &Syscall, frame: &Frame, returned: &Return) -> Option<u64> {
        if returned.way != ReturnWay::BreakDown {
            return None;
        }
        let heap = syscall.heap.as_ref().filter(|heap| heap.main)?;
        let pad = match frame.entry {
            Entry::MallocTrim => frame.request,
            _ => heap.thresholds.map(|read| read.top_pad).or(self.threshold.top_pad())?,
        };
        let by = |unit| rule::break_trim(heap.top_size, pad, unit);
        // Transparent huge pages, which malloc may ask for, go as a whole.
        by(rule::HUGE_PAGE)
            .filter(|&bytes| bytes == returned.bytes)
            .or_else(|| by(self.page_size()))
    }
}

const fn way_name(way: ReturnWay) -> &'static str {
    match way {
        ReturnWay::Munmap => "munmap",
        ReturnWay::BreakDown => "break",
        ReturnWay::ArenaShrunk => "arena",
        ReturnWay::SegmentUnmapped => "segment",
        ReturnWay::PagesAdvised => "pages",
        ReturnWay::Remapped => "mremap",
    }
}
