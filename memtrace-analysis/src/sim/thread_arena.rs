//! Thread arenas: segments of 64 MiB that become usable step by step.

use super::arena::{Arena, LEAST, Segment};
use super::{Place, Program};
use crate::report::StepKind;
use crate::version::{self, Version};

const SEGMENT: u64 = 64 << 20;

impl Program {
    pub(super) fn layout(&self) -> Version {
        Version::parse(&self.settings.version).unwrap_or(Version { major: 2, minor: 36 })
    }

    /// The end of the page an address lies in, or the address itself where a page begins there.
    pub(super) fn page_end(&self, address: u64) -> u64 {
        address
            .checked_next_multiple_of(self.settings.page_size)
            .unwrap_or(u64::MAX)
    }

    /// A segment of which the first `content` bytes and the pad are usable; None when the system refuses.
    fn new_segment(&mut self, tid: u32, owner: u32, content: u64) -> Option<Segment> {
        let twice = SEGMENT.saturating_mul(2);
        let at = self.mmap(tid, twice, 0, SEGMENT)?;
        let start = at.checked_next_multiple_of(SEGMENT)?;
        let end = start.saturating_add(SEGMENT);
        if start > at {
            self.munmap(tid, at, start.saturating_sub(at));
        }
        self.munmap(tid, end, at.saturating_add(twice).saturating_sub(end));
        let least = 8 * 4096;
        let usable = content.saturating_add(self.settings.top_pad).max(least).min(SEGMENT);
        let usable_end = self.page_end(start.saturating_add(usable));
        self.mprotect(tid, owner, start, usable_end.saturating_sub(start));
        self.true_step(StepKind::ArenaSegment, usable_end.saturating_sub(start));
        Some(Segment { start, usable_end, end })
    }

    /// Gives thread `tid` an arena of its own, as its first allocation does.
    pub(super) fn make_arena(&mut self, tid: u32, request: u64) -> Option<()> {
        let header = version::arena_header(self.layout());
        let segment = self.new_segment(tid, tid, header.saturating_add(request).saturating_add(16))?;
        let top = segment.start.saturating_add(header).checked_next_multiple_of(16)?;
        let top_size = segment.usable_end.saturating_sub(top);
        self.arenas.insert(
            tid,
            Arena {
                top,
                top_size,
                segment: Some(segment),
                ..Arena::default()
            },
        );
        Some(())
    }

    /// Makes room for `size` bytes at the top of `owner`'s arena, in a call of thread `tid`.
    pub(super) fn grow_arena(&mut self, tid: u32, owner: u32, size: u64) -> Option<()> {
        let arena = self.arenas.get(&owner)?.clone();
        let segment = arena.segment?;
        let end = self.page_end(arena.top.saturating_add(size).saturating_add(LEAST));
        if end <= segment.end {
            if end > segment.usable_end {
                let bytes = end.saturating_sub(segment.usable_end);
                self.mprotect(tid, owner, segment.usable_end, bytes);
                self.true_step(StepKind::Arena, bytes);
            }
            let arena = self.arenas.get_mut(&owner)?;
            arena.top_size = end.saturating_sub(arena.top);
            arena.segment = Some(Segment {
                usable_end: end.max(segment.usable_end),
                ..segment
            });
            return Some(());
        }
        let header = version::segment_header(self.layout());
        let segment = self.new_segment(tid, owner, size.saturating_add(LEAST).saturating_add(header))?;
        let top = segment.start.saturating_add(header);
        let arena = self.arenas.get_mut(&owner)?;
        arena.move_top(top, segment.usable_end.saturating_sub(top));
        arena.segment = Some(segment);
        Some(())
    }

    /// Gives back the end of the arena's segment after a large free.
    pub(super) fn shrink_arena(&mut self, tid: u32, owner: u32) -> u64 {
        let Some(arena) = self.arenas.get(&owner).cloned() else {
            return 0;
        };
        let kept = self.page_end(
            arena
                .top
                .saturating_add(LEAST)
                .saturating_add(1)
                .saturating_add(self.settings.top_pad),
        );
        if arena.top_size < self.trim_threshold || kept >= arena.top_end() {
            return 0;
        }
        let bytes = arena.top_end().saturating_sub(kept);
        self.madvise(tid, owner, kept, bytes);
        if let Some(arena) = self.arenas.get_mut(&owner) {
            arena.top_size = kept.saturating_sub(arena.top);
        }
        bytes
    }

    /// The arena that serves a thread: the main thread's is the main arena.
    pub(super) const fn home(&self, tid: u32) -> Place {
        if tid == self.settings.pid {
            Place::Main
        } else {
            Place::Thread(tid)
        }
    }
}
