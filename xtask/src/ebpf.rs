//! Builds the kernel side: target/bpf/ARCH/memtrace-ebpf.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::process::{self, say};
use crate::toolchain::{self, TARGET};
use crate::{linker, workspace};

/// Architectures whose user registers the kernel side can read. BPF code is the same on all, register names are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arch {
    #[value(name = "x86_64", alias = "amd64")]
    X86_64,
    #[value(name = "aarch64", alias = "arm64")]
    Aarch64,
}

impl Arch {
    #[cfg(target_arch = "x86_64")]
    pub const HOST: Self = Self::X86_64;
    #[cfg(target_arch = "aarch64")]
    pub const HOST: Self = Self::Aarch64;

    /// As `memtrace/build.rs` and `bpf_target_arch` spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }
}

/// Builds for `arch`, and returns the object's path.
pub fn build(arch: Arch) -> Result<PathBuf> {
    let toolchain = toolchain::find_or_fetch()?;
    let linker = linker::find_or_build()?;
    say(&format!(
        "building the kernel side for {} with {}",
        arch.name(),
        toolchain.shown()
    ));

    // A directory of its own: the compiler differs from the workspace's, and must not make it rebuild.
    let directory = workspace::target().join("bpf").join(arch.name());
    let scratch = directory.join("build");
    let flags = [
        format!("-Clinker={}", linker.display()),
        "-Clink-arg=--btf".to_owned(),
        "-Cdebuginfo=2".to_owned(),
        format!("--cfg=bpf_target_arch=\"{}\"", arch.name()),
        format!("--check-cfg=cfg(bpf_target_arch,values(\"{}\"))", arch.name()),
    ];
    let mut build = toolchain.cargo_build();
    build
        .current_dir(workspace::root())
        .args([
            "--quiet",
            "--locked",
            "--release",
            "--package",
            "memtrace-ebpf",
            "--target",
            TARGET,
            "--target-dir",
        ])
        .arg(&scratch)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR");
    process::run(&mut build, "building the kernel side")?;

    let object = directory.join("memtrace-ebpf");
    replace_if_different(&scratch.join(TARGET).join("release/memtrace-ebpf"), &object)?;
    Ok(object)
}

/// Leaves an equal file alone, so that what embeds it is not built again.
fn replace_if_different(from: &Path, to: &Path) -> Result<()> {
    let new = fs::read(from).with_context(|| format!("reading the object {}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    let partial = to.with_extension("partial");
    fs::write(&partial, new).with_context(|| format!("writing the object {}", partial.display()))?;
    fs::rename(&partial, to).with_context(|| format!("renaming the object to {}", to.display()))
}
