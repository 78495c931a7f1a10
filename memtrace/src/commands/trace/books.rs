//! The thresholds that a running process has come to, read from glibc's books when its trace begins.

use crate::page_size::page_size;
use memtrace_analysis::event::Thresholds;
use memtrace_analysis::glibc::{Anatomy, Residency, Settings};

use crate::inspect::process_memory::ProcessMemory;
use crate::target::Target;

/// None where the books cannot be found or read; the plan's limits say why.
pub fn thresholds(target: &Target) -> Option<Thresholds> {
    let library = target.libc.as_ref()?;
    let anatomy = Anatomy::of_library(&library.read().ok()?).ok()?;
    let residency = Residency::new(page_size());
    let memory = ProcessMemory::new(target.pid, &residency);
    let Settings {
        trim_threshold,
        top_pad,
        mmap_threshold,
        dynamic,
        ..
    } = Settings::read(&memory, &anatomy, library.base).ok()?;
    Some(Thresholds {
        mmap_threshold,
        trim_threshold,
        top_pad,
        dynamic: Some(dynamic),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This process knows its own thresholds by mallopt's doing.
    #[test]
    fn what_this_process_set_is_what_is_read() {
        // SAFETY: mallopt takes two numbers; the rest of the tests do not mind a fixed threshold.
        let set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 200_000) };
        assert_eq!(set, 1);
        let target = Target::of_pid(std::process::id()).unwrap();
        let thresholds = thresholds(&target).expect("glibc's books can be read in this process");
        assert_eq!(thresholds.mmap_threshold, 200_000);
        assert_eq!(thresholds.dynamic, Some(false));
    }
}
