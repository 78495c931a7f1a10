//! The choice of sites against a table that was found by hand for five glibc releases, and whole libraries where they
//! are at hand: the running system's always, other releases in `target/glibc` (or `MEMTRACE_GLIBC_DIR`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memtrace_analysis::event::Entry;
use memtrace_test_support::skip::skip;
use proptest::prelude::*;

use super::code::{Code, Piece};
use super::library::{Architecture, Library};
use super::site::{Function, Site};
use super::{CostClass, PlanError, ProbePlan, amd64, arm64, slow};

const RELEASES: [&str; 5] = ["2.31", "2.36", "2.41", "2.43", "2.44"];

/// Offsets of the sites by release: every call passes there, its arguments in registers.
#[rustfmt::skip]
const AMD64: [(&str, [u64; 5]); 11] = [
    ("malloc",         [7, 0, 0, 3, 7]),
    ("free",           [17, 3, 3, 3, 7]),
    ("calloc",         [0, 0, 0, 6, 10]),
    ("realloc",        [0, 0, 0, 6, 10]),
    ("memalign",       [4, 7, 7, 0, 11]),
    ("aligned_alloc",  [4, 7, 0, 7, 17]),
    ("posix_memalign", [0, 7, 7, 23, 13]),
    ("valloc",         [6, 7, 7, 14, 18]),
    ("pvalloc",        [6, 7, 7, 21, 25]),
    ("malloc_trim",    [0, 0, 0, 0, 4]),
    ("mallopt",        [0, 7, 7, 21, 25]),
];

#[rustfmt::skip]
const ARM64: [(&str, [u64; 5]); 2] = [
    ("malloc", [4, 12, 16, 8, 4]),
    ("free",   [4, 0, 4, 4, 8]),
];

/// (release, architecture, function) -> its first bytes.
fn stored() -> BTreeMap<(String, String, String), (u64, Vec<u8>)> {
    let lines = include_str!("fixtures/glibc-code.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let [release, architecture, name, address, _size, code] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("a line of the stored code has not six fields: {line}");
            };
            let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap();
            let code = (0..code.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&code[at..at + 2], 16).unwrap())
                .collect();
            (
                (release.to_owned(), architecture.to_owned(), name.to_owned()),
                (address, code),
            )
        })
        .collect()
}

fn site_of(architecture: &str, release: &str, name: &str) -> Site {
    let stored = stored();
    let (address, code) = &stored[&(release.to_owned(), architecture.to_owned(), name.to_owned())];
    let arguments = match name {
        "malloc" | "free" | "valloc" | "pvalloc" | "malloc_trim" => 1,
        "posix_memalign" => 3,
        _ => 2,
    };
    let function = Function {
        code,
        address: *address,
        arguments,
    };
    if architecture == "amd64" {
        amd64::site(function)
    } else {
        arm64::site(function)
    }
}

#[test]
fn amd64_sites_are_those_of_the_table() {
    for (name, offsets) in AMD64 {
        for (release, offset) in RELEASES.into_iter().zip(offsets) {
            let site = site_of("amd64", release, name);
            assert_eq!(
                (site.offset, site.cost),
                (offset, CostClass::Emulated),
                "{name} of {release}: {site:?}"
            );
        }
    }
}

#[test]
fn arm64_sites_are_those_of_the_table() {
    for (name, offsets) in ARM64 {
        for (release, offset) in RELEASES.into_iter().zip(offsets) {
            let site = site_of("arm64", release, name);
            assert_eq!(
                (site.offset, site.cost),
                (offset, CostClass::Emulated),
                "{name} of {release}: {site:?}"
            );
        }
    }
}

/// Where the stack pointer is deeper at the site than at the entry, read from the disassembly by hand.
#[test]
fn the_stack_pointer_is_followed() {
    for (architecture, release, name, moved) in [
        ("amd64", "2.31", "free", 0x18),
        ("amd64", "2.36", "malloc", 0),
        ("amd64", "2.43", "free", 0),
        ("arm64", "2.31", "malloc", 48),
        ("arm64", "2.31", "free", 32),
        ("arm64", "2.36", "malloc", 64),
        ("arm64", "2.36", "free", 0),
        ("arm64", "2.41", "malloc", 64),
        ("arm64", "2.41", "aligned_alloc", 48),
        ("arm64", "2.43", "malloc", 0),
    ] {
        assert_eq!(
            site_of(architecture, release, name).stack_moved,
            moved,
            "{architecture} {name} of {release}"
        );
    }
}

#[test]
fn a_copied_argument_is_followed() {
    for release in ["2.43", "2.44"] {
        assert_eq!(site_of("amd64", release, "valloc").first_argument, 1, "rsi");
        assert_eq!(site_of("amd64", release, "pvalloc").first_argument, 2, "rdx");
    }
    for (name, _) in AMD64.iter().filter(|(name, _)| !name.ends_with("valloc")) {
        for release in RELEASES {
            assert_eq!(site_of("amd64", release, name).first_argument, 0, "{name} of {release}");
        }
    }
}

#[test]
fn the_instruction_is_shown_in_words() {
    for (architecture, release, name, words) in [
        ("amd64", "2.36", "malloc", "push r12"),
        ("amd64", "2.36", "free", "je 0x98fb8"),
        ("amd64", "2.43", "memalign", "jmp 0xa4e00"),
        ("arm64", "2.36", "malloc", "adrp x23, 0x1a6000"),
        ("arm64", "2.36", "free", "cbz x0, 0x92ad4"),
        ("arm64", "2.36", "calloc", "stp x29, x30, [sp, #-80]!"),
        ("arm64", "2.43", "malloc", "tbnz x0, #63, 0x9b14c"),
        ("arm64", "2.43", "memalign", "b 0x9b2f0"),
        ("arm64", "2.44", "posix_memalign", "b.ls 0x9cbdc"),
    ] {
        assert_eq!(
            site_of(architecture, release, name).instruction,
            words,
            "{architecture} {name} of {release}"
        );
    }
}

/// check(code, arguments, offset, stack_moved): amd64 code made for one rule each.
#[test]
fn the_walk_gives_up_where_a_call_might_be_missed() {
    let check = |code: &[u8], arguments, offset, cost, why: &str| {
        let site = amd64::site(Function {
            code,
            address: 0x1000,
            arguments,
        });
        assert_eq!((site.offset, site.cost), (offset, cost), "{why}: {site:?}");
        site
    };
    let (cheap, dear) = (CostClass::Emulated, CostClass::SingleStepped);
    check(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0xc3], 1, 4, cheap, "endbr64; push rbp");
    check(
        &[0x48, 0x89, 0xf8, 0xc3, 0x55],
        1,
        0,
        dear,
        "mov rax, rdi; ret; push rbp",
    );
    check(&[0x31, 0xff, 0x55, 0xc3], 1, 0, dear, "xor edi, edi; push rbp");
    check(
        &[0x31, 0xf6, 0x55, 0xc3],
        1,
        2,
        cheap,
        "xor esi, esi; push rbp: esi is no argument",
    );
    check(&[0x31, 0xf6, 0x55, 0xc3], 2, 0, dear, "the same, but esi is one");
    check(&[0x0f, 0x05, 0x55, 0xc3], 1, 0, dear, "syscall; push rbp");
    check(&[0xff, 0xd0, 0x55, 0xc3], 1, 0, dear, "call rax; push rbp");
    check(
        &[0x48, 0x89, 0xf8, 0x55, 0xeb, 0xfd],
        1,
        0,
        dear,
        "mov rax, rdi; push rbp; jmp to the push",
    );
    check(
        &[0x68, 1, 0, 0, 0, 0x55, 0xc3],
        1,
        5,
        cheap,
        "push 1 (stepped); push rbp",
    );
    check(
        &[0x48, 0x8b, 0x25, 0, 0, 0, 0, 0x55],
        1,
        0,
        dear,
        "mov rsp, [rip]; push rbp",
    );
    check(
        &[0x48, 0x89, 0xfe, 0x31, 0xff, 0x55],
        2,
        0,
        dear,
        "mov rsi, rdi; xor edi, edi: two arguments are not followed",
    );
    check(&[], 1, 0, dear, "no code at all");
    let site = check(
        &[0x48, 0x81, 0xec, 0, 1, 0, 0, 0x55],
        1,
        7,
        cheap,
        "sub rsp, 256; push rbp",
    );
    assert_eq!(site.stack_moved, 256);
    let site = check(
        &[0x68, 1, 0, 0, 0, 0x48, 0x83, 0xec, 8, 0x55],
        1,
        9,
        cheap,
        "push 1; sub rsp, 8; push rbp",
    );
    assert_eq!(site.stack_moved, 16);
}

proptest! {
    #[test]
    fn no_code_makes_the_walk_fail(code in prop::collection::vec(any::<u8>(), 0..200), arguments in 1usize..=3) {
        for site in [
            amd64::site(Function { code: &code, address: 0x7000, arguments }),
            arm64::site(Function { code: &code, address: 0x7000, arguments }),
        ] {
            prop_assert!(site.offset <= code.len() as u64);
            prop_assert!(!site.reason.is_empty() && !site.instruction.is_empty());
        }
    }

    #[test]
    fn no_file_makes_the_plan_fail(bytes in prop::collection::vec(any::<u8>(), 0..400), elf in any::<bool>()) {
        let mut bytes = bytes;
        if elf && bytes.len() > 20 {
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            bytes[18..20].copy_from_slice(&[62, 0]);
        }
        prop_assert!(ProbePlan::for_library(&bytes).is_err());
    }
}

#[test]
fn a_damaged_library_gives_an_error_or_a_plan_but_no_panic() {
    let whole = std::fs::read(system_libc()).unwrap();
    for length in [0, 3, 63, 64, 200, 4_000, whole.len() / 2, whole.len() - 1] {
        let _ = ProbePlan::for_library(&whole[..length]);
    }
    // Each byte of the headers in turn.
    for at in 0..1_024 {
        let mut damaged = whole[..whole.len().min(256 << 10)].to_vec();
        damaged[at] ^= 0xff;
        let _ = ProbePlan::for_library(&damaged);
    }
}

#[test]
fn what_is_no_libc_is_named() {
    assert_eq!(ProbePlan::for_library(b"#!/bin/sh\n"), Err(PlanError::NotElf));
    assert_eq!(
        ProbePlan::for_library(b"\x7fELF\x01\x01\x01"),
        Err(PlanError::ThirtyTwoBit)
    );
    let cat = std::fs::read("/bin/cat").unwrap();
    assert_eq!(ProbePlan::for_library(&cat), Err(PlanError::NoSymbol("malloc")));
}

/// The libc this very test maps.
fn system_libc() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.contains("/libc.so.6"));
    PathBuf::from(path.expect("these tests are run by a program that maps a glibc"))
}

#[test]
fn the_running_systems_libc_has_a_plan() {
    let plan = ProbePlan::for_library(&std::fs::read(system_libc()).unwrap()).unwrap();
    // SAFETY: returns a string that lives as long as libc does.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    assert_eq!(plan.version.as_deref(), version.to_str().ok());
    for entry in [
        Entry::Malloc,
        Entry::Calloc,
        Entry::Realloc,
        Entry::Memalign,
        Entry::Free,
        Entry::MallocTrim,
    ] {
        assert!(plan.sites.iter().any(|site| site.entry == entry), "{entry:?} is probed");
    }
    // The address of malloc as the dynamic linker found it: plan and process must agree.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let code = maps
        .lines()
        .find(|line| line.contains(" r-xp ") && line.ends_with("/libc.so.6"))
        .unwrap();
    let code = u64::from_str_radix(code.split('-').next().unwrap(), 16).unwrap();
    let base = code - (plan.text.0 & !0xfff);
    assert_eq!(base + plan.sites[0].function, libc::malloc as *const () as u64);
}

const SKIPPABLE: &str = "whole_libraries_of_other_releases_have_the_plan_of_the_table";

/// Folders with an unpacked libc6 each, as `MEMTRACE_GLIBC_DIR` or the workspace's target folder has them.
fn releases(architecture: &str) -> Vec<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (variable, folder) = match architecture {
        "amd64" => ("MEMTRACE_GLIBC_DIR", "target/glibc"),
        _ => ("MEMTRACE_GLIBC_ARM64_DIR", "target/glibc-arm64"),
    };
    let root = std::env::var_os(variable).map_or_else(|| workspace.join(folder), PathBuf::from);
    let Ok(suites) = std::fs::read_dir(&root) else {
        let why = format!(
            "no other glibc releases for {architecture}: {} is not there",
            root.display()
        );
        skip(SKIPPABLE, &why);
        return Vec::new();
    };
    let triplet = if architecture == "amd64" {
        "x86_64-linux-gnu"
    } else {
        "aarch64-linux-gnu"
    };
    let places = ["lib", "usr/lib"].map(|lib| format!("{lib}/{triplet}/libc.so.6"));
    let suites = suites.map(|suite| suite.unwrap().path());
    suites
        .filter_map(|suite| places.iter().map(|place| suite.join(place)).find(|path| path.exists()))
        .collect()
}

const STORED: [&str; 11] = [
    "malloc",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "free",
    "malloc_trim",
    "mallopt",
];

/// The lines that stand in the stored code for a library.
fn lines_of(library: &Library<'_>) -> Vec<String> {
    let architecture = match library.architecture {
        Architecture::Amd64 => "amd64",
        Architecture::Arm64 => "arm64",
    };
    let line = |name: &str| {
        let symbol = library.function(name).unwrap();
        let segment = library.segment(symbol.address).unwrap();
        let code = &segment.bytes[(symbol.address - segment.address) as usize..];
        let code: String = code[..(symbol.size as usize).min(64)]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let version = library.version().unwrap();
        format!(
            "{version} {architecture} {name} {:#x} {} {code}",
            symbol.address, symbol.size
        )
    };
    STORED.into_iter().map(line).collect()
}

/// Pieces of code around malloc by release and architecture, see the head of the file.
const GRAPHS: &str = include_str!("fixtures/glibc-graph.txt");

/// `_int_malloc` by release, as glibc's debug symbols name it, and the offset and stack movement of the site in it.
type SlowSites = [(u64, u64, u32); 5];

#[rustfmt::skip]
const SLOW_PATH: [(&str, SlowSites); 2] = [
    ("amd64", [(0x84240, 0, 0), (0x97360, 3, 0), (0xa0fe0, 3, 0), (0xa3040, 0, 0), (0xa51a0, 0, 0)]),
    ("arm64", [(0x76fd0, 12, 192), (0x90b50, 12, 128), (0x95e60, 16, 128), (0x99200, 0, 0), (0x99b60, 0, 0)]),
];

/// The code of one release from [`GRAPHS`], its bytes in `memory`, and the address of main_arena.
fn graph<'a>(release: &str, architecture: &str, memory: &'a [(u64, u64, Vec<u8>)]) -> (Code<'a>, u64) {
    let mut code = Code {
        architecture: if architecture == "amd64" {
            Architecture::Amd64
        } else {
            Architecture::Arm64
        },
        pieces: memory
            .iter()
            .map(|(start, end, bytes)| (*start, Piece { end: *end, bytes }))
            .collect(),
        exported: BTreeSet::new(),
        entries: Vec::new(),
    };
    let mut main_arena = None;
    for fields in graph_lines(release, architecture) {
        match fields[..] {
            ["main_arena", address] => main_arena = Some(number(address)),
            ["exported", address] => _ = code.exported.insert(number(address)),
            [name, address] => {
                let entry = Entry::ALL.into_iter().find(|entry| entry.name() == name).unwrap();
                code.entries.push((entry, number(address)));
            }
            _ => {}
        }
    }
    (code, main_arena.unwrap())
}

fn graph_lines<'a>(release: &str, architecture: &str) -> impl Iterator<Item = Vec<&'a str>> {
    let head = [release.to_owned(), architecture.to_owned()];
    GRAPHS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .filter(move |fields| fields[..2] == head)
        .map(|fields| fields[2..].to_vec())
}

/// Begin, end and bytes of the pieces; of those that are only called, no bytes.
fn memory(release: &str, architecture: &str) -> Vec<(u64, u64, Vec<u8>)> {
    let pieces = graph_lines(release, architecture).filter(|fields| fields[0] == "piece");
    pieces
        .map(|fields| {
            let code = fields.get(3).copied().unwrap_or_default();
            let bytes = (0..code.len()).step_by(2);
            let bytes = bytes.map(|at| u8::from_str_radix(&code[at..at + 2], 16).unwrap());
            (number(fields[1]), number(fields[2]), bytes.collect())
        })
        .collect()
}

fn number(hexadecimal: &str) -> u64 {
    u64::from_str_radix(hexadecimal.trim_start_matches("0x"), 16).unwrap()
}

#[test]
fn the_slow_path_is_found_by_who_calls_it() {
    for (architecture, table) in SLOW_PATH {
        for (release, (function, offset, moved)) in RELEASES.into_iter().zip(table) {
            let memory = memory(release, architecture);
            let (code, main_arena) = graph(release, architecture, &memory);
            let slow = slow::find(&code, main_arena).unwrap();
            assert_eq!(slow.function, function, "{architecture} {release}");
            assert_eq!(
                (slow.site.offset, slow.site.cost, slow.site.stack_moved),
                (offset, CostClass::Emulated, moved),
                "{architecture} {release}: {:?}",
                slow.site
            );
            // Another arena's address is not what malloc hands over.
            assert!(slow::find(&code, main_arena + 16).is_err(), "{architecture} {release}");
            // Without calloc's word nothing is certain.
            let without = Code {
                entries: code
                    .entries
                    .iter()
                    .copied()
                    .filter(|(entry, _)| *entry != Entry::Calloc)
                    .collect(),
                ..code.clone()
            };
            assert_eq!(
                slow::find(&without, main_arena),
                Err(String::from("there is no calloc"))
            );
            let whose = slow::allocator_code(&code);
            assert_eq!(whose.pieces[&code.entry(Entry::Malloc).unwrap()], [Entry::Malloc]);
            assert_eq!(whose.pieces.get(&function), None, "it runs in frames of its own");
        }
    }
}

/// What [`graph`] needs of a library.
fn graph_of(library: &Library<'_>) -> Vec<String> {
    let code = Code::of(library).unwrap();
    let plan = ProbePlan::for_library(library.bytes).unwrap();
    let version = library.version().unwrap();
    let architecture = match library.architecture {
        Architecture::Amd64 => "amd64",
        Architecture::Arm64 => "arm64",
    };
    let head = format!("{version} {architecture}");
    let mut lines = vec![format!("{head} main_arena {:#x}", plan.main_arena.unwrap())];
    let mut whole = BTreeSet::new();
    let mut called = BTreeSet::new();
    for &(entry, address) in &code.entries {
        lines.push(format!("{head} {} {address:#x}", entry.name()));
        if !matches!(entry, Entry::Malloc | Entry::Calloc | Entry::Realloc | Entry::Memalign) {
            called.insert(address);
            continue;
        }
        let body = code.body(address);
        let first = code.called(&body);
        called.extend(body.ends_in);
        called.extend(first.keys().copied());
        whole.extend(body.pieces);
        if matches!(entry, Entry::Realloc | Entry::Memalign) {
            let leading = first.into_keys().filter(|&function| {
                let further = code.called(&code.body(function));
                further.contains_key(&plan.slow_path.as_ref().unwrap().function)
            });
            for function in leading.filter(|&function| !code.is_entry(function)) {
                let body = code.body(function);
                called.extend(code.called(&body).into_keys());
                whole.extend(body.pieces);
            }
        }
    }
    let hex = |piece: u64, most: usize| {
        let bytes = code.bytes(piece);
        bytes[..bytes.len().min(most)]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    for &piece in whole.union(&called) {
        let end = code.pieces[&piece].end;
        if code.exported.contains(&piece) {
            lines.push(format!("{head} exported {piece:#x}"));
        }
        let most = if whole.contains(&piece) { usize::MAX } else { 64 };
        lines.push(format!("{head} piece {piece:#x} {end:#x} {}", hex(piece, most)));
    }
    lines
}

#[test]
#[ignore = "makes the stored code of the releases at hand"]
fn print_stored_graphs() {
    for path in ["amd64", "arm64"].into_iter().flat_map(releases) {
        let bytes = std::fs::read(path).unwrap();
        for line in graph_of(&Library::parse(&bytes).unwrap()) {
            println!("{line}");
        }
    }
}

#[test]
#[ignore = "makes the stored code of the releases at hand"]
fn print_stored_code() {
    for path in ["amd64", "arm64"].into_iter().flat_map(releases) {
        let bytes = std::fs::read(path).unwrap();
        for line in lines_of(&Library::parse(&bytes).unwrap()) {
            println!("{line}");
        }
    }
}

#[test]
fn whole_libraries_of_other_releases_have_the_plan_of_the_table() {
    for (architecture, table) in [("amd64", &AMD64[..10]), ("arm64", &ARM64[..])] {
        for path in releases(architecture) {
            let plan = ProbePlan::for_library(&std::fs::read(&path).unwrap()).unwrap();
            let version = plan.version.clone().unwrap();
            let Some(column) = RELEASES.iter().position(|release| *release == version) else {
                let why = format!("{} is glibc {version}, which the table does not have", path.display());
                skip(SKIPPABLE, &why);
                continue;
            };
            for (name, offsets) in table {
                let site = plan.sites.iter().find(|site| site.entry.name() == *name);
                if *name == "aligned_alloc" && column < 2 {
                    assert_eq!(site, None, "the same address as memalign in {version}");
                } else {
                    assert_eq!(
                        site.map(|site| site.offset),
                        Some(offsets[column]),
                        "{name} of {version} {architecture}"
                    );
                }
            }
            // Up to 2.42 thread exit frees at two places; from 2.43 a thread's first free comes by twice instead.
            let recent = column >= 3;
            assert_eq!(
                plan.spurious_free_returns.len(),
                if recent { 0 } else { 2 },
                "{version} {architecture}"
            );
            assert_eq!(plan.first_free_twice, recent, "{version} {architecture}");
            assert_eq!(plan.hooks.is_some(), column == 0, "{version} {architecture}");
            // The functions that they come with are local ones, near malloc.
            for hook in plan.hooks.iter().flatten() {
                assert!(
                    hook.function.abs_diff(plan.sites[0].function) < 0x2000,
                    "{hook:x?} {architecture}"
                );
            }
            let huge_page_offset = [None, Some(48), Some(48), Some(56), Some(56)][column];
            assert_eq!(plan.huge_page_offset, huge_page_offset, "{version} {architecture}");
            let (_, slow) = SLOW_PATH.iter().find(|(known, _)| *known == architecture).unwrap();
            assert_eq!(plan.slow_path.as_ref().unwrap().function, slow[column].0, "{version}");
            assert!(plan.main_arena.is_some() && plan.mp.is_some());
            assert!(plan.limits.is_empty(), "{:?}", plan.limits);
            assert_eq!(plan.top_offset, Some(if recent { 8 } else { 96 }));
            assert!(plan.build_id.as_ref().is_some_and(|id| id.len() == 40));
        }
    }
}
