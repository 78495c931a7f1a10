//! The C programs of the tests, compiled ahead: a compiler in a guest would run twenty times slower than here.
//!
//! Linked against the oldest glibc, so that they run with every other, or static. The tests take them from the directory that
//! `MEMTRACE_TEST_PROGRAMS` names instead of compiling, each by its
//! directory and the name of its source with its options behind it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::guest::Installed;
use super::userland::Userland;
use crate::cross::{Cross, Link};
use crate::process;
use crate::workspace;

/// Where they are in the guest.
pub const DIRECTORY: &str = "/programs";
pub const VARIABLE: &str = "MEMTRACE_TEST_PROGRAMS";

/// Below memtrace/tests. The compiler must not replace, merge or drop allocator calls: they are what is counted.
const SOURCES: [(&str, &[&str]); 2] = [
    ("programs", &["-O1", "-w", "-fno-builtin"]),
    ("support/c", &["-std=gnu11", "-O1", "-w", "-fno-builtin", "-ldl"]),
];
/// Built as shared libraries.
const LIBRARIES: [&str; 1] = ["counter"];
/// Built once more with each of these options.
const VARIANTS: [(&str, &[&str]); 2] = [
    ("known", &["-no-pie", "-static", "-static-pie"]),
    ("getppid_storm", &["-DOWN_MALLOC"]),
];

pub fn build(cross: &Cross, oldest: &Userland) -> Result<Vec<Installed>> {
    let output = workspace::target().join("kernels/compiled").join(cross.arch.debian());
    fs::create_dir_all(&output).with_context(|| format!("making {}", output.display()))?;
    let mut built = Vec::new();
    for (directory, flags) in SOURCES {
        for (name, source) in sources(&workspace::root().join("memtrace/tests").join(directory))? {
            // Two directories may have sources of one name.
            let place = Path::new(directory).file_name().context("a directory has a name")?;
            built.push(Installed {
                at: Path::new(DIRECTORY).join(place).join(format!("{name}.c")),
                from: source.clone(),
            });
            let mut add = |file: String, more: &[&str]| {
                let to = output.join(place).join(&file);
                fs::create_dir_all(output.join(place)).with_context(|| format!("making {}", output.display()))?;
                compile(cross, oldest, &source, &[flags, more].concat(), &to)?;
                built.push(Installed {
                    at: Path::new(DIRECTORY).join(place).join(file),
                    from: to,
                });
                anyhow::Ok(())
            };
            if LIBRARIES.contains(&&*name) {
                add(format!("lib{name}.so"), &["-shared", "-fPIC"])?;
                continue;
            }
            add(name.clone(), &[])?;
            for option in VARIANTS
                .iter()
                .filter(|(of, _)| *of == name)
                .flat_map(|(_, options)| *options)
            {
                add(format!("{name}{option}"), &[option])?;
            }
        }
    }
    Ok(built)
}

/// C sources with their names, in order.
fn sources(directory: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("listing {}", directory.display()))? {
        let file = entry
            .with_context(|| format!("listing {}", directory.display()))?
            .path();
        if file.extension().is_some_and(|extension| extension == "c") {
            let name = file.file_stem().context("a source has a name")?;
            found.push((name.to_string_lossy().into_owned(), file));
        }
    }
    found.sort();
    Ok(found)
}

/// Options go behind the source, where libraries have to be.
fn compile(cross: &Cross, oldest: &Userland, source: &Path, options: &[&str], to: &Path) -> Result<()> {
    let is_static = options.iter().any(|option| option.starts_with("-static"));
    let link = if is_static {
        Link::Static
    } else {
        Link::Dynamic(&oldest.root)
    };
    let mut compiler = cross.compiler(link);
    // Not for all: the oldest release has a library of its own for threads, and a test gives a program a root without it.
    let text = fs::read_to_string(source).with_context(|| format!("reading {}", source.display()))?;
    if text.contains("pthread.h") {
        compiler.arg("-pthread");
    }
    compiler.arg("-o").arg(to).arg(source).args(options);
    let doing = format!("compiling {} for the guests", source.display());
    process::capture(&mut compiler, &doing).map(drop)
}
