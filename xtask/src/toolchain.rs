//! A Rust compiler that can build for BPF: found, else fetched.
//!
//! Two kinds do. rustup's nightly with its `rust-src` component compiles `core` for the target (`-Z build-std=core`);
//! Debian's `rustc-web` comes with a ready `core` for it (`libstd-rust-web-dev-bpf`). Either way the compiler's LLVM
//! must not be newer than the linker's, which reads what it writes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::linker;
use crate::packages;
use crate::process::{self, Root, say};

pub const TARGET: &str = "bpfel-unknown-none";

pub const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_PACKAGES: [&str; 2] = ["rustc-web", "libstd-rust-web-dev-bpf"];
/// The first rustc-web known to come with the LLVM of [`linker`]; Debian 12 also has a 1.85, without BPF's `core`.
const DEBIAN_MINIMUM: (u32, u32) = (1, 95);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// A rustup toolchain with `rust-src`, by its name.
    Rustup(String),
    /// Debian's compiler with a ready `core`.
    Debian(PathBuf),
}

impl Toolchain {
    /// A cargo that builds for BPF.
    pub fn cargo_build(&self) -> Command {
        match self {
            Self::Rustup(name) => {
                let mut command = Command::new("rustup");
                command.args(["run", name, "cargo", "build", "-Z", "build-std=core"]);
                command
                    .env_remove("RUSTC")
                    .env_remove("CARGO")
                    .env_remove("RUSTUP_TOOLCHAIN");
                command
            }
            Self::Debian(rustc) => {
                let mut command = process::cargo();
                // A stable compiler takes -C link-arg and asm for BPF only when it is told that we mean it.
                command.arg("build").env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
                command
                    .env_remove("RUSTC_WRAPPER")
                    .env_remove("RUSTC_WORKSPACE_WRAPPER");
                command
            }
        }
    }

    pub fn shown(&self) -> String {
        match self {
            Self::Rustup(name) => format!("rustup's {name} with rust-src"),
            Self::Debian(rustc) => format!("Debian's {}", rustc.display()),
        }
    }
}

/// Finds a toolchain, else fetches one: Debian's packages where apt has them (half a minute, no change to rustup),
/// else rustup's nightly.
pub fn find_or_fetch() -> Result<Toolchain> {
    let mut why_not = Vec::new();
    if let Some(found) = find(&mut why_not) {
        return Ok(found);
    }
    for fetch in [fetch_debian, fetch_rustup] {
        match fetch() {
            Ok(()) => match find(&mut why_not) {
                Some(found) => return Ok(found),
                None => continue,
            },
            Err(error) => why_not.push(format!("{error:#}")),
        }
    }
    bail!(
        "no Rust compiler for BPF can be had here ({}); install one by hand, with either \
         `rustup toolchain install nightly --component rust-src` or, on Debian 12 as root, \
         `apt-get install {}`, and run this again",
        why_not.join("; "),
        DEBIAN_PACKAGES.join(" ")
    )
}

fn find(why_not: &mut Vec<String>) -> Option<Toolchain> {
    why_not.clear();
    for candidate in [find_rustup(), find_debian()] {
        match candidate {
            Ok(toolchain) => return Some(toolchain),
            Err(error) => why_not.push(format!("{error:#}")),
        }
    }
    None
}

fn find_rustup() -> Result<Toolchain> {
    if process::find("rustup").is_none() {
        bail!("there is no rustup");
    }
    let list = process::capture(
        Command::new("rustup").args(["toolchain", "list"]),
        "listing rustup's toolchains",
    )?;
    let Some(name) = list
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .find(|name| is_nightly(name))
    else {
        bail!("rustup has no nightly toolchain");
    };
    let rustc = |argument: &[&str]| {
        let mut command = Command::new("rustup");
        command.args(["run", name, "rustc"]).args(argument);
        process::capture(&mut command, &format!("asking rustup's {name}"))
    };
    let sysroot = rustc(&["--print", "sysroot"])?;
    // A component that is listed but not unpacked would fail late, in the middle of the build.
    if !Path::new(sysroot.trim())
        .join("lib/rustlib/src/rust/library/core/Cargo.toml")
        .is_file()
    {
        bail!("rustup's {name} lacks the rust-src component");
    }
    check_llvm(&rustc(&["--version", "--verbose"])?, &format!("rustup's {name}"))?;
    Ok(Toolchain::Rustup(name.to_owned()))
}

fn is_nightly(name: &str) -> bool {
    name.starts_with("nightly-")
}

fn find_debian() -> Result<Toolchain> {
    let rustc = Path::new(DEBIAN_RUSTC);
    if !process::is_executable(rustc) {
        bail!("Debian's rustc-web is not installed");
    }
    let sysroot = process::capture(
        Command::new(rustc).args(["--print", "sysroot"]),
        "asking Debian's rustc",
    )?;
    if !Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).is_dir() {
        bail!("{DEBIAN_RUSTC} has no core for {TARGET}");
    }
    check_llvm(
        &process::capture(
            Command::new(rustc).args(["--version", "--verbose"]),
            "asking Debian's rustc",
        )?,
        DEBIAN_RUSTC,
    )?;
    Ok(Toolchain::Debian(rustc.to_owned()))
}

fn check_llvm(version: &str, compiler: &str) -> Result<()> {
    match llvm_major(version) {
        Some(major) if major <= linker::LLVM_MAJOR => Ok(()),
        Some(major) => bail!(
            "{compiler} writes LLVM {major}, and the linker reads up to {}",
            linker::LLVM_MAJOR
        ),
        None => bail!("{compiler} does not say which LLVM it has"),
    }
}

/// The major version in the "LLVM version: 22.1.8" line of `rustc --version --verbose`.
pub fn llvm_major(version: &str) -> Option<u32> {
    version
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version:"))?
        .trim()
        .split('.')
        .next()?
        .parse()
        .ok()
}

fn fetch_debian() -> Result<()> {
    if !packages::apt_is_here() {
        bail!("this is no Debian machine (no apt-get)");
    }
    let good = || packages::candidate(DEBIAN_PACKAGES[0]).is_some_and(|version| is_new_enough(&version));
    if !good() || packages::candidate(DEBIAN_PACKAGES[1]).is_none() {
        packages::update(Root::find_out()?)?;
        if !good() {
            bail!(
                "apt has no {} of {}.{} or later",
                DEBIAN_PACKAGES[0],
                DEBIAN_MINIMUM.0,
                DEBIAN_MINIMUM.1
            );
        }
    }
    packages::install(
        &DEBIAN_PACKAGES,
        "a Rust compiler for BPF (about 500 MB unpacked; rustup's default stays)",
    )
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|word| word.parse::<u32>().ok());
    matches!((numbers.next(), numbers.next()), (Some(major), Some(minor)) if (major, minor) >= DEBIAN_MINIMUM)
}

fn fetch_rustup() -> Result<()> {
    if process::find("rustup").is_none() {
        bail!("there is no rustup");
    }
    let mut command = Command::new("rustup");
    command.args([
        "toolchain",
        "install",
        "nightly",
        "--profile",
        "minimal",
        "--component",
        "rust-src",
    ]);
    say(&format!(
        "about to install a Rust compiler for BPF; running: {}",
        process::shown(&command)
    ));
    process::run(&mut command, "installing rustup's nightly with rust-src")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_llvm_version_of_a_compiler() {
        assert_eq!(llvm_major("rustc 1.96.0\nhost: x\nLLVM version: 22.1.8\n"), Some(22));
        assert_eq!(llvm_major("rustc 1.96.0\n"), None);
    }

    #[test]
    fn tells_a_debian_compiler_that_can_do_bpf_from_an_older_one() {
        assert!(is_new_enough("1.96.0+dfsg1-1~deb12u2"));
        assert!(is_new_enough("2.0.0"));
        assert!(!is_new_enough("1.85.0+dfsg3-1~deb12u3"));
        assert!(!is_new_enough(""));
    }
}
