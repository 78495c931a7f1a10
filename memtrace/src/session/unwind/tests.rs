//! Whom a call returns to and what it called, on the libc this very test maps, with a disassembler and libc's own symbols
//! and relocations as oracle.

use std::collections::HashMap;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl};
use memtrace_test_support::skip::skip;
use object::{ObjectSymbolTable, RelocationTarget, SymbolIndex};

use super::*;
use crate::probe::ProbePlan;

/// Load address, as a process could have it.
const BASE: u64 = 0x7f12_3456_7000;

/// A call inside an exported function.
struct Call {
    /// Address behind it.
    end: u64,
    length: usize,
    /// What it calls; None for a call through a register or memory.
    target: Option<u64>,
}

struct Libc {
    unwinder: Unwinder,
    calls: Vec<Call>,
    /// Exported functions by address; one may have many names.
    names: HashMap<u64, Vec<String>>,
    /// Stubs by address, with the name of the function that the dynamic linker finds for them.
    stubs: HashMap<u64, String>,
}

/// None, aloud, on other machines: there is no disassembler for their code here.
fn libc(test: &str) -> Option<Libc> {
    if !cfg!(target_arch = "x86_64") {
        skip(test, "the libc at hand is not one for x86_64");
        return None;
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.contains("/libc.so.6"))
        .expect("this test is run by a program that maps a glibc");
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let mut names: HashMap<u64, Vec<String>> = HashMap::new();
    let mut calls = Vec::new();
    for symbol in file.dynamic_symbols() {
        if symbol.kind() != SymbolKind::Text || symbol.is_undefined() {
            continue;
        }
        let known = names.entry(symbol.address()).or_default();
        if known.is_empty() {
            calls.extend(calls_of(&file, symbol.address(), symbol.size()));
        }
        known.push(symbol.name().unwrap().to_owned());
    }
    let plan = ProbePlan::for_library(&bytes).unwrap();
    Some(Libc {
        unwinder: Unwinder::for_library(&bytes, plan.text, plan.code).unwrap(),
        calls,
        names,
        stubs: stubs(&file),
    })
}

fn calls_of(file: &object::File<'_>, address: u64, size: u64) -> Vec<Call> {
    let section = file
        .sections()
        .find(|section| (section.address()..section.address() + section.size()).contains(&address))
        .unwrap();
    let code = section.data_range(address, size).unwrap().unwrap();
    Decoder::with_ip(64, code, address, DecoderOptions::NONE)
        .into_iter()
        .filter_map(|instruction| {
            let target = match instruction.flow_control() {
                FlowControl::Call if instruction.code() == Code::Call_rel32_64 => Some(instruction.near_branch64()),
                FlowControl::IndirectCall => None,
                _ => return None,
            };
            Some(Call {
                end: instruction.next_ip(),
                length: instruction.len(),
                target,
            })
        })
        .collect()
}

/// A stub jumps through a word that the dynamic linker writes a function's address to.
fn stubs(file: &object::File<'_>) -> HashMap<u64, String> {
    let name = |index: SymbolIndex| {
        let symbol = file.dynamic_symbol_table()?.symbol_by_index(index).ok()?;
        Some(symbol.name().ok()?.to_owned())
    };
    let words: HashMap<u64, String> = file
        .dynamic_relocations()
        .unwrap()
        .filter_map(|(at, relocation)| match relocation.target() {
            RelocationTarget::Symbol(index) => Some((at, name(index)?)),
            _ => None,
        })
        .collect();
    let mut stubs = HashMap::new();
    for section in file.sections() {
        if !section.name().unwrap().starts_with(".plt") {
            continue;
        }
        let mut begin = section.address();
        for instruction in Decoder::with_ip(64, section.data().unwrap(), begin, DecoderOptions::NONE) {
            // Stubs are of 8 or 16 bytes, and none of their later instructions is that well aligned.
            if instruction.ip() % 8 == 0 {
                begin = instruction.ip();
            }
            if instruction.flow_control() == FlowControl::IndirectBranch
                && instruction.is_ip_rel_memory_operand()
                && let Some(name) = words.get(&instruction.ip_rel_memory_address())
            {
                stubs.insert(begin, name.clone());
            }
        }
    }
    stubs
}

#[test]
fn a_direct_call_is_read_backwards_from_its_end() {
    let Some(libc) = libc("a_direct_call_is_read_backwards_from_its_end") else {
        return;
    };
    let (mut direct, mut indirect) = (0, 0);
    for call in &libc.calls {
        let found = libc.unwinder.called_before(call.end);
        match call.target {
            Some(target) => {
                assert_eq!(found, Some(target), "the call that ends at {:#x}", call.end);
                direct += 1;
            }
            // Of a shorter one the bytes before it are looked at too, and may be anything.
            None if call.length >= 5 => {
                assert_eq!(found, None, "the indirect call that ends at {:#x}", call.end);
                indirect += 1;
            }
            None => {}
        }
    }
    assert!(
        direct > 1000 && indirect > 0,
        "{direct} direct calls, {indirect} indirect ones"
    );
    let Range { start, end } = libc.unwinder.text;
    for outside in [0, start - 1, start, start + 4, end + 1, u64::MAX] {
        assert_eq!(libc.unwinder.called_before(outside), None, "{outside:#x}");
    }
}

#[test]
fn a_call_of_the_allocator_is_told_from_one_of_another_function() {
    let Some(libc) = libc("a_call_of_the_allocator_is_told_from_one_of_another_function") else {
        return;
    };
    let another = |back| libc.unwinder.calls_another(back, BASE);
    let (mut stubs, mut allocator, mut others, mut unmaps) = (0, 0, 0, 0);
    for call in &libc.calls {
        let Some(target) = call.target else { continue };
        let found = another(Some(BASE + call.end));
        let place = format!("the call of {target:#x} that ends at {:#x}", call.end);
        if let Some(name) = libc.stubs.get(&target) {
            if ALLOCATOR.contains(&name.as_str()) {
                assert!(!found, "{place}, a stub of {name}");
                stubs += 1;
            }
        } else if let Some(names) = libc.names.get(&target) {
            let own = names.iter().any(|name| ALLOCATOR.contains(&name.as_str()));
            assert_eq!(found, !own, "{place}, {names:?}");
            allocator += usize::from(own);
            others += usize::from(!own);
            unmaps += usize::from(names.iter().any(|name| name == "munmap"));
        }
    }
    assert!(stubs + allocator > 0, "libc calls its allocator");
    assert!(
        others > 100 && unmaps > 0,
        "{others} calls of others, {unmaps} of munmap"
    );

    // The program's own calls, and what could not be read, say nothing against the allocator.
    let Range { start, end } = libc.unwinder.text;
    for outside in [0, 0x40_1234, BASE + start - 1, BASE + end, u64::MAX] {
        assert!(!another(Some(outside)), "{outside:#x}");
    }
    assert!(!another(None));
}
/// An unwind table of arm64 for one function of four instructions at 0x1000, which signs its return address first and
/// then saves it: `paciasp; stp x29, x30, [sp, #-16]!; ...`.
fn signing_function() -> Unwinder {
    const AT: u64 = 0x1000;
    const TABLE: u64 = 0x2000;
    const HEADER: u64 = 0x3000;
    let distance = |to: u64, from: u64| (to as i64 - from as i64) as i32;
    let mut eh_frame = Vec::new();
    // CIE: version 1, "zR", instructions of 4 bytes, slots of -8, x30; addresses relative, 4 bytes; the frame is at sp.
    eh_frame.extend([
        0x10, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 4, 0x78, 30, 1, 0x1b, 0x0c, 31, 0,
    ]);
    let description = eh_frame.len() as u64;
    // FDE: after one instruction the state of the signature changes, after two both registers are saved.
    eh_frame.extend(0x18_u32.to_le_bytes());
    eh_frame.extend((description as u32 + 4).to_le_bytes());
    eh_frame.extend(distance(AT, TABLE + description + 8).to_le_bytes());
    eh_frame.extend(16_u32.to_le_bytes());
    eh_frame.extend([0, 0x41, 0x2d, 0x41, 0x0e, 16, 0x80 | 29, 2, 0x80 | 30, 1, 0, 0]);
    eh_frame.extend([0; 4]);
    let mut eh_frame_hdr = vec![1, 0x1b, 0x03, 0x3b];
    eh_frame_hdr.extend(distance(TABLE, HEADER + 4).to_le_bytes());
    eh_frame_hdr.extend(1_u32.to_le_bytes());
    eh_frame_hdr.extend(distance(AT, HEADER).to_le_bytes());
    eh_frame_hdr.extend(distance(TABLE + description, HEADER).to_le_bytes());
    Unwinder {
        eh_frame,
        eh_frame_hdr,
        bases: BaseAddresses::default()
            .set_eh_frame(TABLE)
            .set_eh_frame_hdr(HEADER)
            .set_text(AT),
        architecture: Architecture::Aarch64,
        text: AT..AT + 16,
        code: vec![0; 16],
        own: HashSet::new(),
        foreign: HashSet::new(),
        stubs: Vec::new(),
        allocator: AllocatorCode::default(),
        rows: HashMap::new(),
    }
}

#[test]
fn arm64_functions_that_sign_their_return_address_are_followed() {
    let mut unwinder = signing_function();
    let row = unwinder.row(0x100c).expect("the table has a row for it");
    assert_eq!((row.function, row.base, row.offset), (0x1000, Base::Sp, 16));
    assert_eq!((row.fp, row.return_address), (Saved::At(-16), Saved::At(-8)));
    // At a system call of this function, which the program has called at slot 0x7010: the signature is no part of the address.
    let registers = Registers {
        ip: 0x100c,
        sp: 0x7000,
        fp: 0,
        lr: 0,
    };
    let stack = [0x7100, 0x00ab_0000_0000_5000];
    assert_eq!(unwinder.follow(registers, 0, 0x7010, &stack), Way::Arrives);
    assert_eq!(unwinder.follow(registers, 0, 0x7020, &stack), Way::Misses);
}
