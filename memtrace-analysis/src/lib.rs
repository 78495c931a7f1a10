//! Events in, findings out: the pure part of memtrace.
//!
//! ```text
//! Event -> sequence -> Analyzer::push -> Report
//! ```
//!
//! Nothing here does I/O, reads a clock or knows of BPF; no input makes it fail. A live session, a recorded file and a
//! simulated program feed the same `push`.
//!
//! How that is kept true: the crate is `no_std` with `alloc` and compiles for `bpfel-unknown-none`, a target without an
//! operating system, so there is nothing to do I/O or read a clock with; unsafe code is forbidden; the lints below refuse
//! whatever could panic (arithmetic that overflows, indexing, unwrap) but in those files of `glibc` that say at their
//! head why they are exempt; and the tests feed it events of any content in any order.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::float_cmp
    )
)]

extern crate alloc;

mod analyzer;
mod assemble;
mod batch;
pub mod budget;
pub mod chunk;
pub mod codec;
mod coverage;
mod direct;
pub mod event;
pub mod files;
mod finding;
pub mod glibc;
mod growth;
mod kept;
mod ledger;
pub mod live;
mod looks;
mod meaning;
mod modules;
mod outside;
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
mod watching;

pub use analyzer::Analyzer;
