//! The first free of a mapped block raises the mmap threshold, and the rounds after it make no system call at all.
//!
//! Phases: base, first (one round done), done (all rounds done). The environment variable MALLOC_MMAP_THRESHOLD_
//! freezes the threshold, and each round then costs a mapping and its removal.

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::glibc;
use crate::stage::Stage;

pub const PROGRAM: Program = Program {
    name: "threshold",
    about: "allocates, writes and frees a block of 256 KiB in a loop",
    options: &[
        NumberOption {
            name: "rounds",
            default: 1_000,
            maximum: 1 << 40,
        },
        NumberOption {
            name: "bytes",
            default: 256 << 10,
            maximum: 1 << 30,
        },
    ],
    run,
};

fn run(stage: &mut Stage, options: &Options) {
    let (rounds, bytes) = (options.get("rounds"), options.count("bytes"));
    stage.phase("base");
    for round in 0..rounds {
        glibc::give(glibc::take(bytes));
        if round == 0 {
            stage.phase("first");
        }
    }
    stage.phase("done");
}
