//! The programs that go into the guests of one architecture.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::compiled;
use super::guest::{Installed, TestProgram};
use super::userland::{SUITES, Userland};
use crate::cross::{Cross, Link};
use crate::ebpf::{self, Arch};
use crate::process::say;
use crate::workspace;

/// Cargo's profiles: what is built often and runs in the guests, and what a release hands out.
const GUEST: &str = "guest";
const RELEASE: &str = "dist";
/// Files of memtrace/tests whose names begin so run in the guests: those that need a kernel to probe, and those that look
/// into heaps whose truth is known. They need nothing but root.
const PREFIXES: [&str; 2] = ["kernel", "explain_heaps"];

pub struct Programs {
    pub tests: Vec<TestProgram>,
    /// C programs of the tests, and where the guest has them.
    pub compiled: Vec<Installed>,
    /// Files that are in a guest where they are here.
    pub in_place: Vec<PathBuf>,
    /// Where the tests look for it; and the lab beside it, as in an installation.
    pub memtrace: Installed,
    pub lab: Installed,
    pub environment: Vec<(String, String)>,
}

impl Programs {
    /// `only`: the one test program wanted; all of them without. `dist`: with the very files that a release hands out.
    pub fn build(cross: &Cross, oldest: &Userland, dist: bool, only: Option<&str>) -> Result<Self> {
        let arch = cross.arch;
        ebpf::build(arch)?;
        say(&format!(
            "building memtrace and its kernel tests for {} (static)",
            arch.debian()
        ));
        let mut tests = cross.cargo(Link::Static);
        tests.args(["test", "--no-run", "--profile", GUEST, "--package", "memtrace"]);
        for name in test_names()?.iter().filter(|name| only.is_none_or(|one| one == *name)) {
            tests.args(["--test", name]);
        }
        let built = artifacts(&mut tests, arch)?;
        let tests: Vec<TestProgram> = built
            .iter()
            .filter(|built| built.is_test)
            .map(Built::test_program)
            .collect();
        // Where the tests look for it.
        let at = the_one(&built, "memtrace")?;
        let beside = at.with_file_name("memtrace-lab");
        let directory = at.parent().context("a program lies in a directory")?;
        let Release { memtrace, lab } = if dist {
            Release::build(arch)?
        } else {
            Release {
                memtrace: at.clone(),
                lab: build_lab(cross, oldest, GUEST)?,
            }
        };
        Ok(Self {
            tests,
            compiled: compiled::build(cross, oldest)?,
            environment: vec![
                ("MEMTRACE_BIN_DIR".to_owned(), directory.display().to_string()),
                (compiled::VARIABLE.to_owned(), compiled::DIRECTORY.to_owned()),
            ],
            in_place: schemas()?,
            memtrace: Installed { at, from: memtrace },
            lab: Installed { at: beside, from: lab },
        })
    }
}

/// What documents of memtrace's are held against.
fn schemas() -> Result<Vec<PathBuf>> {
    let directory = workspace::root().join("docs");
    let list = fs::read_dir(&directory).with_context(|| format!("listing {}", directory.display()))?;
    let mut found = Vec::new();
    for entry in list {
        let file = entry
            .with_context(|| format!("listing {}", directory.display()))?
            .path();
        if file.to_string_lossy().ends_with(".schema.json") {
            found.push(file);
        }
    }
    Ok(found)
}

/// memtrace and its lab, built; by [`Release::build`], as a release hands them out.
pub struct Release {
    pub memtrace: PathBuf,
    pub lab: PathBuf,
}

impl Release {
    pub fn build(arch: Arch) -> Result<Self> {
        let cross = Cross::find_or_fetch(arch)?;
        ebpf::build(arch)?;
        say(&format!("building the release for {} (static)", arch.debian()));
        let mut cargo = cross.cargo(Link::Static);
        cargo.args(["build", "--profile", RELEASE, "--package", "memtrace"]);
        let memtrace = the_one(&artifacts(&mut cargo, arch)?, "memtrace")?;
        let oldest = Userland::find_or_fetch(SUITES[0], arch, &super::archive_of(arch)?)?;
        let lab = build_lab(&cross, &oldest, RELEASE)?;
        Ok(Self { memtrace, lab })
    }
}

/// The lab is about the C library it runs with, so it is never static; built for the oldest, it runs with all.
fn build_lab(cross: &Cross, oldest: &Userland, profile: &str) -> Result<PathBuf> {
    let mut cargo = cross.cargo(Link::Dynamic(&oldest.root));
    cargo.args(["build", "--profile", profile, "--package", "memtrace-lab"]);
    the_one(&artifacts(&mut cargo, cross.arch)?, "memtrace-lab")
}

/// Test programs of memtrace/tests that go into the guests.
fn test_names() -> Result<Vec<String>> {
    let directory = workspace::root().join("memtrace/tests");
    let list = fs::read_dir(&directory).with_context(|| format!("listing {}", directory.display()))?;
    let mut names = Vec::new();
    for entry in list {
        let file = entry
            .with_context(|| format!("listing {}", directory.display()))?
            .path();
        // NAME.rs, or NAME/main.rs.
        let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let is_program = file.extension().is_some_and(|extension| extension == "rs") || file.join("main.rs").is_file();
        if PREFIXES.iter().any(|prefix| stem.starts_with(prefix)) && is_program {
            names.push(stem.to_owned());
        }
    }
    names.sort();
    if names.is_empty() {
        bail!(
            "no file of {} begins with {}",
            directory.display(),
            PREFIXES.join(" or ")
        );
    }
    Ok(names)
}

/// Something cargo has built.
struct Built {
    name: String,
    is_test: bool,
    file: PathBuf,
}

impl Built {
    fn test_program(&self) -> TestProgram {
        TestProgram {
            name: self.name.clone(),
            file: self.file.clone(),
        }
    }
}

/// Runs cargo and takes from its messages which programs it made.
fn artifacts(cargo: &mut Command, arch: Arch) -> Result<Vec<Built>> {
    cargo.args([
        "--locked",
        "--target",
        arch.triple(),
        "--message-format",
        "json-render-diagnostics",
    ]);
    let output = cargo
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("starting cargo")?;
    if !output.status.success() {
        bail!("building for the guests: cargo ended with {}", output.status);
    }
    let text = String::from_utf8(output.stdout).context("reading cargo's messages")?;
    let mut built = Vec::new();
    for line in text.lines() {
        let message: Value = serde_json::from_str(line).context("reading a message of cargo's")?;
        let Some(file) = message.get("executable").and_then(Value::as_str) else {
            continue;
        };
        let name = message
            .pointer("/target/name")
            .and_then(Value::as_str)
            .context("a message of cargo's has no name")?;
        built.push(Built {
            name: name.to_owned(),
            is_test: message.pointer("/profile/test").and_then(Value::as_bool) == Some(true),
            file: Path::new(file).to_owned(),
        });
    }
    Ok(built)
}

fn the_one(built: &[Built], name: &str) -> Result<PathBuf> {
    let found = built.iter().find(|built| !built.is_test && built.name == name);
    Ok(found.with_context(|| format!("cargo built no {name}"))?.file.clone())
}
