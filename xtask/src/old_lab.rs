//! The lab's programs built with the oldest glibc at hand, so that they run under every other: what is linked with this
//! machine's own asks for symbols that older releases do not have.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};

use crate::process;

/// What rustc links a program with: the names it gives to the linker, and the files that are meant.
const LIBRARIES: [(&str, &str); 6] = [
    ("libgcc_s.so", "libgcc_s.so.1"),
    ("libpthread.so", "libpthread.so.0"),
    ("libdl.so", "libdl.so.2"),
    ("libm.so", "libm.so.6"),
    ("librt.so", "librt.so.1"),
    ("libutil.so", "libutil.so.1"),
];

const LOADER: &str = if cfg!(target_arch = "aarch64") {
    "ld-linux-aarch64.so.1"
} else {
    "ld-linux-x86-64.so.2"
};

/// Builds memtrace-lab into the release's directory, where the tests look for it.
pub fn build(release: &Path) -> Result<()> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let libraries = release.join("lib").join(&triplet);
    let links = release.join("links");
    link(&triplet, &libraries, &links).with_context(|| format!("writing to {}", links.display()))?;
    let directory = release.join("build");
    // The links that the release's own development package brings lead out of its directory, to this machine's files.
    let flags = format!(
        "-L native={} -C link-arg=--sysroot={}",
        links.display(),
        release.display()
    );
    let mut cargo = process::cargo();
    cargo
        .args([
            "build",
            "--quiet",
            "--locked",
            "--package",
            "memtrace-lab",
            "--target-dir",
        ])
        .arg(&directory)
        .env("RUSTFLAGS", flags);
    process::run(&mut cargo, "building the lab's programs with an old glibc")?;
    let program = release.join("memtrace-lab");
    fs::copy(directory.join("debug/memtrace-lab"), &program)
        .with_context(|| format!("copying the lab's programs to {}", program.display()))?;
    Ok(())
}

fn link(triplet: &str, libraries: &Path, links: &Path) -> std::io::Result<()> {
    if links.exists() {
        fs::remove_dir_all(links)?;
    }
    fs::create_dir_all(links)?;
    for (name, file) in LIBRARIES {
        symlink(libraries.join(file), links.join(name))?;
    }
    // Linkers take the paths of a script that lies in the sysroot to begin there.
    let script = format!(
        "GROUP(/lib/{triplet}/libc.so.6 /usr/lib/{triplet}/libc_nonshared.a AS_NEEDED(/lib/{triplet}/{LOADER}))\n"
    );
    fs::write(links.join("libc.so"), script)
}
