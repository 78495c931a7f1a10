//! A hungry job in the process itself or in a child: what stays when it is over.
//!
//! The job allocates blocks of mixed sizes, frees all of them, and leaves one small block behind, as jobs do (a cache
//! entry, a log line). Phases: base, working (all held), done (all freed, or the child gone).

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::glibc::{self, Block, Table};
use crate::line;
use crate::random::Random;
use crate::stage::Stage;

const MOST: usize = 200_000;
static JOB: Table<MOST> = Table::new();

pub const PROGRAM: Program = Program {
    name: "child-job",
    about: "a hungry job, in a child process (or with --fork 0 in the process itself)",
    options: &[
        NumberOption {
            name: "megabytes",
            default: 128,
            maximum: 512,
        },
        NumberOption {
            name: "fork",
            default: 1,
            maximum: 1,
        },
    ],
    run,
};

fn run(stage: &mut Stage, options: &Options) {
    let bytes = options.count("megabytes") << 20;
    stage.phase("base");
    if options.get("fork") == 0 {
        let blocks = fill(bytes);
        let left_behind = glibc::take(100);
        stage.phase("working");
        empty(blocks);
        stage.phase("done");
        glibc::give(left_behind);
        return;
    }
    // SAFETY: this process has one thread, so the child may use the allocator.
    match unsafe { libc::fork() } {
        -1 => fail("starting the child"),
        0 => {
            let blocks = fill(bytes);
            let _left_behind: Block = glibc::take(100);
            stage.phase("working");
            empty(blocks);
            // SAFETY: ends the child without running anything of ours.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child just made, and writes its status.
            if unsafe { libc::waitpid(child, &raw mut status, 0) } != child || status != 0 {
                fail("waiting for the child");
            }
            stage.phase("done");
        }
    }
}

fn fill(bytes: usize) -> usize {
    let mut random = Random::new(1);
    let (mut blocks, mut held) = (0, 0);
    while held < bytes && blocks < MOST {
        let size = 1_000 + random.below(15_000);
        JOB.put(blocks, glibc::take(size));
        blocks += 1;
        held += size;
    }
    blocks
}

fn empty(blocks: usize) {
    (0..blocks).filter_map(|i| JOB.take(i)).for_each(glibc::give);
}

fn fail(doing: &str) -> ! {
    line::give_up(doing, line::errno(), 1)
}
