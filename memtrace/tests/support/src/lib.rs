//! What the tests of memtrace share.
//!
//! ```text
//! skip     a test that cannot run here says why, aloud, and the summary of `cargo xtask test` repeats it
//! scratch  a directory that goes with the test
//! cc       C programs and libraries, compiled once per test run
//! counter  the oracle: exact counts of each call at the allocator's interface, from a preloaded library
//! kernel   the running kernel by its number
//! glibc    the releases under target/glibc, and how to run a program with one of them
//! child    a child process with a handshake by lines
//! tracer   memtrace itself, and its JSON
//! strace   system calls as strace sees them
//! ```

pub mod cc;
pub mod child;
pub mod counter;
pub mod glibc;
pub mod kernel;
pub mod scratch;
pub mod skip;
pub mod strace;
pub mod tracer;

use std::path::{Path, PathBuf};

/// The directory of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(3)
        .expect("the crate lies three levels down")
}

/// Where the programs under test are: MEMTRACE_BIN_DIR, else beside the directory of the test itself.
pub fn binaries() -> PathBuf {
    if let Some(directory) = std::env::var_os("MEMTRACE_BIN_DIR") {
        return directory.into();
    }
    let test = std::env::current_exe().expect("the path of this test");
    test.ancestors()
        .nth(2)
        .expect("cargo puts tests into a directory of their own")
        .to_owned()
}

/// A program of the workspace.
pub fn binary(name: &str) -> PathBuf {
    let path = binaries().join(name);
    assert!(
        path.is_file(),
        "{} is not built: run `cargo build` first, or `cargo xtask test`",
        path.display()
    );
    path
}
