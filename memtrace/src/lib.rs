//! Everything of memtrace that touches the world; what it finds out is decided in `memtrace-analysis`.
//!
//! ```text
//! Target -> ProbePlan -> Session --RawEvent--> Event -> Analyzer -> Report -> renderer -> bytes
//! ```

pub mod commands;
mod elf;
pub mod inspect;
pub mod lab;
mod page_size;
mod printable;
pub mod privileges;
pub mod probe;
pub mod report;
pub mod sentence;
pub mod session;
pub mod target;
pub mod trace_file;
