//! Scripts of allocator calls for the simulated program.

use memtrace_analysis::event::{Entry, Event};
use memtrace_analysis::sim::{Program, Settings, Truth};
use proptest::prelude::*;
use proptest::sample::{Index, select};

pub const MAIN: u32 = 4242;

#[derive(Clone, Debug)]
pub enum Op {
    Allocate(Entry, u64, u64),
    Reallocate(Index, u64),
    Free(Index),
    Trim(u64),
    Sbrk(u64),
    Map(u64),
    RefuseBreak(bool),
    RefuseMappings(bool),
}

pub fn settings() -> impl Strategy<Value = Settings> {
    let top_pad = prop_oneof![select(vec![0u64, 131_072, 300_000]), 0u64..1_000_000];
    let threshold = prop_oneof![3 => Just(131_072u64), 1 => select(vec![0u64, 4096, 1 << 20, 32 << 20])];
    let version = select(vec!["2.31", "2.36", "2.41", "2.42"]);
    (top_pad, threshold, any::<bool>(), version).prop_map(|(top_pad, mmap_threshold, dynamic, version)| Settings {
        top_pad,
        mmap_threshold,
        dynamic,
        version: version.to_owned(),
        ..Settings::default()
    })
}

fn request() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0u64..2000,
        3 => 2000u64..200_000,
        1 => 200_000u64..5_000_000,
        1 => select(vec![(32u64 << 20) - 4096, 32 << 20, (32 << 20) - 24, 40 << 20]),
    ]
}

/// Calls of malloc and free alone.
pub fn plain() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => request().prop_map(|n| Op::Allocate(Entry::Malloc, n, 0)),
        1 => request().prop_map(|n| Op::Allocate(Entry::Calloc, n, 0)),
        1 => (request(), 5u32..14).prop_map(|(n, power)| Op::Allocate(Entry::Memalign, n, 1 << power)),
        1 => request().prop_map(|n| Op::Allocate(Entry::Pvalloc, n, 0)),
        2 => (any::<Index>(), request()).prop_map(|(index, n)| Op::Reallocate(index, n)),
        5 => any::<Index>().prop_map(Op::Free),
        1 => select(vec![0u64, 4096, 100_000]).prop_map(Op::Trim),
    ]
}

/// All that a program may do, its own break and mappings and refusals included.
pub fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => plain(),
        1 => (1u64..20_000).prop_map(Op::Sbrk),
        1 => (1u64..64).prop_map(|pages| Op::Map(pages * 4096)),
        1 => any::<bool>().prop_map(Op::RefuseBreak),
        1 => any::<bool>().prop_map(Op::RefuseMappings),
    ]
}

fn apply(program: &mut Program, tid: u32, op: &Op) {
    let pick = |program: &Program, index: &Index| {
        let live: Vec<usize> = program.live().collect();
        (!live.is_empty()).then(|| *index.get(&live))
    };
    match op {
        Op::Allocate(entry, request, alignment) => {
            program.allocate(tid, *entry, *request, *alignment);
        }
        Op::Reallocate(index, request) => {
            if let Some(id) = pick(program, index) {
                program.reallocate(tid, id, (*request).max(1));
            }
        }
        Op::Free(index) => {
            if let Some(id) = pick(program, index) {
                program.free(tid, id);
            }
        }
        Op::Trim(pad) => program.malloc_trim(tid, *pad),
        Op::Sbrk(bytes) => program.sbrk(*bytes),
        Op::Map(bytes) => program.map(tid, *bytes),
        Op::RefuseBreak(refuse) => program.refuse_break(*refuse),
        Op::RefuseMappings(refuse) => program.refuse_mappings(*refuse),
    }
}

/// Runs a script in the main thread.
pub fn run(settings: Settings, ops: &[Op]) -> (Vec<Event>, Truth) {
    let mut program = Program::new(settings);
    ops.iter().for_each(|op| apply(&mut program, MAIN, op));
    program.end()
}

/// Runs a script whose calls are made by several threads, the main one and `others` more.
pub fn run_threads(settings: Settings, others: u32, ops: &[(u32, Op)]) -> (Vec<Event>, Truth) {
    let mut program = Program::new(settings);
    (1..=others).for_each(|tid| program.spawn(MAIN + tid));
    for (thread, op) in ops {
        apply(&mut program, MAIN + thread % (others + 1), op);
    }
    (1..=others).for_each(|tid| program.exit_thread(MAIN + tid));
    program.end()
}
