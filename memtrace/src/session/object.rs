//! The kernel side inside this binary.

use anyhow::{Result, ensure};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/memtrace-ebpf"));

/// Whether memtrace was built with its kernel side.
pub fn has_kernel_side() -> bool {
    !OBJECT.is_empty()
}

/// The BPF object; an error when memtrace was built without it.
pub fn embedded() -> Result<&'static [u8]> {
    ensure!(
        has_kernel_side(),
        "this memtrace was built without its kernel side, `cargo xtask build` makes it whole"
    );
    Ok(OBJECT)
}
