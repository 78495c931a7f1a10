//! bpf-linker: the one in PATH where it fits, else a build of our own under target/tools.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{self, say};
use crate::toolchain::llvm_major;
use crate::workspace;

/// The last bpf-linker that works with the LLVM inside rustc 1.95, so that no LLVM package is needed.
const VERSION: &str = "0.10.3";
/// The LLVM whose bitcode that version reads.
pub const LLVM_MAJOR: u32 = 22;

/// Finds the linker, else builds it.
pub fn find_or_build() -> Result<PathBuf> {
    let own = workspace::target().join("tools/bin/bpf-linker");
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let candidates = [
        Some(own.clone()),
        process::find("bpf-linker"),
        home.map(|home| home.join("bin/bpf-linker")),
    ];
    if let Some(found) = candidates.into_iter().flatten().find(|file| is_ours(file)) {
        return Ok(found);
    }
    build()?;
    Ok(own)
}

fn is_ours(file: &Path) -> bool {
    process::is_executable(file)
        && process::capture(Command::new(file).arg("--version"), "asking bpf-linker")
            .is_ok_and(|text| text.trim() == format!("bpf-linker {VERSION}"))
}

fn build() -> Result<()> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = process::capture(Command::new(rustc).args(["--version", "--verbose"]), "asking rustc")?;
    let major = llvm_major(&version);
    if major != Some(LLVM_MAJOR) {
        let found = major.map_or("an unknown LLVM".to_owned(), |major| format!("LLVM {major}"));
        bail!(
            "bpf-linker {VERSION} has to be built by a rustc with LLVM {LLVM_MAJOR}, and this one has {found}; \
             use Rust 1.95 (`cargo +1.95.0 xtask ...`)"
        );
    }
    say(&format!(
        "no bpf-linker {VERSION} here; building it into target/tools, which takes two to five minutes"
    ));
    let mut install = process::cargo();
    install
        .args([
            "install",
            "bpf-linker",
            "--version",
            VERSION,
            "--locked",
            "--quiet",
            "--root",
        ])
        .arg(workspace::target().join("tools"));
    process::run(&mut install, "building bpf-linker").with_context(|| {
        format!("bpf-linker {VERSION} cannot be had; `cargo install bpf-linker --version {VERSION} --locked` does the same by hand")
    })
}
