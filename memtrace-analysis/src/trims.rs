//! malloc_trim calls: from entry to return, with the system calls in their course.

use alloc::collections::BTreeMap;

use crate::event::Trim;
use crate::kept::Kept;
use crate::meaning::{Return, ReturnWay};
use crate::report::{TrimReport, TrimSide};

/// Calls kept of the begin, and as many of the end.
const MAX_TRIMS: usize = 500;
/// Most calls in progress at a time.
const MAX_OPEN: usize = 4096;

#[derive(Clone, Debug)]
struct Open {
    call: u64,
    report: TrimReport,
}

#[derive(Clone, Debug)]
pub struct TrimBook {
    done: Kept<TrimReport>,
    open: BTreeMap<u32, Open>,
}

impl Default for TrimBook {
    fn default() -> Self {
        Self {
            done: Kept::new(MAX_TRIMS),
            open: BTreeMap::new(),
        }
    }
}

impl TrimBook {
    /// A call begins: what was open in this thread has returned unseen, and is given back.
    pub fn begin(&mut self, time_ns: u64, tid: u32, trim: &Trim, break_end: Option<u64>) -> Option<TrimReport> {
        let before = TrimSide {
            break_end,
            resident_bytes: trim.resident_bytes,
        };
        self.start(time_ns, tid, trim.call, trim.pad, before)
    }

    fn start(&mut self, time_ns: u64, tid: u32, call: u64, pad: u64, before: TrimSide) -> Option<TrimReport> {
        let earlier = self.close(tid);
        let report = TrimReport {
            time_ns,
            end_ns: None,
            tid,
            pad,
            before,
            after: None,
            returned_bytes: 0,
            break_lowered_bytes: 0,
            madvised_bytes: 0,
            madvise_calls: 0,
            unmapped_bytes: 0,
            result: None,
        };
        if self.open.len() < MAX_OPEN {
            self.open.insert(tid, Open { call, report });
        }
        earlier
    }

    /// A system call in the course of malloc_trim number `call` of this thread. One whose entry was not seen begins
    /// with its first system call.
    pub fn returned(&mut self, time_ns: u64, tid: u32, call: u64, pad: u64, returned: &Return) -> Option<TrimReport> {
        let known = self.open.get(&tid).is_some_and(|open| open.call == call);
        let earlier = if known {
            None
        } else {
            self.start(
                time_ns,
                tid,
                call,
                pad,
                TrimSide {
                    break_end: None,
                    resident_bytes: None,
                },
            )
        };
        if let Some(Open { report, .. }) = self.open.get_mut(&tid) {
            report.returned_bytes = report.returned_bytes.saturating_add(returned.bytes);
            let sum = match returned.way {
                ReturnWay::BreakDown => &mut report.break_lowered_bytes,
                ReturnWay::PagesAdvised | ReturnWay::ArenaShrunk => {
                    report.madvise_calls = report.madvise_calls.saturating_add(1);
                    &mut report.madvised_bytes
                }
                ReturnWay::Munmap | ReturnWay::SegmentUnmapped | ReturnWay::Remapped => &mut report.unmapped_bytes,
            };
            *sum = sum.saturating_add(returned.bytes);
        }
        earlier
    }

    /// A call returns.
    pub fn end(&mut self, time_ns: u64, tid: u32, trim: &Trim, break_end: Option<u64>) -> Option<TrimReport> {
        if let Some(open) = self.open.get_mut(&tid)
            && open.call == trim.call
        {
            open.report.end_ns = Some(time_ns);
            open.report.after = Some(TrimSide {
                break_end,
                resident_bytes: trim.resident_bytes,
            });
            open.report.result = trim.result;
        }
        self.close(tid)
    }

    /// The thread has ended, or goes on with another call.
    pub fn close(&mut self, tid: u32) -> Option<TrimReport> {
        let Open { report, .. } = self.open.remove(&tid)?;
        self.done.push(report.clone());
        Some(report)
    }

    /// The calls, those in progress last.
    pub fn reports(&self) -> impl Iterator<Item = &TrimReport> {
        self.done.iter().chain(self.open.values().map(|open| &open.report))
    }

    pub const fn omitted(&self) -> u64 {
        self.done.omitted()
    }

    pub fn clear(&mut self) {
        let tids: alloc::vec::Vec<u32> = self.open.keys().copied().collect();
        for tid in tids {
            self.close(tid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Snapshot;
    use alloc::vec::Vec;

    fn trim(call: u64, resident: u64, result: Option<i32>) -> Trim {
        Trim {
            pad: 0,
            result,
            call,
            resident_bytes: Some(resident),
            heap: None,
            snapshot: Snapshot::default(),
        }
    }

    fn returned(way: ReturnWay, bytes: u64) -> Return {
        Return {
            way,
            start: 0,
            bytes,
            remains: None,
        }
    }

    #[test]
    fn a_call_is_the_sum_of_what_happened_in_its_course() {
        let mut book = TrimBook::default();
        assert_eq!(book.begin(1, 7, &trim(3, 100, None), Some(1000)), None);
        book.returned(2, 7, 3, 0, &returned(ReturnWay::BreakDown, 400));
        book.returned(3, 7, 3, 0, &returned(ReturnWay::PagesAdvised, 50));
        book.returned(4, 7, 3, 0, &returned(ReturnWay::PagesAdvised, 60));
        let done = book.end(5, 7, &trim(3, 40, Some(1)), Some(600)).unwrap();
        assert_eq!((done.returned_bytes, done.break_lowered_bytes), (510, 400));
        assert_eq!((done.madvised_bytes, done.madvise_calls), (110, 2));
        assert_eq!(
            done.after,
            Some(TrimSide {
                break_end: Some(600),
                resident_bytes: Some(40)
            })
        );
        assert_eq!(done.end_ns, Some(5));
        assert_eq!(book.reports().collect::<Vec<_>>(), [&done]);
    }

    #[test]
    fn a_return_that_was_not_seen_leaves_the_end_open() {
        let mut book = TrimBook::default();
        book.begin(1, 7, &trim(3, 100, None), None);
        // The next call of the thread shows that the first one is over.
        let first = book.begin(9, 7, &trim(5, 90, None), None).unwrap();
        assert_eq!((first.after, first.end_ns), (None, None));
        assert_eq!(book.reports().count(), 2);
        assert_eq!(
            book.end(9, 8, &trim(5, 90, None), None),
            None,
            "another thread's return is none of this one's"
        );
    }

    #[test]
    fn a_call_whose_entry_was_lost_begins_with_its_first_system_call() {
        let mut book = TrimBook::default();
        book.returned(2, 7, 3, 64, &returned(ReturnWay::BreakDown, 400));
        let reports: Vec<_> = book.reports().collect();
        assert_eq!((reports[0].pad, reports[0].returned_bytes), (64, 400));
    }
}
