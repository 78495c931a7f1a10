//! Where live events and recorded ones go the same way: kept, analysed, shown.

use std::collections::{BTreeMap, VecDeque};

use anyhow::Context;
use memtrace_analysis::Analyzer;
use memtrace_analysis::event::{Event, EventKind};
use memtrace_analysis::live::Live;
use memtrace_analysis::report::Report;

use super::output::Output;
use super::record::Recorder;
use crate::report::events;

/// Processes that have ended and are still reported on.
const MOST_ENDED: usize = 1000;

/// One analysis for each process, in the order in which they came up.
pub struct Feed<'a> {
    output: &'a Output<'a>,
    recorder: Option<Recorder>,
    /// By a number that goes up.
    analyses: BTreeMap<usize, Analyzer>,
    next: usize,
    /// Those of processes that have ended, the first to end first.
    ended: VecDeque<usize>,
    omitted: u64,
    /// Process id -> its place in `analyses`. Ids come back, so the latest process that bears one counts.
    current: BTreeMap<u32, usize>,
}

impl<'a> Feed<'a> {
    pub const fn new(output: &'a Output<'a>, recorder: Option<Recorder>) -> Self {
        Self {
            output,
            recorder,
            analyses: BTreeMap::new(),
            next: 0,
            ended: VecDeque::new(),
            omitted: 0,
            current: BTreeMap::new(),
        }
    }

    /// Takes in one event: recorded first, so that whatever the report says can be said again.
    ///
    /// An error is one of standard output. A record that cannot be kept ends, and the trace goes on.
    pub fn push(&mut self, event: Event) -> anyhow::Result<()> {
        if let Some(recorder) = &mut self.recorder {
            recorder.add(&event);
        }
        if let EventKind::Fork { child, followed: true } = event.kind {
            self.current.remove(&child);
        }
        let pid = event.pid;
        let ends = matches!(event.kind, EventKind::End { .. });
        let streams = self.output.streams();
        let index = self.analysis(pid);
        let analysis = self.analyses.entry(index).or_default();
        let news = if streams {
            analysis.push_and_tell(event)
        } else {
            analysis.push(event);
            Vec::new()
        };
        if ends {
            self.ended(index);
        }
        let mut lines = String::new();
        for news in news {
            lines += &events::line(pid, &news).context("rendering an event as JSON")?;
        }
        if lines.is_empty() {
            return Ok(());
        }
        self.output.stream(&lines)
    }

    /// Growths and returns are printed as they happen.
    pub const fn is_streaming(&self) -> bool {
        self.output.streams()
    }

    pub fn reports(&self) -> Vec<Report> {
        self.analyses.values().map(Analyzer::report).collect()
    }

    /// Processes that have ended and are left out of the reports, since there were more than are remembered.
    pub const fn omitted(&self) -> u64 {
        self.omitted
    }

    /// A few figures of each process that is, or was last, known by its id.
    pub fn live(&self) -> Vec<Live> {
        self.current
            .values()
            .filter_map(|index| self.analyses.get(index))
            .map(Analyzer::live)
            .collect()
    }

    /// Hands what was recorded so far to the system.
    pub fn flush(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.flush();
        }
    }

    /// Ends the record; an error if it is not complete.
    pub fn finish_record(&mut self) -> anyhow::Result<()> {
        self.recorder.take().map_or(Ok(()), Recorder::finish)
    }

    fn analysis(&mut self, pid: u32) -> usize {
        let index = *self.current.entry(pid).or_insert(self.next);
        if index == self.next {
            self.next += 1;
        }
        index
    }

    /// A server may fork for ever: of those that have ended, only so many are remembered.
    fn ended(&mut self, index: usize) {
        self.ended.push_back(index);
        if self.ended.len() <= MOST_ENDED {
            return;
        }
        if let Some(oldest) = self.ended.pop_front() {
            self.analyses.remove(&oldest);
            self.current.retain(|_, index| *index != oldest);
            self.omitted += 1;
        }
    }
}
