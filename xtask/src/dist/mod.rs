//! What a release hands out: `cargo xtask dist` fills target/dist.
//!
//! ```text
//! memtrace-VERSION-ARCH             one static file: copy it to a machine and run it
//! memtrace_VERSION_ARCH.deb         the same with lab, manual pages and completions
//! man/  completions/                from the command line's own definition
//! memtrace-VERSION.cdx.json         bill of materials (CycloneDX 1.5)
//! THIRD-PARTY.txt                   every crate inside, with its licence texts
//! SHA256SUMS
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use self::materials::Materials;
use crate::ebpf::Arch;
use crate::kernels::Release;
use crate::process::{self, say};
use crate::workspace;

mod deb;
mod materials;

#[derive(Args)]
pub struct Options {
    /// Only for this architecture; for both by default
    #[arg(long, value_enum)]
    arch: Option<Arch>,
}

/// `cargo xtask dist`
pub fn dist(options: &Options) -> Result<()> {
    let directory = workspace::target().join("dist");
    if directory.exists() {
        fs::remove_dir_all(&directory).with_context(|| format!("emptying {}", directory.display()))?;
    }
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;

    let architectures: Vec<Arch> = Arch::ALL
        .into_iter()
        .filter(|arch| options.arch.is_none_or(|only| only == *arch))
        .collect();
    write_documents(&directory)?;
    let materials = Materials::of_the_release(&architectures)?;
    let version = &materials.version;
    write(
        &directory.join(format!("memtrace-{version}.cdx.json")),
        &materials.bill()?,
    )?;
    write(&directory.join("THIRD-PARTY.txt"), &materials.licences()?)?;
    for arch in architectures {
        let release = Release::build(arch)?;
        let binary = directory.join(format!("memtrace-{version}-{}", arch.debian()));
        copy(&release.memtrace, &binary)?;
        deb::build(&deb::Package {
            version,
            arch,
            memtrace: &binary,
            lab: &release.lab,
            dist: &directory,
        })?;
    }
    write_checksums(&directory)?;
    say(&format!("the release is in {}", directory.display()));
    Ok(())
}

/// Manual pages and completions, from the definition of the command line.
fn write_documents(directory: &Path) -> Result<()> {
    say("writing manual pages and completions");
    let mut cargo = process::cargo();
    cargo.args([
        "run",
        "--quiet",
        "--locked",
        "--package",
        "memtrace",
        "--example",
        "documents",
        "--",
    ]);
    process::run(cargo.arg(directory), "writing manual pages and completions")
}

/// In sha256sum's own form, so that `sha256sum --check SHA256SUMS` checks a download.
fn write_checksums(directory: &Path) -> Result<()> {
    let mut names = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("listing {}", next.display()))? {
            let path = entry.with_context(|| format!("listing {}", next.display()))?.path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(directory).context("it lies there")?;
                names.push(name.to_string_lossy().into_owned());
            }
        }
    }
    names.sort();
    let mut sums = Command::new("sha256sum");
    let sums = process::capture(
        sums.current_dir(directory).args(&names),
        "summing up the files of the release",
    )?;
    write(&directory.join("SHA256SUMS"), &sums)
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

fn copy(from: &Path, to: &PathBuf) -> Result<()> {
    fs::copy(from, to)
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))
        .map(drop)
}
