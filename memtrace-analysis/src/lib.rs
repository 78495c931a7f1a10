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

pub mod event;
pub mod glibc;
pub mod report;
