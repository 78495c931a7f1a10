//! A large block is a mapping of its own, and goes back when it is freed; that free raises the mmap threshold, so that
//! its successor of the same size comes from the heap.
//!
//! Phases: base, first-held, first-freed, second-held, second-freed.

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::glibc;
use crate::stage::Stage;

pub const PROGRAM: Program = Program {
    name: "large-block",
    about: "allocates and frees a block of 2 MiB, twice",
    options: &[NumberOption {
        name: "bytes",
        default: 2 << 20,
        maximum: 1 << 30,
    }],
    run,
};

fn run(stage: &mut Stage, options: &Options) {
    let bytes = options.count("bytes");
    stage.phase("base");
    let first = glibc::take(bytes);
    stage.phase("first-held");
    glibc::give(first);
    stage.phase("first-freed");
    let second = glibc::take(bytes);
    stage.phase("second-held");
    glibc::give(second);
    stage.phase("second-freed");
}
