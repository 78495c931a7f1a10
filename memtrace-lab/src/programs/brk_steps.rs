//! The break moves in steps, not with each malloc; free gives nothing back; malloc_trim does.
//!
//! Phases: base, peak (all blocks held), freed (in the order of their allocation), trimmed.

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::glibc::{self, Table};
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
    ],
    run,
};

fn run(stage: &mut Stage, options: &Options) {
    let (blocks, bytes) = (options.count("blocks"), options.count("bytes"));

    stage.phase("base");
    for i in 0..blocks {
        TABLE.put(i, glibc::take(bytes));
        if (i + 1) % STRIDE == 0 {
            stage.progress(i + 1);
        }
    }
    stage.phase("peak");
    (0..blocks).filter_map(|i| TABLE.take(i)).for_each(glibc::give);
    stage.phase("freed");
    glibc::trim();
    stage.phase("trimmed");
}
