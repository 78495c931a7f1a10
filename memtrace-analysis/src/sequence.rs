//! Events put into the order of their times.
//!
//! Records of several CPUs enter the ring buffer slightly out of order, since a record's time is taken before its place
//! in the buffer. An event is held back until one that is `WINDOW_NS` younger has been seen, or too many wait. One that
//! comes later than that is passed on as it is, and counted. Equal times keep the order of arrival, which is the
//! thread's own order.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::event::{Event, EventKind};

/// How much younger an event must have been seen before one is passed on.
const WINDOW_NS: u64 = 5_000_000;
/// Most events held back.
const MAX_WAITING: usize = 512;

#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// In order of time.
    waiting: VecDeque<Event>,
    newest_ns: u64,
    passed_ns: u64,
    late: u64,
}

impl Sequence {
    /// Takes an event in; what it sets free is to be taken with [`Self::next_ready`].
    pub fn push(&mut self, event: Event) {
        if event.time_ns < self.passed_ns {
            self.late = self.late.saturating_add(1);
        }
        if matches!(event.kind, EventKind::End { .. }) {
            self.newest_ns = u64::MAX;
        } else {
            self.newest_ns = self.newest_ns.max(event.time_ns);
        }
        let place = self.waiting.partition_point(|waiting| waiting.time_ns <= event.time_ns);
        self.waiting.insert(place, event);
    }

    /// The next event whose turn has come.
    pub fn next_ready(&mut self) -> Option<Event> {
        let oldest = self.waiting.front()?.time_ns;
        let due = oldest.saturating_add(WINDOW_NS) <= self.newest_ns || self.waiting.len() > MAX_WAITING;
        if !due {
            return None;
        }
        self.passed_ns = self.passed_ns.max(oldest);
        self.waiting.pop_front()
    }

    /// What still waits, in order.
    pub fn waiting(&self) -> Vec<Event> {
        self.waiting.iter().cloned().collect()
    }

    /// Events that came after a younger one had been passed on.
    pub const fn late(&self) -> u64 {
        self.late
    }
}
