//! The programs that go into the guests of one architecture.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::guest::TestProgram;
use super::userland::{SUITES, Userland};
use crate::archive::Archive;
use crate::cross::{Cross, Link};
use crate::ebpf::{self, Arch};
use crate::process::{self, say};
use crate::workspace;

/// Cargo's profiles: what is built often and runs in the guests, and what a release hands out.
pub const GUEST: &str = "guest";
pub const RELEASE: &str = "dist";
/// Files of memtrace/tests that need a kernel to probe; they need nothing but root, so they run in a guest.
const PREFIX: &str = "kernel";

pub struct Programs {
    pub tests: Vec<TestProgram>,
    pub in_place: Vec<PathBuf>,
    pub memtrace: PathBuf,
    pub lab: PathBuf,
    pub environment: Vec<(String, String)>,
}

impl Programs {
    pub fn build(cross: &Cross, apt: &Archive, profile: &str) -> Result<Self> {
        let arch = cross.arch;
        ebpf::build(arch)?;
        say(&format!(
            "building memtrace and its kernel tests for {} (static)",
            arch.debian()
        ));
        let mut tests = cross.cargo(Link::Static);
        tests.args(["test", "--no-run", "--profile", profile, "--package", "memtrace"]);
        for name in test_names()? {
            tests.args(["--test", &name]);
        }
        let built = artifacts(&mut tests, arch)?;
        let tests: Vec<TestProgram> = built
            .iter()
            .filter(|built| built.is_test)
            .map(Built::test_program)
            .collect();
        let memtrace = only(&built, "memtrace")?;
        let oldest = Userland::find_or_fetch(SUITES[0], arch, apt)?;
        let lab = build_lab(cross, &oldest, profile)?;
        let (directory, programs) = compile_programs(cross, &oldest)?;
        Ok(Self {
            tests,
            in_place: [vec![memtrace.clone(), lab.clone()], programs].concat(),
            environment: vec![("MEMTRACE_TEST_PROGRAMS".to_owned(), directory.display().to_string())],
            memtrace,
            lab,
        })
    }
}

/// The two programs that a release hands out.
pub struct Release {
    pub memtrace: PathBuf,
    pub lab: PathBuf,
}

impl Release {
    /// At the places, and from the flags, of the programs that guests run under [`RELEASE`]: the same files.
    pub fn build(arch: Arch) -> Result<Self> {
        let cross = Cross::find_or_fetch(arch)?;
        ebpf::build(arch)?;
        say(&format!("building the release for {} (static)", arch.debian()));
        let mut cargo = cross.cargo(Link::Static);
        cargo.args(["build", "--profile", RELEASE, "--package", "memtrace"]);
        let memtrace = only(&artifacts(&mut cargo, arch)?, "memtrace")?;
        let oldest = Userland::find_or_fetch(SUITES[0], arch, &super::archive_of(arch)?)?;
        let lab = build_lab(&cross, &oldest, RELEASE)?;
        Ok(Self { memtrace, lab })
    }
}

/// The lab is about the C library it runs with, so it is never static; built for the oldest, it runs with all.
fn build_lab(cross: &Cross, oldest: &Userland, profile: &str) -> Result<PathBuf> {
    let mut cargo = cross.cargo(Link::Dynamic(&oldest.root));
    cargo.args(["build", "--profile", profile, "--package", "memtrace-lab"]);
    only(&artifacts(&mut cargo, cross.arch)?, "memtrace-lab")
}

/// The C programs of the kernel tests, as the tests themselves compile them where there is a compiler.
fn compile_programs(cross: &Cross, libc: &Userland) -> Result<(PathBuf, Vec<PathBuf>)> {
    let sources = workspace::root().join("memtrace/tests/programs");
    let directory = workspace::target()
        .join("kernels/build/programs")
        .join(cross.arch.debian());
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    let mut programs = Vec::new();
    for source in files_with_extension(&sources, "c")? {
        let program = directory.join(source.file_stem().context("a source has a name")?);
        let mut cc = cross.cc(&libc.root);
        cc.args([
            "-O1",
            "-fno-builtin",
            "-pthread",
            "-Wno-deprecated-declarations",
            "-Wno-unused-result",
            "-o",
        ]);
        cc.arg(&program).arg(&source).args(["-ldl"]);
        process::run(&mut cc, &format!("compiling {}", source.display()))?;
        programs.push(program);
    }
    Ok((directory, programs))
}

fn files_with_extension(directory: &Path, wanted: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("listing {}", directory.display()))? {
        let file = entry
            .with_context(|| format!("listing {}", directory.display()))?
            .path();
        if file.extension().is_some_and(|extension| extension == wanted) {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
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
        if stem.starts_with(PREFIX) && is_program {
            names.push(stem.to_owned());
        }
    }
    names.sort();
    if names.is_empty() {
        bail!("no file of {} begins with \"{PREFIX}\"", directory.display());
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

fn only(built: &[Built], name: &str) -> Result<PathBuf> {
    let found = built.iter().find(|built| !built.is_test && built.name == name);
    Ok(found.with_context(|| format!("cargo built no {name}"))?.file.clone())
}
