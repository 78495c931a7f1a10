//! glibc's own books, read from the outside: where they lie, how they are laid out, what they say.
//!
//! ```text
//! libc.so.6 --locate--> Anatomy        where the books lie and how they are laid out
//! Anatomy + memory --books--> Settings, ArenaBooks --walk--> Heap: every chunk and its state
//! Heap + pages in memory --tally--> amounts, pins, what a trim would return --account, verdict, predict--> Look
//! ```
//!
//! Nothing here touches a process: a library is a slice of bytes, foreign memory is an argument ([`ReadMemory`]).

pub mod account;
pub mod books;
mod causes;
pub mod changes;
pub mod chunk_log;
mod elf;
pub mod explain;
mod former;
pub mod heap;
pub mod image;
pub mod layout;
pub mod lists;
pub mod locate;
pub mod look;
pub mod mapped;
pub mod mapping;
pub mod memory;
pub mod predict;
pub mod problem;
pub mod residency;
pub mod summary;
pub mod tally;
pub mod verdict;
mod walk;
pub mod words;

pub use books::Settings;
pub use heap::{Heap, State};
pub use layout::{HeapInfo, MallocPar, MallocState, TcacheLayout, Version};
pub use locate::{Anatomy, Machine, Unsupported, initial_pointer};
pub use mapping::Mapping;
pub use memory::{ReadMemory, Unreadable};
pub use problem::Problem;
pub use residency::Residency;
