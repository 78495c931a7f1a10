//! Looks at malloc's books: the one at the begin of a trace and the one at its end.

use alloc::string::ToString;

use crate::event::{EndReason, LookMoment};
use crate::glibc::summary::LookSummary;
use crate::report::{LooksSection, TimedLook};

#[derive(Clone, Debug, Default)]
pub struct Looks {
    begin: Option<TimedLook>,
    end: Option<TimedLook>,
}

impl Looks {
    pub fn take(&mut self, time_ns: u64, moment: LookMoment, look: &LookSummary) {
        let look = Some(TimedLook {
            time_ns,
            look: look.clone(),
        });
        match moment {
            LookMoment::Begin => self.begin = look,
            LookMoment::End => self.end = look,
        }
    }

    /// After an exec the heap is another one.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    pub fn report(&self, ended: Option<EndReason>, glibc: bool) -> LooksSection {
        let gone = self.end.is_none() && glibc && ended == Some(EndReason::ProcessExited);
        LooksSection {
            begin: self.begin.clone(),
            end: self.end.clone(),
            no_end: gone.then(|| "the process has ended, and its books have gone with its memory".to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exec_takes_the_books_along() {
        let look = LookSummary::failed("closed to us".to_string());
        let mut looks = Looks::default();
        looks.take(1, LookMoment::Begin, &look);
        assert_eq!(looks.report(None, true).begin.map(|look| look.time_ns), Some(1));
        looks.clear();
        let ended = Some(EndReason::ProcessExited);
        let report = looks.report(ended, true);
        assert_eq!((report.begin, report.end), (None, None));
        assert!(report.no_end.is_some());
        assert_eq!(looks.report(ended, false), LooksSection::default());
        looks.take(9, LookMoment::End, &look);
        let report = looks.report(ended, true);
        assert_eq!((report.end.map(|look| look.time_ns), report.no_end), (Some(9), None));
    }
}
