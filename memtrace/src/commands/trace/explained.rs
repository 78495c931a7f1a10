//! What malloc's own books say at both ends of a trace, for people: a few lines behind each report.
//!
//! They are no part of the report: a replay makes the same report again, and has no process to look at.

use std::collections::BTreeMap;

use memtrace_analysis::glibc::look::Look;

use crate::inspect;
use crate::report::explain::brief;
use crate::report::layout::Page;
use crate::report::style::Style;

/// Looks at processes when their trace begins.
pub struct Explained {
    begin: BTreeMap<u32, Look>,
}

impl Explained {
    /// A process that cannot be looked into is left out: `memtrace explain` says why.
    pub fn at_begin(pids: &[u32]) -> Self {
        let begin = pids
            .iter()
            .filter_map(|pid| Some((*pid, inspect::look(*pid).ok()?)))
            .collect();
        Self { begin }
    }

    /// Looks again, and says what has changed.
    pub fn at_end(&self, style: Style) -> String {
        let mut page = Page::new(style);
        for (pid, begin) in &self.begin {
            let end = inspect::look(*pid)
                .ok()
                .filter(|end| end.taken.process_age_ns >= begin.taken.process_age_ns);
            page.gap();
            if self.begin.len() > 1 {
                page.faint(&format!("{} (pid {pid})", begin.target.name));
            }
            page.section(&brief::section(Some(begin), end.as_ref()));
        }
        page.finish()
    }
}
