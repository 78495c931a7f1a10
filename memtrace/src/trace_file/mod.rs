//! Recorded traces: a container of frames that knows when it is cut, damaged, foreign or newer.
//!
//! What an event looks like inside its frame is the codec's business (memtrace-analysis); nothing here depends on it.

mod format;
mod reader;
mod writer;

pub use format::{FORMAT_VERSION, Header, MAGIC};
pub use reader::{ReadError, Reader};
pub use writer::Writer;

#[cfg(test)]
mod tests;
