//! The lab: claims about malloc, mmap and the page cache, tried out on this machine.
//!
//! ```text
//! Experiment --measure--> Measured --judge--> Verdict        claim and expectation are data, figures are of this run
//!     |                      |
//!     claim                  Figures, Pictures --render--> text, terminal, SVG, HTML, JSON
//! ```
//!
//! Programs of memtrace-lab do what a claim is about and stop at their phases; `run` looks at them from outside.

mod bench;
mod disk;
mod experiment;
mod experiments;
mod figure;
mod inherited;
pub mod interrupt;
pub mod machine;
mod picture;
pub mod render;
mod room;
mod run;
mod runner;
pub mod trace;
mod unit;
mod verdict;

pub use bench::{Bench, Settings};
pub use experiment::{Experiment, Group};
pub use experiments::ALL;
pub use runner::{Done, Session, needs, run_all};
pub use unit::Unit;
pub use verdict::Verdict;
