//! Events put into the order of their times.
//!
//! Records of several CPUs enter the ring buffer slightly out of order, since a record's time is taken before its place
//! in the buffer. An event is held back until one that is `WINDOW_NS` younger has been seen, or too many wait. One that
//! comes later than that is passed on as it is, and counted. Equal times keep the order of arrival, which is the
//! thread's own order.
//!
//! What was read from outside says nothing of how far the buffer has been read, which may be far behind: only records,
//! and ticks, which come when all records before them have been read, set others free.

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
        // A tick is of when the buffer began to be read, and so older than what was found in it.
        if event.time_ns < self.passed_ns && !matches!(event.kind, EventKind::Tick) {
            self.late = self.late.saturating_add(1);
        }
        match event.kind {
            EventKind::End { .. } => self.newest_ns = u64::MAX,
            EventKind::Tick
            | EventKind::Syscall(_)
            | EventKind::TrimBegin(_)
            | EventKind::TrimEnd(_)
            | EventKind::Fork { .. }
            | EventKind::Exec
            | EventKind::ThreadStart { .. }
            | EventKind::ThreadExit
            | EventKind::ProcessExit { .. } => self.newest_ns = self.newest_ns.max(event.time_ns),
            EventKind::Start(_)
            | EventKind::Totals(_)
            | EventKind::Sample(_)
            | EventKind::Modules(_)
            | EventKind::Look { .. }
            | EventKind::Watching(_)
            | EventKind::Cost(_) => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn event(time_ns: u64, tid: u32) -> Event {
        Event {
            time_ns,
            pid: 1,
            tid,
            kind: EventKind::ThreadExit,
        }
    }

    fn passed(sequence: &mut Sequence) -> Vec<(u64, u32)> {
        core::iter::from_fn(|| sequence.next_ready())
            .map(|event| (event.time_ns, event.tid))
            .collect()
    }

    /// Everything that comes out when `times` go in, what waits at the end included.
    fn through(times: &[u64]) -> (Vec<(u64, u32)>, u64) {
        let mut sequence = Sequence::default();
        let mut out = Vec::new();
        for (number, time) in times.iter().enumerate() {
            sequence.push(event(*time, number as u32));
            out.extend(passed(&mut sequence));
        }
        out.extend(sequence.waiting().iter().map(|event| (event.time_ns, event.tid)));
        (out, sequence.late())
    }

    #[test]
    fn what_is_read_from_outside_does_not_let_records_pass_out_of_order() {
        let sample = Event {
            kind: EventKind::Modules(Vec::new()),
            ..event(1_000_000_000, 9)
        };
        let mut sequence = Sequence::default();
        let mut out = Vec::new();
        // A look at the process while the buffer holds records of long ago, which two CPUs have mixed.
        let records = [(10, 0), (9, 1), (12, 2), (11, 3)].map(|(time, tid)| event(time, tid));
        for event in [sample].into_iter().chain(records) {
            sequence.push(event);
            out.extend(passed(&mut sequence));
        }
        sequence.push(event(2_000_000_000, 8));
        out.extend(passed(&mut sequence));
        assert_eq!(out, [(9, 1), (10, 0), (11, 3), (12, 2), (1_000_000_000, 9)]);
        assert_eq!(sequence.late(), 0);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_doubled(times in vec(any::<u64>(), 0..50)) {
            let (mut out, _) = through(&times);
            out.sort_by_key(|(_, number)| *number);
            let expected: Vec<(u64, u32)> = times.iter().copied().zip(0..).collect();
            prop_assert_eq!(out, expected);
        }

        #[test]
        fn disorder_within_the_window_is_put_right(
            steps in vec((0u64..WINDOW_NS / 4, 0u64..WINDOW_NS), 0..300),
        ) {
            // True times go up; each arrives late by less than the window.
            let mut clock = 0;
            let mut arrivals: Vec<(u64, u64)> = steps
                .iter()
                .map(|(step, delay)| {
                    clock += step;
                    (clock + delay, clock)
                })
                .collect();
            arrivals.sort();
            let times: Vec<u64> = arrivals.iter().map(|(_, time)| *time).collect();
            let (out, late) = through(&times);
            prop_assert!(out.windows(2).all(|pair| pair[0].0 <= pair[1].0));
            prop_assert_eq!(late, 0);
            // Equal times keep the order of their arrival.
            prop_assert!(out.windows(2).all(|pair| pair[0].0 < pair[1].0 || pair[0].1 < pair[1].1));
        }
    }

    #[test]
    fn the_end_sets_everything_free() {
        let mut sequence = Sequence::default();
        sequence.push(event(10, 1));
        sequence.push(event(5, 2));
        assert_eq!(passed(&mut sequence), []);
        let end = EventKind::End {
            reason: crate::event::EndReason::TimeUp,
        };
        sequence.push(Event {
            kind: end,
            ..event(11, 3)
        });
        assert_eq!(passed(&mut sequence), [(5, 2), (10, 1), (11, 3)]);
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut sequence = Sequence::default();
        for number in 0..10 * MAX_WAITING {
            sequence.push(event(7, number as u32));
            passed(&mut sequence);
        }
        assert_eq!(sequence.waiting().len(), MAX_WAITING);
    }
}
