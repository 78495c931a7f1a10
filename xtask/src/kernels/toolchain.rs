//! A C compiler for the guests: the kernel tests compile their programs where they run, here as everywhere.
//!
//! The oldest release's, so that what it makes runs under every C library a guest can have.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::initramfs::Initramfs;
use super::userland::SUITES;
use crate::archive::{self, Archive};
use crate::ebpf::Arch;
use crate::process::say;
use crate::workspace;

/// The compiler of [`SUITES`]' first, with all it loads; `{}` is the architecture's name in package names.
const PACKAGES: [&str; 16] = [
    "cpp-10",
    "gcc-10",
    "libgcc-10-dev",
    "binutils",
    "binutils-{}",
    "libbinutils",
    "libctf0",
    "libctf-nobfd0",
    "libgmp10",
    "libisl23",
    "libmpc3",
    "libmpfr6",
    "libzstd1",
    "zlib1g",
    "libc6-dev",
    "linux-libc-dev",
];

/// Parts of those packages that compile no C program, most of them large.
const UNUSED: [&str; 12] = [
    "usr/share",
    "plugin",
    "lto1",
    "lto-wrapper",
    "install-tools",
    "libasan",
    "libtsan",
    "liblsan",
    "libubsan",
    "libgomp",
    "ld.gold",
    "ldscripts",
];

/// Unpacked in one directory.
pub struct Toolchain {
    root: PathBuf,
}

impl Toolchain {
    pub fn find_or_fetch(arch: Arch, apt: &Archive) -> Result<Self> {
        let root = workspace::target().join("kernels/toolchain").join(arch.debian());
        archive::once(&root, |partial| {
            say(&format!(
                "unpacking a C compiler for the {} guests below target/kernels/toolchain",
                arch.debian()
            ));
            let name = arch.multiarch().replace('_', "-");
            let packages = PACKAGES.map(|package| format!("{}/{}", package.replace("{}", &name), SUITES[0]));
            for deb in apt.download_all(&packages.each_ref().map(String::as_str))? {
                archive::unpack(&deb, partial)?;
            }
            Ok(())
        })?;
        Ok(Self { root })
    }

    /// Puts it where the compiler expects itself, and calls it `cc`.
    pub fn install(&self, tree: &mut Initramfs) -> Result<()> {
        copy_tree(tree, &self.root, Path::new(""))?;
        tree.symlink("usr/bin/cc", "gcc-10");
        Ok(())
    }
}

fn copy_tree(tree: &mut Initramfs, root: &Path, directory: &Path) -> Result<()> {
    let listed = root.join(directory);
    for entry in fs::read_dir(&listed).with_context(|| format!("listing {}", listed.display()))? {
        let entry = entry.with_context(|| format!("listing {}", listed.display()))?;
        let path = directory.join(entry.file_name());
        let text = path.to_string_lossy();
        if UNUSED.iter().any(|part| text.contains(part)) {
            continue;
        }
        let kind = entry
            .file_type()
            .with_context(|| format!("looking at {}", entry.path().display()))?;
        if kind.is_symlink() {
            let target =
                fs::read_link(entry.path()).with_context(|| format!("reading the link {}", entry.path().display()))?;
            tree.symlink(&path, &target.to_string_lossy());
        } else if kind.is_dir() {
            copy_tree(tree, root, &path)?;
        } else {
            tree.copy(&path, &entry.path())?;
        }
    }
    Ok(())
}
