//! Where things are.

use std::path::{Path, PathBuf};

/// The directory of the workspace's Cargo.toml.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
}

/// Everything made here goes below this directory, whatever CARGO_TARGET_DIR says: `memtrace/build.rs` and the tests
/// look for it here.
pub fn target() -> PathBuf {
    root().join("target")
}
