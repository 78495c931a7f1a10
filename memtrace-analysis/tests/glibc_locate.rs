//! What is found in a stripped library must equal what its debug symbols say.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use memtrace_analysis::glibc::{Anatomy, Machine, Unsupported, Version};
use proptest::prelude::*;

/// Values of the symbols asked for, from an ELF file's .symtab.
fn symbols(file: &[u8], names: &[&str]) -> BTreeMap<String, u64> {
    let half = |at: usize| u16::from_le_bytes(file[at..at + 2].try_into().unwrap());
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let wide = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let (table, entries) = (wide(40) as usize, half(60) as usize);
    let section = |index: usize| table + index * 64;
    let mut found = BTreeMap::new();
    for at in (0..entries).map(section).filter(|at| word(at + 4) == 2) {
        let strings = wide(section(word(at + 40)) + 24) as usize;
        let (begin, length) = (wide(at + 24) as usize, wide(at + 32) as usize);
        for symbol in (begin..begin + length).step_by(24) {
            let name = strings + word(symbol);
            let end = name + file[name..].iter().position(|byte| *byte == 0).unwrap();
            let name = std::str::from_utf8(&file[name..end]).unwrap();
            if names.contains(&name) && half(symbol + 6) != 0 {
                found.insert(name.to_owned(), wide(symbol + 8));
            }
        }
    }
    found
}

/// The build-id as the path of its debug file: "xx/yyyy.debug".
fn debug_file(library: &[u8]) -> Option<String> {
    let note = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    let at = library.windows(note.len()).position(|window| window == note)? + note.len();
    let hex: String = library[at..at + 20].iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("usr/lib/debug/.build-id/{}/{}.debug", &hex[..2], &hex[2..]))
}

#[test]
fn the_running_libc_is_known() {
    let library = std::fs::read(common::own_library()).unwrap();
    let anatomy = Anatomy::of_library(&library).unwrap();
    let host = if cfg!(target_arch = "aarch64") {
        Machine::Arm64
    } else {
        Machine::Amd64
    };
    assert_eq!(anatomy.machine, host);
    assert!(anatomy.version.is_known());
}

#[test]
fn addresses_equal_the_debug_symbols() {
    let (mut versions, mut compared) = (Vec::new(), 0);
    for (folder, path) in common::fetched_libraries() {
        let library = std::fs::read(&path).unwrap();
        let anatomy = Anatomy::of_library(&library).unwrap_or_else(|reason| panic!("{}: {reason}", path.display()));
        versions.push(anatomy.version);
        let suite = path
            .strip_prefix(&folder)
            .unwrap()
            .components()
            .scan(folder.clone(), |root, part| {
                root.push(part);
                Some(root.clone())
            });
        let debug = debug_file(&library).expect("each of these libraries has a build-id");
        let Some(debug) = suite.map(|root| root.join(&debug)).find(|file| Path::is_file(file)) else {
            eprintln!("SKIPPED: no debug symbols beside {}", path.display());
            continue;
        };
        let symbols = symbols(&std::fs::read(debug).unwrap(), &["mp_", "main_arena"]);
        assert_eq!(symbols.get("mp_"), Some(&anatomy.mp), "mp_ of {}", path.display());
        assert_eq!(
            symbols.get("main_arena"),
            Some(&anatomy.main_arena),
            "main_arena of {}",
            path.display()
        );
        compared += 1;
    }
    eprintln!("compared {compared} libraries with their debug symbols: {versions:?}");
}

#[test]
fn other_files_are_refused_with_a_reason() {
    assert_eq!(Anatomy::of_library(b""), Err(Unsupported::NotElf));
    assert_eq!(Anatomy::of_library(b"#!/bin/sh\n"), Err(Unsupported::NotElf));
    let own = std::fs::read("/proc/self/exe").unwrap();
    assert_eq!(Anatomy::of_library(&own), Err(Unsupported::NoVersion));
    let mut narrow = own.clone();
    narrow[4] = 1;
    assert_eq!(Anatomy::of_library(&narrow), Err(Unsupported::WordSize));
    let mut foreign = own;
    foreign[18] = 243;
    assert_eq!(Anatomy::of_library(&foreign), Err(Unsupported::Machine(243)));
}

/// The running libc with another banner.
fn with_banner(banner: &str) -> Vec<u8> {
    let mut library = std::fs::read(common::own_library()).unwrap();
    let needle = b"release version 2.";
    let at = library
        .windows(needle.len())
        .position(|window| window == needle)
        .unwrap()
        + needle.len()
        - 2;
    library[at..at + banner.len()].copy_from_slice(banner.as_bytes());
    library
}

#[test]
fn unknown_releases_are_never_guessed() {
    for (banner, expected) in [
        ("2.30. ", Unsupported::Version(Version { major: 2, minor: 30 })),
        ("2.45. ", Unsupported::Version(Version { major: 2, minor: 45 })),
        ("3.36. ", Unsupported::Version(Version { major: 3, minor: 36 })),
        ("2.36.9000.", Unsupported::Snapshot(Version { major: 2, minor: 36 })),
    ] {
        assert_eq!(Anatomy::of_library(&with_banner(banner)), Err(expected));
    }
}

#[test]
fn a_banner_that_the_layout_contradicts_is_refused() {
    let own = Anatomy::of_library(&std::fs::read(common::own_library()).unwrap())
        .unwrap()
        .version;
    let other = if own.minor < 43 { "2.43. " } else { "2.36. " };
    assert_eq!(Anatomy::of_library(&with_banner(other)), Err(Unsupported::MallocPar(0)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// A damaged library is refused or read, but never brings the reader down.
    #[test]
    fn damaged_files_do_no_harm(wounds in prop::collection::vec((0usize..4096, any::<u8>()), 1..20), cut in 0usize..3_000_000) {
        let mut library = std::fs::read(common::own_library()).unwrap();
        for (at, byte) in wounds {
            library[at] = byte;
        }
        library.truncate(cut);
        let _ = Anatomy::of_library(&library);
    }
}
