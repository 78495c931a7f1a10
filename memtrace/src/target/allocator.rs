//! Who serves malloc: told from the names that the mapped files define, in the order in which the loader searches them.

use memtrace_analysis::event::{AllocatorKind, ModuleRole};

use super::facts::Facts;

/// A mapped ELF file, in search order.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    /// As the process names it.
    pub shown: &'a str,
    pub facts: &'a Facts,
    pub is_program: bool,
    pub is_loader: bool,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Served {
    pub kind: AllocatorKind,
    /// Index of the file that defines malloc first.
    pub by: Option<usize>,
    /// Index of the file whose malloc can be probed, with glibc's in it.
    pub glibc: Option<usize>,
    pub evidence: String,
    pub limits: Vec<String>,
}

impl Served {
    fn unseen(kind: AllocatorKind, by: Option<usize>, evidence: String) -> Self {
        Self {
            kind,
            by,
            glibc: None,
            evidence,
            limits: Vec::new(),
        }
    }
}

/// Judges the files of a dynamically linked program.
pub(super) fn dynamic(files: &[Candidate<'_>]) -> Served {
    let name = |index: usize| files[index].shown;
    // musl's loader and its C library are one file, by whatever name.
    let by_musl = files
        .iter()
        .any(|file| file.facts.interpreter.as_deref().is_some_and(is_musl));
    let musl = files
        .iter()
        .position(|file| is_musl(file.shown) || (by_musl && file.is_loader));
    if let Some(musl) = musl {
        let evidence = format!("maps {}, the C library of musl", name(musl));
        return Served::unseen(AllocatorKind::Musl, Some(musl), evidence);
    }
    // The loader of old glibcs has a small malloc of its own for its own start.
    // A program's own calls are bound to its own malloc also where it does not export it.
    let defines = |file: &Candidate<'_>| match (file.is_loader, file.is_program) {
        (true, _) => false,
        (_, true) => file.facts.has("malloc"),
        (_, false) => file.facts.exports.contains("malloc"),
    };
    let first = files.iter().position(defines);
    let glibc = files.iter().position(|file| is_glibc(file.shown, file.facts));
    let Some(first) = first else {
        return Served::unseen(
            AllocatorKind::Unknown,
            None,
            String::from("maps no library that exports malloc"),
        );
    };
    if glibc == Some(first) {
        let mut evidence = format!("malloc is that of {}; nothing before it defines one", name(first));
        let mut limits = Vec::new();
        if let Some((kind, names)) = private_allocator(files) {
            evidence += &format!("; {names}");
            limits.push(format!(
                "{kind} serves a part of the program's allocations under names of its own; they are seen as system calls only"
            ));
        }
        return Served {
            kind: AllocatorKind::Glibc,
            by: Some(first),
            glibc,
            evidence,
            limits,
        };
    }
    let place = if files[first].is_program {
        "the program itself"
    } else {
        name(first)
    };
    match known(name(first), files[first].facts) {
        Some((kind, what)) => {
            let evidence = format!("malloc is defined first by {place}, which is {what}");
            Served::unseen(kind, Some(first), evidence)
        }
        None => match glibc {
            Some(index) => Served {
                kind: AllocatorKind::Glibc,
                // What is traced is the glibc behind it.
                by: Some(index),
                glibc,
                evidence: format!(
                    "malloc is defined first by {place}, which is no allocator known, then by {}",
                    name(index)
                ),
                limits: vec![format!(
                    "calls of malloc go to {place} first; only those that it hands on to glibc are seen"
                )],
            },
            None => {
                let evidence = format!("malloc is defined by {place}, which is no allocator known");
                Served::unseen(AllocatorKind::Unknown, Some(first), evidence)
            }
        },
    }
}

/// Judges a statically linked program. `text` finds a string in its file.
pub(super) fn static_program(facts: &Facts, contains: impl Fn(&[u8]) -> bool) -> Served {
    // Messages of malloc_printerr, in every static glibc program that allocates.
    let glibc_says = || contains(b"malloc(): corrupted top size") || contains(b"free(): invalid pointer");
    if let Some((kind, what)) = known("", facts).filter(|_| facts.has("malloc")) {
        return Served::unseen(
            kind,
            Some(0),
            format!("a static program that defines malloc and carries {what}"),
        );
    }
    if facts.has("_int_malloc") && facts.has("malloc") && facts.has("free") {
        return Served {
            kind: AllocatorKind::GlibcStatic,
            by: Some(0),
            glibc: Some(0),
            evidence: String::from("a static program with glibc's malloc (_int_malloc) among its symbols"),
            limits: Vec::new(),
        };
    }
    if glibc_says() {
        let evidence = String::from("a static program with glibc's malloc inside, whose symbols have been stripped");
        return Served::unseen(AllocatorKind::GlibcStatic, Some(0), evidence);
    }
    if facts.go {
        let evidence = String::from("a static Go program, whose runtime allocates for itself");
        return Served::unseen(AllocatorKind::Unknown, Some(0), evidence);
    }
    if facts.has("__init_libc") || contains(b"MUSL_LOCPATH") {
        return Served::unseen(
            AllocatorKind::Musl,
            Some(0),
            String::from("a static program with musl's C library inside"),
        );
    }
    Served::unseen(
        AllocatorKind::Unknown,
        None,
        String::from("a static program without signs of an allocator known"),
    )
}

pub(super) fn is_glibc(shown: &str, facts: &Facts) -> bool {
    let named = is_named_glibc(file_name(shown));
    facts.exports.contains("gnu_get_libc_version") && (named || facts.exports.contains("malloc"))
}

fn is_named_glibc(name: &str) -> bool {
    name == "libc.so.6" || (name.starts_with("libc-2.") && name.ends_with(".so"))
}

pub(super) fn is_musl(shown: &str) -> bool {
    let name = file_name(shown);
    name.starts_with("ld-musl-") || name.starts_with("libc.musl-")
}

/// The allocator that this file is or holds, by its name or its own entry points.
fn known(shown: &str, facts: &Facts) -> Option<(AllocatorKind, &'static str)> {
    let name = file_name(shown);
    let any = |names: &[&str]| names.iter().any(|name| facts.has(name));
    if name.contains("jemalloc") || any(&["mallctl", "je_malloc"]) {
        Some((AllocatorKind::Jemalloc, "jemalloc"))
    } else if name.contains("tcmalloc") || any(&["tc_malloc", "MallocExtension_ReleaseFreeMemory"]) {
        Some((AllocatorKind::Tcmalloc, "tcmalloc"))
    } else if name.contains("mimalloc") || any(&["mi_malloc"]) {
        Some((AllocatorKind::Mimalloc, "mimalloc"))
    } else if name.contains("libc_malloc_debug") {
        // With MALLOC_CHECK_ it serves every call from a heap of its own.
        Some((AllocatorKind::Unknown, "glibc's checking malloc"))
    } else if name.contains("libasan") || any(&["__asan_init"]) {
        Some((AllocatorKind::Unknown, "AddressSanitizer's allocator"))
    } else if ["snmalloc", "rpmalloc", "tbbmalloc", "libhoard", "scudo"]
        .iter()
        .any(|known| name.contains(known))
    {
        Some((AllocatorKind::Unknown, "an allocator of its own"))
    } else {
        None
    }
}

/// An allocator that goes by names of its own beside malloc, as Rust programs have jemalloc.
fn private_allocator(files: &[Candidate<'_>]) -> Option<(&'static str, String)> {
    let signs = [
        ("_rjem_malloc", "jemalloc"),
        ("mallctl", "jemalloc"),
        ("tc_malloc", "tcmalloc"),
        ("mi_malloc", "mimalloc"),
    ];
    files.iter().find_map(|file| {
        let (symbol, kind) = signs.into_iter().find(|(symbol, _)| file.facts.has(symbol))?;
        let place = if file.is_program { "the program" } else { file.shown };
        Some((kind, format!("{place} carries {kind} too ({symbol})")))
    })
}

/// What a mapped file is to the process. Of one that cannot be opened, since the process is ending, the name tells.
pub(super) fn role(shown: &str, facts: Option<&Facts>, is_program: bool, is_loader: bool) -> ModuleRole {
    let name = file_name(shown);
    let runtime = [
        "libjvm.",
        "libcoreclr.",
        "libclrjit.",
        "libmono",
        "libv8",
        "libnode.",
        "libmozjs",
        "libjavascriptcore",
    ];
    if facts.is_some_and(|facts| facts.go) || runtime.iter().any(|runtime| name.starts_with(runtime)) {
        ModuleRole::Runtime
    } else if is_program {
        match name {
            "node" | "nodejs" | "deno" | "bun" => ModuleRole::Runtime,
            _ => ModuleRole::Program,
        }
    } else if is_musl(name) || is_loader && facts.is_some_and(|facts| facts.exports.contains("__libc_start_main")) {
        // musl's loader, its malloc and all the rest are one file.
        ModuleRole::Libc
    } else if is_loader || name.starts_with("ld-linux") {
        ModuleRole::Loader
    } else if facts.map_or_else(|| is_named_glibc(name), |facts| is_glibc(shown, facts)) {
        ModuleRole::Libc
    } else if known(shown, facts.unwrap_or(&Facts::default())).is_some() {
        ModuleRole::Allocator
    } else {
        ModuleRole::Library
    }
}

fn file_name(shown: &str) -> &str {
    shown.rsplit('/').next().unwrap_or(shown)
}
