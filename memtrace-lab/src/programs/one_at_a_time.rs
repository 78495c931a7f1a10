//! Large blocks, one at a time: which of them get a mapping of their own, and what each free does to the threshold.
//!
//! Sizes double from --first to --last, each --times times. Phases: base, then for each block held and freed.

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::glibc;
use crate::stage::Stage;

pub const PROGRAM: Program = Program {
    name: "one-at-a-time",
    about: "allocates and frees blocks of doubling sizes, one after the other",
    options: &[
        NumberOption {
            name: "first",
            default: 256 << 10,
            maximum: 1 << 30,
        },
        NumberOption {
            name: "last",
            default: 64 << 20,
            maximum: 1 << 30,
        },
        NumberOption {
            name: "times",
            default: 2,
            maximum: 1_000,
        },
    ],
    run,
};

fn run(stage: &mut Stage, options: &Options) {
    let (first, last, times) = (
        options.count("first").max(1),
        options.count("last"),
        options.get("times"),
    );
    // The heap is there before the first look, so that what moves afterwards is the large blocks' doing.
    glibc::give(glibc::take(16));
    stage.phase("base");
    let mut bytes = first;
    while bytes <= last {
        for time in 1..=times {
            let block = glibc::take(bytes);
            stage.phase_of("held", format_args!("bytes={bytes} time={time} "));
            glibc::give(block);
            stage.phase_of("freed", format_args!("bytes={bytes} time={time} "));
        }
        bytes *= 2;
    }
}
