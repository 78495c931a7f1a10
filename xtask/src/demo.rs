//! The release build, and a first look at what it does.

use anyhow::{Context, Result};

use crate::ebpf;
use crate::process::{self, Root, say};
use crate::workspace;

/// target/release/memtrace, with the kernel side inside, and memtrace-lab.
pub fn build() -> Result<()> {
    ebpf::build(ebpf::Arch::HOST)?;
    say("building memtrace and memtrace-lab");
    let mut cargo = process::cargo();
    cargo.args([
        "build",
        "--release",
        "--package",
        "memtrace",
        "--package",
        "memtrace-lab",
    ]);
    cargo.env_remove("CARGO_TARGET_DIR");
    process::run(&mut cargo, "building memtrace and memtrace-lab")
}

/// Traces the lab's brk-steps from its first allocation to its last.
pub fn demo() -> Result<()> {
    build()?;
    let binaries = workspace::target().join("release");
    let root = Root::find_out()?;
    let mut memtrace = root
        .command(binaries.join("memtrace"))
        .context("tracing needs root, and there is no sudo here: run `cargo xtask demo` as root")?;
    memtrace.arg("--").arg(binaries.join("memtrace-lab")).arg("brk-steps");
    say(&format!("running: {}", process::shown(&memtrace)));
    process::run(&mut memtrace, "tracing memtrace-lab brk-steps")
}
