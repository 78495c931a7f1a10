//! What both instruction sets share: the question and the answer.

use super::CostClass;

/// A function's code, as far as its symbol says it goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function<'data> {
    pub code: &'data [u8],
    /// Virtual address of its first byte.
    pub address: u64,
    /// Arguments it takes in registers, 1 to 3.
    pub arguments: usize,
}

/// Where in the function to probe, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub offset: u64,
    pub instruction: String,
    pub cost: CostClass,
    pub stack_moved: u32,
    pub first_argument: u8,
    pub reason: String,
}

impl Site {
    /// The cheap instruction at `offset`.
    pub fn cheap(offset: u64, instruction: String, stack_moved: u32, first_argument: u8) -> Self {
        let mut reason = if offset == 0 {
            String::from("the first instruction is one the kernel emulates")
        } else {
            String::from("the first instruction the kernel emulates; every call passes it once, its arguments in place")
        };
        if stack_moved > 0 {
            reason += &format!("; the stack pointer has moved by {stack_moved} bytes");
        }
        if first_argument > 0 {
            reason += &format!(
                "; the argument has been copied to argument register {}",
                first_argument + 1
            );
        }
        Self {
            offset,
            instruction,
            cost: CostClass::Emulated,
            stack_moved,
            first_argument,
            reason,
        }
    }

    /// The first instruction, since nothing cheap comes before `obstacle`.
    pub fn first(instruction: String, obstacle: &str) -> Self {
        Self {
            offset: 0,
            instruction,
            cost: CostClass::SingleStepped,
            stack_moved: 0,
            first_argument: 0,
            reason: format!("the first instruction, since none that the kernel emulates comes before {obstacle}"),
        }
    }
}

/// Who reaches a function without going through a table: addresses of the instructions behind its direct calls, and
/// behind the direct jumps to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Branches {
    pub calls: Vec<u64>,
    pub jumps: Vec<u64>,
}
