//! C programs and libraries of the tests (support/c), compiled with the machine's C compiler.
//!
//! What has to run under every glibc is built against the oldest release at hand, since a program asks for symbols as
//! new as the library it was linked with.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::glibc::Release;
use crate::scratch::Scratch;

/// Names a directory with programs compiled ahead, where there is no compiler: in the virtual machines of `cargo xtask
/// test-kernels`. They are linked against the oldest glibc at hand.
const AHEAD: &str = "MEMTRACE_TEST_PROGRAMS";

/// Whether programs were compiled ahead.
pub fn is_ahead() -> bool {
    std::env::var_os(AHEAD).is_some()
}

/// Puts a program that was compiled ahead to `output`; false where a compiler is to make it. Sources of two directories may
/// have the same name: `from` tells the directory.
pub fn copy_ahead(from: Sources, name: &str, options: &[&str], output: &Path) -> bool {
    let Some(directory) = std::env::var_os(AHEAD) else {
        return false;
    };
    let from = match from {
        Sources::Tests => "programs",
        Sources::Support => "c",
    };
    let from = Path::new(&directory)
        .join(from)
        .join(name.to_owned() + &options.concat());
    let copied = std::fs::copy(&from, output);
    copied.unwrap_or_else(|error| panic!("{} was not compiled ahead: {error}", from.display()));
    true
}

/// [`copy_ahead`] of a program that the caller has the text of: another one of its name is not taken for it.
fn copy_ahead_of(source: &str, name: &str, options: &[&str], output: &Path) -> bool {
    if !copy_ahead(Sources::Tests, name, options, output) {
        return false;
    }
    let directory = PathBuf::from(std::env::var_os(AHEAD).expect("it was there"));
    let text = directory.join("programs").join(format!("{name}.c"));
    let compiled = std::fs::read_to_string(&text).expect("a source lies beside what was compiled ahead");
    assert_eq!(compiled, source, "{name} was compiled ahead from another text");
    true
}

/// Where a source lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// memtrace/tests/programs
    Tests,
    /// support/c
    Support,
}

/// How a source is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Program,
    Library,
}

/// Compiles support/c/`name`.c into `scratch`; for `oldest` where given, else for the machine's own glibc.
pub fn compile(name: &str, kind: Kind, oldest: Option<&Release>, scratch: &Scratch) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("c")
        .join(format!("{name}.c"));
    let file = match kind {
        Kind::Program => name.to_owned(),
        Kind::Library => format!("lib{name}.so"),
    };
    let output = scratch.file(&file);
    if copy_ahead(Sources::Support, &file, &[], &output) {
        return output;
    }
    let mut cc = Command::new("cc");
    // The compiler must not replace, merge or drop allocator calls: they are what is counted.
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-fno-builtin"]);
    if kind == Kind::Library {
        cc.args(["-shared", "-fPIC"]);
    }
    cc.arg("-o").arg(&output).arg(&source);
    match oldest {
        None => {
            cc.args(["-pthread", "-ldl"]);
        }
        Some(release) => link_against(&mut cc, release),
    }
    let result = cc.output().expect("starting cc");
    assert!(
        result.status.success(),
        "compiling {}: {}",
        source.display(),
        String::from_utf8_lossy(&result.stderr)
    );
    output
}

/// Compiles `source` to `name` in `scratch` so that it runs under every release from `oldest` on.
pub fn build_for(oldest: &Release, name: &str, source: &str, scratch: &Scratch) -> PathBuf {
    let text = scratch.file(&format!("{name}.c"));
    let output = scratch.file(name);
    if copy_ahead_of(source, name, &[], &output) {
        return output;
    }
    std::fs::write(&text, source).expect("writing a C source");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-w", "-fno-builtin", "-o"]).arg(&output).arg(&text);
    link_against(&mut cc, oldest);
    let result = cc.output().expect("starting cc");
    assert!(
        result.status.success(),
        "compiling {name}: {}",
        String::from_utf8_lossy(&result.stderr)
    );
    output
}

/// Compiles `source` with `compiler` to `name` in `scratch`; what it says where it refuses or is not installed.
pub fn build(compiler: &str, name: &str, source: &str, options: &[&str], scratch: &Scratch) -> Result<PathBuf, String> {
    let text = scratch.file(&format!("{name}.c"));
    let output = scratch.file(name);
    if copy_ahead_of(source, name, options, &output) {
        return Ok(output);
    }
    std::fs::write(&text, source).expect("writing a C source");
    let mut cc = Command::new(compiler);
    cc.args(["-O1", "-w", "-fno-builtin", "-o"])
        .arg(&output)
        .arg(&text)
        .args(options);
    match cc.output() {
        Ok(result) if result.status.success() => Ok(output),
        Ok(result) => Err(format!(
            "{compiler} refused {name}: {}",
            String::from_utf8_lossy(&result.stderr)
        )),
        Err(error) => Err(format!("{compiler} cannot be run: {error}")),
    }
}

/// Headers, start files and libraries of an unpacked release. Its libc.so is a linker script that names files by their
/// absolute paths, some of them links out of the directory, so the libraries are named one by one instead.
fn link_against(cc: &mut Command, release: &Release) {
    let nonshared = release
        .development
        .as_ref()
        .expect("only a release with headers is linked against");
    cc.arg(format!("--sysroot={}", release.directory.display()))
        .arg(format!("-L{}", release.library_path.display()))
        .args([
            "-nodefaultlibs",
            "-l:libpthread.so.0",
            "-l:libdl.so.2",
            "-lgcc",
            "-l:libc.so.6",
        ])
        .arg(nonshared)
        .arg("-lgcc");
}
