//! What a recorded trace looks like on disk; docs/trace-format.md says the same in words.
//!
//! ```text
//! magic  version  header length  header crc  header (JSON)
//! 8      u32      u32            u32         ...
//!
//! kind  length  crc of kind, length, payload  payload        ... one frame for each event
//! u8    u32     u32                           ...
//! END   8       crc                           u64 number of events
//! ```
//!
//! Integers are little endian. The end frame tells a complete file from one that was cut at a frame's border.

use serde::{Deserialize, Serialize};

/// The high bit keeps the file from being taken for text, the line ends show a transfer that changed them.
pub const MAGIC: [u8; 8] = *b"\x89MTR\r\n\x1a\n";

/// Raised when a reader of the version before could misread a file.
pub const FORMAT_VERSION: u32 = 1;

/// Longest header accepted.
pub const MAX_HEADER: u32 = 1 << 16;

/// Longest payload accepted: the longest event lists the modules of a process, some hundred bytes each.
pub const MAX_PAYLOAD: u32 = 1 << 24;

/// Bytes of a frame before its payload.
pub const FRAME_HEAD: usize = 9;

/// Kinds of frame; a reader counts those it does not know and goes on.
pub mod kind {
    pub const EVENT: u8 = 1;
    pub const END: u8 = 2;
}

/// Who wrote the file and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the memtrace that wrote it.
    pub memtrace: String,
    pub architecture: String,
    /// Release of the kernel it was recorded on.
    pub kernel: String,
    /// Seconds since 1970 at the start.
    pub recorded_unix_s: u64,
    /// Version of the events' encoding.
    pub encoding: u16,
}

/// Checksum of a frame: over all of it but the checksum.
pub fn checksum(kind: u8, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[kind]);
    crc.update(&(payload.len() as u64).to_le_bytes());
    crc.update(payload);
    crc.finalize()
}
