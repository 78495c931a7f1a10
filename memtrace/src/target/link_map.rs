//! In which order a process's libraries are searched for a symbol, as its dynamic loader has it.
//!
//! ```text
//! _r_debug (in the loader)  +8 r_map -> link_map  +16 l_ld, the object's dynamic section
//!                                                 +24 l_next -> link_map -> ...
//! ```
//!
//! <link.h> makes this layout part of the ABI, for debuggers.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// A longer list is taken for a damaged one.
const MOST: usize = 20_000;

/// Addresses of the loaded objects' dynamic sections in search order; those of the first namespace only, which is where
/// a program's own calls are bound. Empty when the loader has not begun its list, or the list cannot be read.
pub(super) fn dynamic_sections(memory: &File, r_debug: u64) -> Vec<u64> {
    let word = |address: u64| {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let mut found = Vec::new();
    let mut next = word(r_debug.wrapping_add(8));
    while let Some(object) = next.filter(|&object| object != 0) {
        let Some(dynamic) = word(object.wrapping_add(16)) else {
            break;
        };
        found.push(dynamic);
        if found.len() >= MOST {
            return Vec::new();
        }
        next = word(object.wrapping_add(24));
    }
    found
}
