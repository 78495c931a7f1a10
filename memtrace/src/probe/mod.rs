//! Where to put the probes: from a library's bytes to a plan, purely.
//!
//! ```text
//! ELF bytes -> Library (symbols, segments) -> for each entry point: code -> site -> ProbePlan
//! ```
//!
//! A probe may sit on any instruction of a function that every call passes once, while the arguments still stand in
//! their registers. The kernel emulates a few instructions and single-steps the rest, which is about nine times dearer,
//! so the first cheap one is taken ([`amd64`], [`arm64`]); where none is sure, the function's first instruction.

mod amd64;
mod arm64;
mod books;
mod code;
mod library;
mod plan;
mod site;
mod slow;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use memtrace_analysis::event::Entry;

pub use plan::PlanError;

/// Everything the session needs to know of a libc, decided before anything is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePlan {
    pub version: Option<String>,
    pub build_id: Option<String>,
    /// In the order of [`Entry::ALL`]. Entry points that share an address have one site, under the first of their names.
    pub sites: Vec<ProbeSite>,
    /// Virtual addresses [start, end) of the library's executable segment.
    pub text: (u64, u64),
    /// Virtual address of main_arena and of mp_, where they could be found.
    pub main_arena: Option<u64>,
    pub mp: Option<u64>,
    /// Offset of `top` in malloc_state.
    pub top_offset: Option<u32>,
    /// A thread's first free passes the entry twice (2.43 and later).
    pub first_free_twice: bool,
    /// Offset of `hp_pagesize` in malloc_par, from 2.35 on.
    pub huge_page_offset: Option<u32>,
    /// Up to 2.33 the first call of malloc and of realloc passes the entry twice, through `__malloc_hook` and
    /// `__realloc_hook`.
    pub hooks: Option<[Hook; 2]>,
    /// Virtual addresses to which thread exit's own calls of free return.
    pub spurious_free_returns: Vec<u64>,
    /// The allocator's slow path; where it cannot be told, why not.
    pub slow_path: Result<SlowPath, String>,
    pub code: AllocatorCode,
    /// What could not be found out, a sentence each.
    pub limits: Vec<String>,
}

/// A variable that holds a function to be called instead: virtual addresses of it, and of the function it comes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    pub variable: u64,
    pub function: u64,
}

/// Where to probe `_int_malloc`, which serves what no thread cache does. Its second argument is the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowPath {
    /// Virtual address of its first instruction.
    pub function: u64,
    /// Bytes from there to the probed instruction.
    pub offset: u64,
    pub file_offset: u64,
    pub instruction: String,
    pub cost: CostClass,
    pub stack_moved: u32,
    /// Why this function, and why there.
    pub reason: String,
}

/// Which code runs in the frame of which entry point: its own, and that which it jumps to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatorCode {
    /// Virtual address of a piece of code, as the unwind tables have it, and the entry points whose it is.
    pub pieces: BTreeMap<u64, Vec<Entry>>,
    /// Exported functions, no entry points themselves, that such code jumps to at its end, and whose code that is.
    pub ends_in: BTreeMap<u64, Vec<Entry>>,
}

/// One place to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSite {
    pub entry: Entry,
    pub symbol: String,
    /// Virtual address of the function's first instruction.
    pub function: u64,
    /// Bytes from there to the probed instruction.
    pub offset: u64,
    /// The probed instruction's place in the file, as the kernel wants it.
    pub file_offset: u64,
    /// The instruction in words, e.g. "push rbp".
    pub instruction: String,
    pub cost: CostClass,
    /// Bytes by which the stack pointer has moved down between the first instruction and this one.
    pub stack_moved: u32,
    /// Which of the argument registers (0: rdi or x0, 1: rsi or x1, ...) holds the function's first argument here. Only
    /// a function of one argument ever has another one than 0.
    pub first_argument: u8,
    /// Why here.
    pub reason: String,
}

/// What the kernel does with a probed instruction, which decides the cost of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CostClass {
    /// Emulated (x86) or simulated (arm64): no second trap.
    Emulated,
    /// Executed out of line with a single step: about nine times dearer.
    SingleStepped,
}

impl CostClass {
    /// Nanoseconds of one hit, from and to: measured with an empty program on a virtual machine with Linux 6.18. Bare
    /// metal is faster; the ratio of the two classes stays.
    pub const fn typical_ns(self) -> (u32, u32) {
        match self {
            Self::Emulated => (490, 850),
            Self::SingleStepped => (4_600, 5_900),
        }
    }
}

impl CostClass {
    /// How much dearer than the cheapest class a hit is.
    pub fn times_cheapest(self) -> f64 {
        f64::from(self.typical_ns().1) / f64::from(Self::Emulated.typical_ns().1)
    }
}

impl fmt::Display for CostClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Emulated => "emulated",
            Self::SingleStepped => "single-stepped",
        })
    }
}
