//! The address space as /proc/PID/smaps tells it.

use alloc::string::String;

use serde::{Deserialize, Serialize};

/// One mapping with the kernel's own figures of it, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    /// MAP_SHARED
    pub shared: bool,
    pub inode: u64,
    /// File, "[heap]", "[anon:...]"; empty for a plain anonymous mapping.
    pub path: String,
    pub resident: u64,
    /// Of the resident bytes, those that belong to no file: written by the process.
    pub anonymous: u64,
    pub swapped: u64,
    /// Marked MADV_FREE and not taken back yet.
    pub lazily_freed: u64,
    /// In transparent huge pages.
    pub huge: u64,
    /// In hugetlbfs pages, which `resident` leaves out.
    pub hugetlb: u64,
}

impl Mapping {
    /// Private, writable and of no file: what an allocator takes its memory from.
    pub fn is_anonymous(&self) -> bool {
        !self.shared && self.writable && self.inode == 0 && !self.path.starts_with("[stack")
    }

    pub fn holds(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

/// The mapping that holds an address; mappings are in order.
pub fn holding(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let index = mappings.partition_point(|mapping| mapping.end <= address);
    mappings.get(index).filter(|mapping| mapping.holds(address))
}
