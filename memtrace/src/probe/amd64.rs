//! amd64: which instruction of a function to probe, and who calls it directly.
//!
//! The kernel (arch/x86/kernel/uprobes.c) emulates relative jumps, conditional jumps and calls, `push` of a register and
//! `nop`; all else runs out of line with a single step. The walk starts at the first instruction and ends at the first
//! of these; it gives up where a call might not come by, might come by twice, or where an argument is no longer known.

use std::collections::HashSet;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Formatter, Instruction, InstructionInfoFactory, IntelFormatter,
    Mnemonic, OpAccess, OpKind, Register,
};

use super::code::Branch;
use super::site::{Branches, Function, Site};

/// Integer arguments in the order of the System V ABI.
const ARGUMENTS: [Register; 6] = [
    Register::RDI,
    Register::RSI,
    Register::RDX,
    Register::RCX,
    Register::R8,
    Register::R9,
];

/// Where to probe `function`.
pub(super) fn site(function: Function<'_>) -> Site {
    let Function {
        code,
        address,
        arguments,
    } = function;
    let targets = jump_targets(code, address);
    let mut places = Places::new(arguments);
    let mut stack_moved = 0;
    let mut obstacle = String::from("its end");
    let mut first = None;

    for instruction in &mut Decoder::with_ip(64, code, address, DecoderOptions::NONE) {
        let offset = instruction.ip() - address;
        first.get_or_insert(instruction);
        if offset > 0 && targets.contains(&instruction.ip()) {
            obstacle = format!("the target of a jump at +{offset}");
            break;
        }
        if is_emulated(&instruction, &code[offset as usize..]) {
            return Site::cheap(offset, in_words(&instruction), stack_moved, places.first());
        }
        if instruction.flow_control() != FlowControl::Next {
            obstacle = format!("\"{}\" at +{offset}", in_words(&instruction));
            break;
        }
        match places.pass(&instruction) {
            Ok(moved) => stack_moved += moved,
            Err(what) => {
                obstacle = format!("\"{}\" at +{offset}, which {what}", in_words(&instruction));
                break;
            }
        }
    }
    Site::first(
        first.map_or_else(|| String::from("(no code)"), |i| in_words(&i)),
        &obstacle,
    )
}

/// Which registers hold the arguments.
struct Places {
    /// For each argument, those that hold it. Only a function's sole argument is followed into another register: for
    /// more than one, the kernel side reads them where the ABI puts them.
    held: Vec<Vec<Register>>,
    info: InstructionInfoFactory,
}

impl Places {
    fn new(arguments: usize) -> Self {
        Self {
            held: ARGUMENTS[..arguments].iter().map(|&register| vec![register]).collect(),
            info: InstructionInfoFactory::new(),
        }
    }

    /// Index of the register that holds the first argument.
    fn first(&self) -> u8 {
        let index = self
            .held
            .first()
            .and_then(|held| ARGUMENTS.iter().position(|register| held.contains(register)));
        index.unwrap_or(0) as u8
    }

    /// Follows one instruction: by how much it moves the stack pointer down, or what it does that ends the walk.
    fn pass(&mut self, instruction: &Instruction) -> Result<u32, &'static str> {
        let written: Vec<Register> = self
            .info
            .info(instruction)
            .used_registers()
            .iter()
            .filter(|used| {
                !matches!(
                    used.access(),
                    OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
                )
            })
            .map(|used| used.register().full_register())
            .collect();
        let mut moved = 0;
        if written.contains(&Register::RSP) {
            moved = stack_step(instruction).ok_or("moves the stack pointer in a way that is not followed")?;
        }
        let copy = (instruction.code() == Code::Mov_rm64_r64 || instruction.code() == Code::Mov_r64_rm64)
            && instruction.op0_kind() == OpKind::Register
            && instruction.op1_kind() == OpKind::Register;
        let sole = self.held.len() == 1;
        for held in &mut self.held {
            let copied = copy && sole && held.contains(&instruction.op1_register());
            held.retain(|register| !written.contains(register));
            if copied && ARGUMENTS.contains(&instruction.op0_register()) && !held.contains(&instruction.op0_register())
            {
                held.push(instruction.op0_register());
            }
            if held.is_empty() {
                return Err("overwrites an argument");
            }
        }
        Ok(moved)
    }
}

/// By how many bytes a plain `sub rsp, n` or `push` moves the stack pointer down.
fn stack_step(instruction: &Instruction) -> Option<u32> {
    match instruction.mnemonic() {
        Mnemonic::Push => Some(instruction.stack_pointer_increment().unsigned_abs()),
        Mnemonic::Sub if instruction.op0_register() == Register::RSP => {
            let by = matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
            by.then(|| instruction.immediate(1))
                .and_then(|by| u32::try_from(by).ok())
        }
        _ => None,
    }
}

/// Whether the kernel emulates it. Forms that only some kernels emulate (the long nops) or that none does (a push of a
/// constant or from memory, an indirect call, any of them behind an operand-size prefix) do not count.
fn is_emulated(instruction: &Instruction, bytes: &[u8]) -> bool {
    matches!(
        bytes[..instruction.len()],
        [0x50..=0x57]
            | [0x41, 0x50..=0x57]
            | [0x90]
            | [0x66, 0x90]
            | [0xeb | 0x70..=0x7f, _]
            | [0xe8 | 0xe9, _, _, _, _]
            | [0x0f, 0x80..=0x8f, _, _, _, _]
    )
}

/// Addresses inside the function to which one of its own jumps leads.
fn jump_targets(code: &[u8], address: u64) -> HashSet<u64> {
    let inside = address..address + code.len() as u64;
    Decoder::with_ip(64, code, address, DecoderOptions::NONE)
        .iter()
        .filter(|i| {
            matches!(
                i.flow_control(),
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
            )
        })
        .map(|i| i.near_branch_target())
        .filter(|target| inside.contains(target))
        .collect()
}

fn in_words(instruction: &Instruction) -> String {
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_space_after_operand_separator(true);
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_show_branch_size(false);
    let mut words = String::new();
    formatter.format(instruction, &mut words);
    words
}

/// Direct calls and jumps from `code` to `target`.
///
/// Every byte is tried as the begin of an instruction: with four bytes that have to match, a chance hit in two megabytes
/// of code is one in two thousand, and data between functions cannot put a decoder out of step.
pub(super) fn direct_branches(code: &[u8], address: u64, target: u64) -> Branches {
    let mut found = Branches::default();
    for (at, window) in code.windows(5).enumerate() {
        let behind = address.wrapping_add(at as u64 + 5);
        let distance = i32::from_le_bytes([window[1], window[2], window[3], window[4]]);
        if behind.wrapping_add_signed(i64::from(distance)) != target {
            continue;
        }
        match window[0] {
            0xe8 => found.calls.push(behind),
            0xe9 => found.jumps.push(behind),
            _ => {}
        }
    }
    found
}

/// Direct branches of a piece of code, those within it included.
pub(super) fn branches(code: &[u8], address: u64) -> Vec<Branch> {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE)
        .iter()
        .filter_map(|instruction| {
            let call = match instruction.flow_control() {
                FlowControl::Call => true,
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => false,
                _ => return None,
            };
            Some(Branch {
                call,
                target: instruction.near_branch_target(),
            })
        })
        .collect()
}

/// At one of its calls of `function` at least, the code has `value` in the first argument.
///
/// Registers that hold it are followed in the order of the code; where a jump may come in from elsewhere, nothing is known.
pub(super) fn hands_over(code: &[u8], address: u64, function: u64, value: u64) -> bool {
    let targets = jump_targets(code, address);
    let mut info = InstructionInfoFactory::new();
    let mut holding: HashSet<Register> = HashSet::new();
    for instruction in &mut Decoder::with_ip(64, code, address, DecoderOptions::NONE) {
        if targets.contains(&instruction.ip()) {
            holding.clear();
        }
        if instruction.flow_control() == FlowControl::Call && instruction.near_branch_target() == function {
            if holding.contains(&Register::RDI) {
                return true;
            }
            holding.clear();
            continue;
        }
        let takes = match instruction.code() {
            Code::Lea_r64_m => instruction.is_ip_rel_memory_operand() && instruction.ip_rel_memory_address() == value,
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64 => {
                instruction.op1_kind() == OpKind::Register && holding.contains(&instruction.op1_register())
            }
            _ => false,
        };
        for used in info.info(&instruction).used_registers() {
            if !matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            ) {
                holding.remove(&used.register().full_register());
            }
        }
        if takes && instruction.op0_kind() == OpKind::Register {
            holding.insert(instruction.op0_register());
        }
    }
    false
}
