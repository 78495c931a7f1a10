//! The report for people.
//!
//! ```text
//! head line           who, which allocator, how long, how complete
//! IN SHORT            the findings, a sentence each
//! ALLOCATIONS FREED   what the program did, and what is left (LIVE)
//! HEAP GROWTH         what the allocator asked the system for, and why
//! RETURNED            what went back
//! MMAP THRESHOLD      where blocks begin to get a mapping of their own
//! MALLOC'S BOOKS      what is live and what is kept, by malloc's own word, at both ends
//! DIRECT              memory system calls that no allocation caused
//! NOT SEEN            what this trace cannot say
//! ```

mod books;
mod calls;
mod cost;
mod growth;
mod head;
mod rest;
mod returned;
mod steps;

use memtrace_analysis::report::Report;

use super::layout::{Page, Section};
use super::style::Style;
pub use cost::nothing_added;

/// The whole text, each process with a part of its own.
pub fn render(reports: &[Report], style: Style) -> String {
    let mut page = Page::new(style);
    for (i, report) in reports.iter().enumerate() {
        if i > 0 {
            page.gap();
        }
        process(&mut page, report);
    }
    page.finish()
}

fn process(page: &mut Page, report: &Report) {
    head::head(page, report);
    let parts = [
        vec![head::findings(report)],
        vec![calls::allocations(report), calls::freed(report), calls::live(report)],
        vec![growth::growth(report)],
        vec![returned::returned(report)],
        vec![rest::threshold(report)],
        vec![books::books(report)],
        vec![rest::system_calls(report), rest::direct(report)],
        vec![cost::cost(report)],
        vec![rest::not_seen(report)],
    ];
    for part in parts {
        if part.iter().all(Section::is_empty) {
            continue;
        }
        page.gap();
        for section in &part {
            page.section(section);
        }
    }
}
