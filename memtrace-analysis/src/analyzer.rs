//! The way in and the way out: events are pushed, a report can be had at any time.

use alloc::vec::Vec;

use crate::assemble;
use crate::event::Event;
use crate::live::Live;
use crate::report::Report;
use crate::sequence::Sequence;
use crate::story::Story;
use crate::stream::News;

/// The analysis of one process. Its memory is bounded, however long the trace.
#[derive(Clone, Debug, Default)]
pub struct Analyzer {
    sequence: Sequence,
    story: Story,
}

impl Analyzer {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in an event; events may come slightly out of order.
    pub fn push(&mut self, event: Event) {
        self.sequence.push(event);
        while let Some(event) = self.sequence.next_ready() {
            self.story.apply(&event);
        }
    }

    /// As [`Self::push`], and tells what has become known by it. Events held back to be put in order are told later: a
    /// `Tick` sets free what is older than a few milliseconds, `End` everything.
    pub fn push_and_tell(&mut self, event: Event) -> Vec<News> {
        self.story.listen();
        self.push(event);
        self.story.take_news()
    }

    /// What is known now, events still held back included.
    pub fn report(&self) -> Report {
        let mut story = self.story.clone();
        for event in self.sequence.waiting() {
            story.apply(&event);
        }
        story.outside.guess_rest();
        assemble::report(&story, self.sequence.late())
    }

    /// A few figures for a line a second, without the cost of a report.
    pub fn live(&self) -> Live {
        self.story.live()
    }
}
