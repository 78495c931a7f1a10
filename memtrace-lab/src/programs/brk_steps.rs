//! The break moves in steps, not with each malloc; free gives nothing back; malloc_trim does.
//!
//! Phases: base, peak (all blocks held), freed (in the order of their allocation, or in reverse), trimmed. Each time a
//! malloc has moved the break it prints `step blocks=N brk=N`: what has been allocated by then, and how far it moved.

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::glibc::{self, Table};
use crate::line;
use crate::stage::Stage;

const MOST: usize = 100_000;
/// Blocks between two lines of progress.
const STRIDE: usize = 2_000;

static TABLE: Table<MOST> = Table::new();

pub const PROGRAM: Program = Program {
    name: "brk-steps",
    about: "allocates many small blocks, frees them all in order, then calls malloc_trim(0)",
    options: &[
        NumberOption {
            name: "blocks",
            default: 10_000,
            maximum: MOST as u64,
        },
        NumberOption {
            name: "bytes",
            default: 64,
            maximum: 1 << 20,
        },
        NumberOption {
            name: "reverse",
            default: 0,
            maximum: 1,
        },
    ],
    run,
};

fn run(stage: &mut Stage, options: &Options) {
    let (blocks, bytes, reverse) = (
        options.count("blocks"),
        options.count("bytes"),
        options.get("reverse") == 1,
    );

    stage.phase("base");
    let mut moved = 0;
    for i in 0..blocks {
        TABLE.put(i, glibc::take(bytes));
        if stage.break_moved() != moved {
            moved = stage.break_moved();
            line::print(format_args!("step blocks={} brk={moved}", i + 1));
        }
        if (i + 1) % STRIDE == 0 {
            stage.progress(i + 1);
        }
    }
    stage.phase("peak");
    for i in 0..blocks {
        let next = if reverse { blocks - 1 - i } else { i };
        if let Some(block) = TABLE.take(next) {
            glibc::give(block);
        }
    }
    stage.phase("freed");
    glibc::trim();
    stage.phase("trimmed");
}
