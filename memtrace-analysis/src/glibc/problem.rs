//! What does not fit together in a heap. In a process that runs on, it may be the look that tore; in one that stands
//! still, the heap is damaged.

use core::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Problem {
    Unreadable {
        address: u64,
    },
    /// A chunk whose size cannot be: too small, not aligned, or beyond the end of its heap.
    ChunkSize {
        address: u64,
        size: u64,
    },
    /// A free chunk whose size is not what its successor says of it.
    FreeChunkFooter {
        address: u64,
        size: u64,
        footer: u64,
    },
    /// The top chunk does not end where the arena ends.
    TopSize {
        arena: u64,
        top: u64,
        size: u64,
    },
    /// The top chunk lies in no memory of the arena.
    TopOutside {
        arena: u64,
        top: u64,
    },
    /// The ring of arenas does not come back to main_arena.
    ArenaRing {
        arena: u64,
    },
    /// A segment that does not name the arena it was reached from, or has an impossible size.
    Segment {
        arena: u64,
        segment: u64,
    },
    /// Chunks do not add up to what the arena has taken from the system.
    SystemBytes {
        arena: u64,
        found: u64,
        books: u64,
    },
    /// A list of free chunks leads to something that is none.
    ListEntry {
        head: u64,
        entry: u64,
    },
    /// A list of free chunks that does not end.
    ListLoop {
        head: u64,
    },
    /// The arena changed while it was being read.
    Moved {
        arena: u64,
    },
    /// More than the look has room for; what lies beyond `address` is not classified.
    TooMuch {
        address: u64,
    },
}

impl Problem {
    /// It can only come from a process that ran on meanwhile, never from damage.
    pub fn is_motion(&self) -> bool {
        matches!(self, Problem::Moved { .. })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Problem::Unreadable { address } => write!(out, "memory of the heap at {address:#x} cannot be read"),
            Problem::ChunkSize { address, size } => {
                write!(out, "the chunk at {address:#x} claims an impossible size ({size:#x})")
            }
            Problem::FreeChunkFooter { address, size, footer } => write!(
                out,
                "the free chunk at {address:#x} has {size} bytes, but its successor says that it has {footer}"
            ),
            Problem::TopSize { arena, top, size } => {
                write!(
                    out,
                    "the top chunk at {top:#x} of arena {arena:#x} claims an impossible size ({size:#x})"
                )
            }
            Problem::TopOutside { arena, top } => {
                write!(
                    out,
                    "the top chunk ({top:#x}) of arena {arena:#x} lies in no memory of this arena"
                )
            }
            Problem::ArenaRing { arena } => {
                write!(
                    out,
                    "the ring of arenas leads to {arena:#x} and not back to the main arena"
                )
            }
            Problem::Segment { arena, segment } => {
                write!(
                    out,
                    "the segment at {segment:#x} does not belong to arena {arena:#x}, from which it is reached"
                )
            }
            Problem::SystemBytes { arena, found, books } => write!(
                out,
                "the chunks of arena {arena:#x} add up to {found} bytes, but it has taken {books} from the system"
            ),
            Problem::ListEntry { head, entry } => {
                write!(
                    out,
                    "the list of free chunks at {head:#x} leads to {entry:#x}, which is no free chunk of it"
                )
            }
            Problem::ListLoop { head } => write!(out, "the list of free chunks at {head:#x} does not end"),
            Problem::Moved { arena } => write!(out, "arena {arena:#x} changed while it was being read"),
            Problem::TooMuch { address } => {
                write!(
                    out,
                    "the heap has more chunks than this look keeps; it was read up to {address:#x}"
                )
            }
        }
    }
}
