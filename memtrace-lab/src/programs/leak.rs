//! A job that gives all its memory back, beside a small leak: the first looks like a leak from outside, the second is one.
//!
//! Each round allocates the job's blocks, loses some blocks of its own between them, and frees the job. Phases: base,
//! then round (what `lost_blocks` and `lost_bytes` say so far, sizes as asked for), all with the job's memory freed.

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::glibc::{self, Table};
use crate::random::Random;
use crate::stage::Stage;

const MOST: usize = 100_000;
static JOB: Table<MOST> = Table::new();

pub const PROGRAM: Program = Program {
    name: "leak-beside-retention",
    about: "a job that frees all its blocks, beside a leak of a few, round by round",
    options: &[
        NumberOption {
            name: "rounds",
            default: 5,
            maximum: 1_000,
        },
        NumberOption {
            name: "blocks",
            default: 20_000,
            maximum: MOST as u64,
        },
        NumberOption {
            name: "lost",
            default: 200,
            maximum: MOST as u64,
        },
        NumberOption {
            name: "seed",
            default: 1,
            maximum: u64::MAX,
        },
    ],
    run,
};

fn run(stage: &mut Stage, options: &Options) {
    let (rounds, blocks, lost) = (options.get("rounds"), options.count("blocks"), options.count("lost"));
    let mut random = Random::new(options.get("seed"));
    let (mut lost_blocks, mut lost_bytes) = (0u64, 0u64);
    stage.phase_of("base", format_args!("lost_blocks=0 lost_bytes=0 "));
    for _ in 0..rounds {
        let every = blocks / lost.max(1);
        for i in 0..blocks {
            JOB.put(i, glibc::take(500 + random.below(1500)));
            if lost > 0 && i % every.max(1) == every.max(1) - 1 {
                let bytes = 200 + random.below(400);
                // Nobody keeps the address: that is the leak.
                let _ = glibc::take(bytes);
                lost_blocks += 1;
                lost_bytes += bytes as u64;
            }
        }
        (0..blocks).filter_map(|i| JOB.take(i)).for_each(glibc::give);
        stage.phase_of(
            "round",
            format_args!("lost_blocks={lost_blocks} lost_bytes={lost_bytes} "),
        );
    }
}
