//! Events in, findings out: the pure part of memtrace.
//!
//! ```text
//! Event -> sequence -> Analyzer::push -> Report
//! ```
//!
//! Nothing here does I/O, reads a clock or knows of BPF; no input makes it fail. A live session, a recorded file and a
//! simulated program feed the same `push`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod analyzer;
mod assemble;
mod batch;
pub mod chunk;
pub mod codec;
mod coverage;
mod direct;
pub mod event;
mod finding;
pub mod glibc;
mod growth;
mod kept;
mod ledger;
pub mod live;
mod meaning;
mod modules;
mod owner;
mod predict;
mod regions;
pub mod report;
mod returned;
pub mod rule;
mod sequence;
pub mod sim;
mod story;
pub mod stream;
mod tally;
mod threads;
mod threshold;
mod trims;
mod version;

pub use analyzer::Analyzer;
