//! Files in the page cache, as plain data: what of each is in memory, and what of that can be taken back at once.

use alloc::string::String;
use alloc::vec::Vec;

/// What of one file is in memory; bytes, in whole pages but for its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// The file's size.
    pub file: u64,
    pub cached: u64,
    /// Changed and not yet on the disk, and on its way there; None where the kernel tells only what is cached.
    pub dirty: Option<u64>,
    pub writeback: Option<u64>,
    /// Bytes of a page.
    pub page: u64,
}

impl Residency {
    /// The file's size in whole pages, as it would be cached.
    pub fn whole(&self) -> u64 {
        let pages = self.file.div_ceil(self.page.max(1));
        pages.saturating_mul(self.page)
    }

    /// Share of the file's pages that are cached, 0 to 1; an empty file has none.
    pub fn share(&self) -> f64 {
        match self.whole() {
            0 => 0.0,
            whole => self.cached as f64 / whole as f64,
        }
    }

    /// What has to be written before it can be taken back.
    pub fn waiting(&self) -> Option<u64> {
        Some(self.dirty?.saturating_add(self.writeback?))
    }
}

/// A file that a process has open or maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldFile {
    /// As the kernel names it; "(deleted)" behind a name that is gone.
    pub shown: String,
    pub how: Holding,
    /// Why it could not be looked at, in words.
    pub residency: Result<Residency, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    pub descriptors: Vec<u32>,
    pub mapped: bool,
}

/// Of the whole machine, bytes: pages of files that cannot be taken back before they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineFiles {
    pub dirty: u64,
    pub writeback: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_count_whole_pages() {
        let residency = |file, cached| Residency {
            file,
            cached,
            dirty: Some(1),
            writeback: None,
            page: 4096,
        };
        assert_eq!(residency(100, 4096).share(), 1.0);
        assert_eq!(residency(8192, 4096).share(), 0.5);
        assert_eq!(residency(0, 0).share(), 0.0);
        assert_eq!(residency(u64::MAX, 0).share(), 0.0);
        assert_eq!(residency(1, 0).waiting(), None, "half an answer is none");
    }
}
