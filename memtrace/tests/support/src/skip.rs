//! Tests that cannot run here.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Says that `test` does not run and why. It goes past the test harness, which hides what passing tests print.
pub fn skip(test: &str, why: &str) {
    let line = format!("{test}: {why}\n");
    // A closed stderr must not make a test fail that has nothing to say.
    let _ = std::io::stderr().write_all(format!("skipped: {line}").as_bytes());
    if let Some(file) = std::env::var_os("MEMTRACE_SKIPS") {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&file)
            .expect("opening the list of skipped tests");
        // One write, so that tests in parallel do not mix their lines.
        (&file)
            .write_all(line.as_bytes())
            .expect("adding to the list of skipped tests");
    }
}

/// Whether this is root; where it is not, the test is skipped.
pub fn root(test: &str) -> bool {
    let root = Path::new("/proc/self")
        .metadata()
        .expect("the owner of /proc/self")
        .uid()
        == 0;
    if !root {
        skip(test, "it needs root");
    }
    root
}

/// Whether a program is in PATH; where it is not, the test is skipped.
pub fn program(test: &str, name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(name).is_file());
    if !found {
        skip(test, &format!("{name} is not installed"));
    }
    found
}
