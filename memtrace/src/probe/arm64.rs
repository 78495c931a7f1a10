//! arm64: which instruction of a function to probe, and who calls it directly.
//!
//! The kernel (arch/arm64/kernel/probes/decode-insn.c) simulates branches and adr/adrp; what else it accepts runs out of
//! line with a single step. Instructions have a fixed width, and a prologue is made of few kinds, so they are decoded by
//! hand, after the encoding tables of the Arm Architecture Reference Manual (C4.1); an unknown one ends the walk.

use super::code::Branch;
use super::site::{Branches, Function, Site};

const X29: u32 = 29;
const X30: u32 = 30;
/// The stack pointer or the zero register, as the instruction has it.
const SP_OR_ZERO: u32 = 31;

/// Where to probe `function`.
pub(super) fn site(function: Function<'_>) -> Site {
    let Function {
        code,
        address,
        arguments,
    } = function;
    let words = || {
        code.chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
    };
    let targets: Vec<u64> = words()
        .zip((address..).step_by(4))
        .filter_map(|(word, at)| branch_target(word, at))
        .collect();
    let mut stack_moved = 0;
    let mut signed = false;
    let mut obstacle = String::from("its end");

    for (word, at) in words().zip((address..).step_by(4)) {
        let offset = at - address;
        if offset > 0 && targets.contains(&at) {
            obstacle = format!("the target of a jump at +{offset}");
            break;
        }
        if let Some(instruction) = simulated(word, at) {
            let mut site = Site::cheap(offset, instruction, stack_moved, 0);
            if signed {
                site.reason += "; the return address in x30 has been signed (paciasp)";
            }
            return site;
        }
        let effect = effect(word);
        match effect {
            Effect::Unknown => {
                obstacle = format!("\"{}\" at +{offset}, which is not followed", in_words(word));
                break;
            }
            Effect::Writes(registers) => {
                if registers
                    .iter()
                    .flatten()
                    .any(|&register| (register as usize) < arguments)
                {
                    obstacle = format!("\"{}\" at +{offset}, which overwrites an argument", in_words(word));
                    break;
                }
                if registers.contains(&Some(X30)) {
                    obstacle = format!(
                        "\"{}\" at +{offset}, which overwrites the return address",
                        in_words(word)
                    );
                    break;
                }
            }
            Effect::MovesStack(by) => stack_moved += by,
            Effect::SignsReturnAddress => signed = true,
        }
    }
    Site::first(
        words().next().map_or_else(|| String::from("(no code)"), in_words),
        &obstacle,
    )
}

/// The instruction in words when the kernel simulates it.
fn simulated(word: u32, at: u64) -> Option<String> {
    let register = |is_64: bool, number: u32| match (is_64, number) {
        (true, SP_OR_ZERO) => String::from("xzr"),
        (false, SP_OR_ZERO) => String::from("wzr"),
        (true, n) => format!("x{n}"),
        (false, n) => format!("w{n}"),
    };
    let rd = bits(word, 0, 5);
    if let Some(target) = branch_target(word, at) {
        return Some(match word {
            w if w & 0xfc00_0000 == 0x1400_0000 => format!("b {target:#x}"),
            w if w & 0xfc00_0000 == 0x9400_0000 => format!("bl {target:#x}"),
            w if w & 0xff00_0010 == 0x5400_0000 => format!("b.{} {target:#x}", CONDITIONS[bits(w, 0, 4) as usize]),
            w if w & 0x7e00_0000 == 0x3400_0000 => {
                let name = if bits(w, 24, 1) == 0 { "cbz" } else { "cbnz" };
                format!("{name} {}, {target:#x}", register(bits(w, 31, 1) == 1, rd))
            }
            w => {
                let name = if bits(w, 24, 1) == 0 { "tbz" } else { "tbnz" };
                let bit = bits(w, 31, 1) << 5 | bits(w, 19, 5);
                format!("{name} {}, #{bit}, {target:#x}", register(bits(w, 31, 1) == 1, rd))
            }
        });
    }
    match word {
        w if w & 0x1f00_0000 == 0x1000_0000 => {
            let distance = signed(bits(w, 5, 19) << 2 | bits(w, 29, 2), 21);
            Some(if bits(w, 31, 1) == 0 {
                format!("adr {}, {:#x}", register(true, rd), at.wrapping_add_signed(distance))
            } else {
                format!(
                    "adrp {}, {:#x}",
                    register(true, rd),
                    (at & !0xfff).wrapping_add_signed(distance << 12)
                )
            })
        }
        w if w & 0xffff_fc1f == 0xd61f_0000 => Some(format!("br x{}", bits(w, 5, 5))),
        w if w & 0xffff_fc1f == 0xd63f_0000 => Some(format!("blr x{}", bits(w, 5, 5))),
        w if w & 0xffff_fc1f == 0xd65f_0000 => Some(String::from("ret")),
        _ => None,
    }
}

const CONDITIONS: [&str; 16] = [
    "eq", "ne", "cs", "cc", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le", "al", "nv",
];

/// Where a direct branch at `at` leads.
fn branch_target(word: u32, at: u64) -> Option<u64> {
    let distance = match word {
        w if w & 0x7c00_0000 == 0x1400_0000 => signed(bits(w, 0, 26), 26),
        w if w & 0xff00_0010 == 0x5400_0000 => signed(bits(w, 5, 19), 19),
        w if w & 0x7e00_0000 == 0x3400_0000 => signed(bits(w, 5, 19), 19),
        w if w & 0x7e00_0000 == 0x3600_0000 => signed(bits(w, 5, 14), 14),
        _ => return None,
    };
    Some(at.wrapping_add_signed(distance * 4))
}

/// What a single-stepped instruction does to that which the walk has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// General registers it writes.
    Writes([Option<u32>; 2]),
    /// Moves the stack pointer down by so many bytes.
    MovesStack(u32),
    SignsReturnAddress,
    Unknown,
}

impl Effect {
    const NOTHING: Self = Self::Writes([None, None]);

    const fn writes(register: u32) -> Self {
        Self::Writes([Some(register), None])
    }
}

/// Top-level groups of the encoding (bits 28 to 25).
fn effect(word: u32) -> Effect {
    match bits(word, 25, 4) {
        0b1000 | 0b1001 => immediate(word),
        0b1010 | 0b1011 => system(word),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => memory(word),
        0b0101 | 0b1101 => registers(word),
        _ => Effect::Unknown,
    }
}

/// Data processing with an immediate.
fn immediate(word: u32) -> Effect {
    let rd = bits(word, 0, 5);
    let flags = bits(word, 29, 1) == 1;
    match bits(word, 23, 3) {
        // Add and subtract: without flags, register 31 is the stack pointer.
        0b010 if rd == SP_OR_ZERO && !flags => {
            let by = bits(word, 10, 12) << (12 * bits(word, 22, 1));
            let plain_sub = bits(word, 30, 2) == 0b11 && bits(word, 5, 5) == SP_OR_ZERO;
            if plain_sub {
                Effect::MovesStack(by)
            } else {
                Effect::Unknown
            }
        }
        0b010 => Effect::writes(rd),
        // Logical: likewise, but for ANDS.
        0b100 if rd == SP_OR_ZERO && bits(word, 29, 2) != 0b11 => Effect::Unknown,
        // Logical, wide moves, bitfields, extracts.
        0b100..=0b111 => Effect::writes(rd),
        _ => Effect::Unknown,
    }
}

/// Branches, exceptions and system instructions: only hints and `mrs` are passed by.
fn system(word: u32) -> Effect {
    match word {
        NOP | BTI | BTI_C | BTI_J | BTI_JC => Effect::NOTHING,
        PACIASP => Effect::SignsReturnAddress,
        w if w & 0xfff0_0000 == 0xd530_0000 => Effect::writes(bits(w, 0, 5)),
        _ => Effect::Unknown,
    }
}

const NOP: u32 = 0xd503_201f;
const PACIASP: u32 = 0xd503_233f;
const BTI: u32 = 0xd503_241f;
const BTI_C: u32 = 0xd503_245f;
const BTI_J: u32 = 0xd503_249f;
const BTI_JC: u32 = 0xd503_24df;

/// Loads and stores of general registers: pairs, and single ones at an immediate or a register offset.
fn memory(word: u32) -> Effect {
    if bits(word, 26, 1) == 1 {
        return Effect::Unknown; // SIMD registers
    }
    let (rt, rn, rt2) = (bits(word, 0, 5), bits(word, 5, 5), bits(word, 10, 5));
    match bits(word, 27, 3) {
        // Pairs: bits 24 and 23 are 10 for a plain offset, 11 and 01 where the base is moved.
        0b101 => {
            let load = bits(word, 22, 1) == 1;
            match (bits(word, 23, 2), load) {
                (0b10, true) => Effect::Writes([Some(rt), Some(rt2)]),
                (0b10, false) => Effect::NOTHING,
                (0b11, false) if rn == SP_OR_ZERO => {
                    let unit = if bits(word, 31, 1) == 1 { 8 } else { 4 };
                    let by = signed(bits(word, 15, 7), 7) * unit;
                    u32::try_from(-by).map_or(Effect::Unknown, Effect::MovesStack)
                }
                _ => Effect::Unknown,
            }
        }
        0b111 => {
            let load = bits(word, 22, 2) != 0;
            let prefetch = bits(word, 30, 2) == 0b11 && bits(word, 22, 2) == 0b10;
            let plain = bits(word, 24, 1) == 1
                || (bits(word, 21, 1) == 0 && bits(word, 10, 2) == 0b00)
                || (bits(word, 21, 1) == 1 && bits(word, 10, 2) == 0b10);
            let push = bits(word, 24, 1) == 0 && bits(word, 21, 1) == 0 && bits(word, 10, 2) == 0b11;
            if plain {
                if load && !prefetch {
                    Effect::writes(rt)
                } else {
                    Effect::NOTHING
                }
            } else if push && !load && rn == SP_OR_ZERO {
                u32::try_from(-signed(bits(word, 12, 9), 9)).map_or(Effect::Unknown, Effect::MovesStack)
            } else {
                Effect::Unknown
            }
        }
        _ => Effect::Unknown,
    }
}

/// Data processing with registers.
fn registers(word: u32) -> Effect {
    let rd = bits(word, 0, 5);
    let extended = bits(word, 24, 5) == 0b01011 && bits(word, 21, 1) == 1;
    if extended && rd == SP_OR_ZERO && bits(word, 29, 1) == 0 {
        return Effect::Unknown; // adds a register to the stack pointer
    }
    if bits(word, 21, 8) == 0b1101_0010 {
        return Effect::NOTHING; // a conditional compare: only flags
    }
    Effect::writes(rd)
}

/// The few instructions functions begin with; any other is shown as its code.
fn in_words(word: u32) -> String {
    match word {
        NOP => String::from("nop"),
        PACIASP => String::from("paciasp"),
        BTI => String::from("bti"),
        BTI_C => String::from("bti c"),
        BTI_J => String::from("bti j"),
        BTI_JC => String::from("bti jc"),
        w if w & 0xffc0_7fff == 0xa980_0000 | X30 << 10 | SP_OR_ZERO << 5 | X29 => {
            format!("stp x29, x30, [sp, #{}]!", signed(bits(w, 15, 7), 7) * 8)
        }
        w => format!(".inst {w:#010x}"),
    }
}

/// Direct calls and jumps from `code` to `target`.
pub(super) fn direct_branches(code: &[u8], address: u64, target: u64) -> Branches {
    let mut found = Branches::default();
    for (word, at) in code.chunks_exact(4).zip((address..).step_by(4)) {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        if word & 0x7c00_0000 == 0x1400_0000 && branch_target(word, at) == Some(target) {
            let kind = if bits(word, 31, 1) == 1 {
                &mut found.calls
            } else {
                &mut found.jumps
            };
            kind.push(at + 4);
        }
    }
    found
}

const fn bits(word: u32, from: u32, count: u32) -> u32 {
    (word >> from) & ((1 << count) - 1)
}

/// Extends the sign of a field of `width` bits.
const fn signed(field: u32, width: u32) -> i64 {
    let shift = 32 - width;
    (((field << shift) as i32) >> shift) as i64
}

/// Direct branches of a piece of code, those within it included.
pub(super) fn branches(code: &[u8], address: u64) -> Vec<Branch> {
    instructions(code, address)
        .filter_map(|(word, at)| {
            Some(Branch {
                call: word & 0xfc00_0000 == 0x9400_0000,
                target: branch_target(word, at)?,
            })
        })
        .collect()
}

fn instructions(code: &[u8], address: u64) -> impl Iterator<Item = (u32, u64)> {
    code.chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .zip((address..).step_by(4))
}

/// At one of its calls of `function` at least, the code has `value` in the first argument.
///
/// Registers are followed in the order of the code through `adrp`, `add` and `mov`; where a jump may come in from
/// elsewhere, nothing is known.
pub(super) fn hands_over(code: &[u8], address: u64, function: u64, value: u64) -> bool {
    let targets: Vec<u64> = instructions(code, address)
        .filter_map(|(word, at)| branch_target(word, at))
        .collect();
    let mut holds: [Option<u64>; 32] = [None; 32];
    for (word, at) in instructions(code, address) {
        if targets.contains(&at) {
            holds = [None; 32];
        }
        let (rd, rn, rm) = (bits(word, 0, 5), bits(word, 5, 5), bits(word, 16, 5));
        let known = |register: u32| holds[register as usize];
        match word {
            w if w & 0xfc00_0000 == 0x9400_0000 => {
                if branch_target(word, at) == Some(function) && known(0) == Some(value) {
                    return true;
                }
                holds = [None; 32];
            }
            // adrp
            w if w & 0x9f00_0000 == 0x9000_0000 => {
                let distance = signed(bits(w, 5, 19) << 2 | bits(w, 29, 2), 21);
                holds[rd as usize] = Some((at & !0xfff).wrapping_add_signed(distance << 12));
            }
            // add, of an immediate that is not shifted
            w if w & 0xffc0_0000 == 0x9100_0000 => {
                holds[rd as usize] = known(rn).map(|base| base.wrapping_add(u64::from(bits(w, 10, 12))));
            }
            // mov between registers
            w if w & 0xffe0_ffe0 == 0xaa00_03e0 => holds[rd as usize] = known(rm),
            w => match effect(w) {
                Effect::Writes(registers) => {
                    for register in registers.into_iter().flatten() {
                        holds[register as usize] = None;
                    }
                }
                Effect::Unknown if branch_target(w, at).is_none() => holds = [None; 32],
                _ => {}
            },
        }
        holds[SP_OR_ZERO as usize] = None;
    }
    false
}
