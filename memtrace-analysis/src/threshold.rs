//! The dynamic mmap threshold: what it is, since when, and why.
//!
//! glibc's rule (its free): letting go of a mapped chunk larger than mmap_threshold and of at most 32 MiB makes the
//! chunk's size the new mmap_threshold and twice that the new trim_threshold, unless somebody set one of the knobs. The
//! values are inferred from such frees and held against those read from the process at each system call; a change that
//! no free explains is somebody's knob, or a free that was not seen.
//!
//! A free changes the thresholds before its munmap, so a read at that munmap shows the new values, and a read of another
//! thread may show them before the munmap that explains them has returned.

use alloc::format;
use alloc::string::{String, ToString};

use crate::event::Thresholds;
use crate::kept::Kept;
use crate::report::{ThresholdChange, ThresholdSection};
use crate::rule::{DEFAULT_THRESHOLD, MMAP_THRESHOLD_MAX};

/// Changes kept of the begin, and as many of the end.
const MAX_HISTORY: usize = 500;
/// Requests of at least this many bytes of chunk are large: an untuned malloc gives each a mapping of its own.
const LARGE: u64 = DEFAULT_THRESHOLD;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Values {
    mmap: u64,
    trim: u64,
}

#[derive(Clone, Debug)]
pub struct ThresholdBook {
    now: Option<Values>,
    top_pad: Option<u64>,
    history: Kept<ThresholdChange>,
    changes: u64,
    /// The last change was read and nothing seen explains it.
    unexplained: bool,
    unexplained_changes: u64,
    read: bool,
    read_since_begin: bool,
    /// The program is not the one that the trace began with.
    replaced: bool,
    dynamic: Option<bool>,
    as_predicted: u64,
    otherwise: u64,
}

impl Default for ThresholdBook {
    fn default() -> Self {
        Self {
            now: None,
            top_pad: None,
            history: Kept::new(MAX_HISTORY),
            changes: 0,
            unexplained: false,
            unexplained_changes: 0,
            read: false,
            read_since_begin: false,
            replaced: false,
            dynamic: None,
            as_predicted: 0,
            otherwise: 0,
        }
    }
}

/// Bytes with a separator between thousands.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && digits.len().saturating_sub(place).checked_rem(3) == Some(0) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl ThresholdBook {
    /// The trace, or a new program, begins. Only a glibc that was seen from its birth starts with known values.
    pub fn begin(&mut self, time_ns: u64, read: Option<&Thresholds>, glibc_from_birth: bool) {
        self.unexplained = false;
        if let Some(read) = read {
            self.read = true;
            self.read_since_begin = true;
            self.top_pad = Some(read.top_pad);
            self.dynamic = read.dynamic.or(self.dynamic);
            let values = Values {
                mmap: read.mmap_threshold,
                trim: read.trim_threshold,
            };
            if self.now == Some(values) {
                self.confirm();
            } else {
                self.change(time_ns, values, "at the start".to_string(), true);
            }
        } else if glibc_from_birth && self.now.is_none() {
            let values = Values {
                mmap: DEFAULT_THRESHOLD,
                trim: DEFAULT_THRESHOLD,
            };
            self.change(time_ns, values, "at the start (glibc's own)".to_string(), false);
        }
    }

    /// A new program: knobs and thresholds start anew.
    pub fn forget(&mut self) {
        (self.now, self.top_pad, self.dynamic, self.unexplained) = (None, None, None, false);
        self.read_since_begin = false;
        self.replaced = true;
    }

    fn change(&mut self, time_ns: u64, values: Values, cause: String, confirmed: bool) {
        self.now = Some(values);
        self.changes = self.changes.saturating_add(1);
        self.history.push(ThresholdChange {
            time_ns,
            mmap_threshold: values.mmap,
            trim_threshold: values.trim,
            cause,
            confirmed,
        });
    }

    fn confirm(&mut self) {
        if let Some(last) = self.history.last_mut() {
            last.confirmed = true;
        }
    }

    /// A mapped chunk was freed (free, not realloc), before the values read at its munmap are taken in.
    pub fn mapped_chunk_freed(&mut self, time_ns: u64, chunk: u64, read: Option<&Thresholds>) {
        let cause = || format!("free of a mapped block of {} bytes", grouped(chunk));
        let Some(now) = self.now else {
            // Attached in mid-life: what was before is not known, but what is now is this free's doing.
            if let Some(read) = read
                && read.mmap_threshold == chunk
                && read.trim_threshold == chunk.saturating_mul(2)
            {
                self.dynamic = Some(true);
                let raised = Values {
                    mmap: chunk,
                    trim: read.trim_threshold,
                };
                self.change(time_ns, raised, cause(), true);
            }
            return;
        };
        if chunk == now.mmap {
            // Another thread's record had shown the new values before this one.
            if self.unexplained {
                self.unexplained = false;
                self.unexplained_changes = self.unexplained_changes.saturating_sub(1);
                self.dynamic = Some(true);
                if let Some(last) = self.history.last_mut() {
                    last.cause = cause();
                }
            }
            return;
        }
        if chunk < now.mmap || chunk >= MMAP_THRESHOLD_MAX {
            return;
        }
        let raised = Values {
            mmap: chunk,
            trim: chunk.saturating_mul(2),
        };
        match read {
            // A knob froze the rule: the values stayed.
            Some(read) if read.mmap_threshold == now.mmap && read.trim_threshold == now.trim => {
                self.dynamic = Some(false);
            }
            None if self.dynamic == Some(false) => {}
            Some(read) => {
                let confirmed = read.mmap_threshold == raised.mmap && read.trim_threshold == raised.trim;
                if confirmed {
                    self.dynamic = Some(true);
                    self.unexplained = false;
                    self.change(time_ns, raised, cause(), true);
                }
            }
            None => self.change(time_ns, raised, cause(), false),
        }
    }

    /// Values read from the process at a system call.
    pub fn read(&mut self, time_ns: u64, read: &Thresholds, before_first_block: bool) {
        let first = !self.read_since_begin;
        self.read = true;
        self.read_since_begin = true;
        self.top_pad = Some(read.top_pad);
        self.dynamic = read.dynamic.or(self.dynamic);
        let values = Values {
            mmap: read.mmap_threshold,
            trim: read.trim_threshold,
        };
        match self.now {
            Some(now) if now == values => self.confirm(),
            None if self.replaced => {
                self.change(
                    time_ns,
                    values,
                    "at the start of the program that replaced the one before".to_string(),
                    true,
                );
            }
            None => self.change(time_ns, values, "first read from the process".to_string(), true),
            Some(_) if first && before_first_block => {
                // Set between the program's start and its first block: environment or tunable.
                self.dynamic = Some(false);
                let cause = "set before the first allocation (mallopt, environment or tunable; read from the process)";
                self.change(time_ns, values, cause.to_string(), true);
            }
            Some(_) => {
                self.unexplained = true;
                self.unexplained_changes = self.unexplained_changes.saturating_add(1);
                let cause = if values.mmap.checked_mul(2) == Some(values.trim) && values.mmap > DEFAULT_THRESHOLD {
                    "a free that was not seen, or mallopt (read from the process)"
                } else {
                    self.dynamic = Some(false);
                    "mallopt (read from the process)"
                };
                self.change(time_ns, values, cause.to_string(), true);
            }
        }
    }

    pub fn mmap_threshold(&self) -> Option<u64> {
        self.now.map(|values| values.mmap)
    }

    pub const fn top_pad(&self) -> Option<u64> {
        self.top_pad
    }

    /// A request whose chunk is large led to a growth: of a mapping of its own, or of an arena. `refused`: a mapping
    /// was tried and refused first, as it should.
    pub fn large_request(&mut self, chunk: u64, own_mapping: bool, refused: bool, in_force: Option<u64>) {
        let Some(threshold) = in_force.or(self.mmap_threshold()) else {
            return;
        };
        if chunk < LARGE && !own_mapping {
            return;
        }
        if own_mapping == (chunk >= threshold) || refused {
            self.as_predicted = self.as_predicted.saturating_add(1);
        } else {
            self.otherwise = self.otherwise.saturating_add(1);
        }
    }

    /// Changes so far, the values at the start included.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    pub fn last(&self) -> Option<&ThresholdChange> {
        self.history.iter().next_back()
    }

    pub fn report(&self) -> ThresholdSection {
        ThresholdSection {
            history: self.history.iter().cloned().collect(),
            history_omitted: self.history.omitted(),
            requests_as_predicted: self.as_predicted,
            requests_otherwise: self.otherwise,
            agrees_with_process: self.read.then_some(self.unexplained_changes == 0),
            dynamic: self.dynamic,
            top_pad: self.top_pad,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const DEFAULT: (u64, u64) = (DEFAULT_THRESHOLD, DEFAULT_THRESHOLD);

    fn values((mmap_threshold, trim_threshold): (u64, u64)) -> Thresholds {
        Thresholds {
            mmap_threshold,
            trim_threshold,
            top_pad: 131_072,
            dynamic: None,
        }
    }

    enum Op {
        /// A mapped chunk of so many bytes is freed; what is read at its munmap.
        Freed(u64, Option<(u64, u64)>),
        Read((u64, u64)),
    }
    use Op::{Freed, Read};

    struct Expected<'a> {
        mmap: &'a [u64],
        last_cause: &'a str,
        agrees: Option<bool>,
        dynamic: Option<bool>,
    }

    fn check(ops: &[Op], expected: Expected) {
        let mut book = ThresholdBook::default();
        book.begin(0, None, true);
        for (time, op) in (1..).zip(ops) {
            match op {
                Freed(chunk, read) => {
                    let read = read.map(values);
                    book.mapped_chunk_freed(time, *chunk, read.as_ref());
                    if let Some(read) = read {
                        book.read(time, &read, false);
                    }
                }
                Read(read) => book.read(time, &values(*read), false),
            }
        }
        let report = book.report();
        let mmap: Vec<u64> = report.history.iter().map(|change| change.mmap_threshold).collect();
        let cause = &report.history.last().unwrap().cause;
        assert_eq!(mmap, expected.mmap);
        assert!(cause.contains(expected.last_cause), "{cause}");
        assert_eq!(
            (report.agrees_with_process, report.dynamic),
            (expected.agrees, expected.dynamic)
        );
    }

    #[test]
    fn a_free_that_is_read_back_is_confirmed() {
        check(
            &[Read(DEFAULT), Freed(2_101_248, Some((2_101_248, 4_202_496)))],
            Expected {
                mmap: &[DEFAULT_THRESHOLD, 2_101_248],
                last_cause: "free of a mapped block of 2,101,248 bytes",
                agrees: Some(true),
                dynamic: Some(true),
            },
        );
    }

    #[test]
    fn without_books_the_rule_alone_is_followed() {
        let expected = |mmap| Expected {
            mmap,
            last_cause: "",
            agrees: None,
            dynamic: None,
        };
        check(
            &[Freed(266_240, None), Freed(200_704, None)],
            expected(&[DEFAULT_THRESHOLD, 266_240]),
        );
        // 32 MiB and more raise nothing.
        check(&[Freed(32 << 20, None)], expected(&[DEFAULT_THRESHOLD]));
        check(
            &[Freed((32 << 20) - 4096, None)],
            expected(&[DEFAULT_THRESHOLD, (32 << 20) - 4096]),
        );
    }

    #[test]
    fn a_free_that_changes_nothing_tells_that_a_knob_was_set() {
        check(
            &[Read(DEFAULT), Freed(266_240, Some(DEFAULT))],
            Expected {
                mmap: &[DEFAULT_THRESHOLD],
                last_cause: "at the start",
                agrees: Some(true),
                dynamic: Some(false),
            },
        );
    }

    #[test]
    fn another_threads_look_may_show_the_change_first() {
        check(
            &[
                Read(DEFAULT),
                Read((266_240, 532_480)),
                Freed(266_240, Some((266_240, 532_480))),
            ],
            Expected {
                mmap: &[DEFAULT_THRESHOLD, 266_240],
                last_cause: "free of a mapped block of 266,240 bytes",
                agrees: Some(true),
                dynamic: Some(true),
            },
        );
    }

    #[test]
    fn a_change_that_nothing_explains_is_said_to_be_one() {
        check(
            &[Read(DEFAULT), Read((65_536, 131_072 * 3))],
            Expected {
                mmap: &[DEFAULT_THRESHOLD, 65_536],
                last_cause: "mallopt",
                agrees: Some(false),
                dynamic: Some(false),
            },
        );
        check(
            &[Read(DEFAULT), Read((266_240, 532_480))],
            Expected {
                mmap: &[DEFAULT_THRESHOLD, 266_240],
                last_cause: "a free that was not seen, or mallopt",
                agrees: Some(false),
                dynamic: None,
            },
        );
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (2_101_248, "2,101,248"),
            (100_000, "100,000"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
