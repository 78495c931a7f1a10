//! Chunks of an arena: free ones that merge, and the top.

use alloc::collections::BTreeMap;

/// What must stay at the top, and the least remainder that becomes a chunk.
pub const LEAST: u64 = 32;

#[derive(Clone, Debug, Default)]
pub struct Arena {
    pub top: u64,
    pub top_size: u64,
    /// Free chunks by address; neighbours have merged.
    pub free: BTreeMap<u64, u64>,
    /// A thread arena's segment: begin, end of the usable part, end.
    pub segment: Option<Segment>,
    /// A mapping was needed in place of the break: nothing is contiguous any more.
    pub apart: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub start: u64,
    pub usable_end: u64,
    pub end: u64,
}

impl Arena {
    /// A chunk of `size` bytes without new memory: its address and true size.
    pub fn take(&mut self, size: u64) -> Option<(u64, u64)> {
        let fit = self
            .free
            .iter()
            .find(|(_, free)| **free >= size)
            .map(|(at, free)| (*at, *free));
        if let Some((at, free)) = fit {
            self.free.remove(&at);
            let rest = free.saturating_sub(size);
            if rest < LEAST {
                return Some((at, free));
            }
            self.free.insert(at.saturating_add(size), rest);
            return Some((at, size));
        }
        self.cut(size)
    }

    /// A chunk off the top.
    pub fn cut(&mut self, size: u64) -> Option<(u64, u64)> {
        if self.top_size < size.saturating_add(LEAST) {
            return None;
        }
        let at = self.top;
        self.top = at.saturating_add(size);
        self.top_size = self.top_size.saturating_sub(size);
        Some((at, size))
    }

    /// A chunk is free: it merges with its neighbours. The size of what came of it; the top counts when it is met.
    pub fn give(&mut self, at: u64, size: u64) -> u64 {
        let (mut at, mut size) = (at, size);
        if let Some((before, bytes)) = self.free.range(..at).next_back().map(|(a, b)| (*a, *b))
            && before.saturating_add(bytes) == at
        {
            self.free.remove(&before);
            at = before;
            size = size.saturating_add(bytes);
        }
        let end = at.saturating_add(size);
        if end == self.top {
            self.top = at;
            self.top_size = self.top_size.saturating_add(size);
            return self.top_size;
        }
        if let Some(bytes) = self.free.remove(&end) {
            size = size.saturating_add(bytes);
        }
        self.free.insert(at, size);
        size
    }

    pub const fn top_end(&self) -> u64 {
        self.top.saturating_add(self.top_size)
    }

    /// A new top elsewhere: the old one becomes a free chunk, but for the fence behind it.
    pub fn move_top(&mut self, top: u64, size: u64) {
        let (old, bytes) = (self.top, self.top_size.saturating_sub(LEAST));
        (self.top, self.top_size) = (top, size);
        if bytes >= LEAST {
            self.give(old, bytes & !15);
        }
    }
}
