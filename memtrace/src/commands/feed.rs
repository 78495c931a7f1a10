//! Where live events and recorded ones go the same way: kept, analysed, shown.

use std::collections::BTreeMap;

use anyhow::Context;
use memtrace_analysis::Analyzer;
use memtrace_analysis::event::{Event, EventKind};
use memtrace_analysis::live::Live;
use memtrace_analysis::report::Report;

use super::output::Output;
use super::record::Recorder;
use crate::report::events;

/// One analysis for each process, in the order in which they came up.
pub struct Feed<'a> {
    output: &'a Output<'a>,
    recorder: Option<Recorder>,
    analyses: Vec<Analyzer>,
    /// Process id -> its place in `analyses`. Ids come back, so the latest process that bears one counts.
    current: BTreeMap<u32, usize>,
}

impl<'a> Feed<'a> {
    pub const fn new(output: &'a Output<'a>, recorder: Option<Recorder>) -> Self {
        Self {
            output,
            recorder,
            analyses: Vec::new(),
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
        let index = self.analysis(pid);
        if !self.output.streams() {
            self.analyses[index].push(event);
            return Ok(());
        }
        let mut lines = String::new();
        for news in self.analyses[index].push_and_tell(event) {
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
        self.analyses.iter().map(Analyzer::report).collect()
    }

    /// A few figures of each process that is, or was last, known by its id.
    pub fn live(&self) -> Vec<Live> {
        self.current
            .values()
            .filter_map(|index| self.analyses.get(*index))
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
        let next = self.analyses.len();
        let index = *self.current.entry(pid).or_insert(next);
        if index == next {
            self.analyses.push(Analyzer::new());
        }
        index
    }
}
