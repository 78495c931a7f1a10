//! The size of this machine's pages.

/// Bytes of a page, as sysconf(3) has it: 4096 on amd64; 4096, 16384 or 65536 on arm64.
pub fn page_size() -> u64 {
    // SAFETY: sysconf has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).expect("every Linux knows the size of its pages")
}
