//! One of mallopt's parameters, set; whether it took is to be read from glibc's own books, or to be seen in what a block
//! of --bytes does.
//!
//! --parameter is mallopt's number without its minus sign (1 M_TRIM_THRESHOLD, 2 M_TOP_PAD, 3 M_MMAP_THRESHOLD,
//! 4 M_MMAP_MAX, 8 M_ARENA_MAX; 0: none is set, for knobs of the environment). Prints `mallopt parameter=-3 value=N
//! result=N`. Phases: base, held, freed.

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::glibc;
use crate::line;
use crate::stage::Stage;

pub const PROGRAM: Program = Program {
    name: "knobs",
    about: "sets a parameter by mallopt, then allocates and frees one block",
    options: &[
        NumberOption {
            name: "parameter",
            default: 0,
            maximum: 8,
        },
        NumberOption {
            name: "value",
            default: 0,
            maximum: i32::MAX as u64,
        },
        NumberOption {
            name: "bytes",
            default: 64 << 10,
            maximum: 1 << 30,
        },
    ],
    run,
};

fn run(stage: &mut Stage, options: &Options) {
    let (parameter, value) = (options.count("parameter"), options.count("value"));
    if parameter != 0 {
        let (parameter, value) = (-(parameter as i32), value as i32);
        // SAFETY: has no precondition.
        let result = unsafe { libc::mallopt(parameter, value) };
        line::print(format_args!(
            "mallopt parameter={parameter} value={value} result={result}"
        ));
    }
    stage.phase("base");
    let block = glibc::take(options.count("bytes"));
    stage.phase("held");
    glibc::give(block);
    stage.phase("freed");
}
