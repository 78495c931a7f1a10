//! glibc's own books, read from the outside: where they lie, how they are laid out, what they say.
//!
//! ```text
//! libc.so.6 --locate--> Anatomy (version, addresses, layouts)
//! ```
//!
//! Nothing here touches a process: a library is a slice of bytes, foreign memory is an argument.

mod elf;
pub mod layout;
pub mod locate;

pub use layout::{HeapInfo, MallocPar, MallocState, TcacheLayout, Version};
pub use locate::{Anatomy, Machine, Unsupported};
