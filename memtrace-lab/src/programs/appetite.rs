//! A large meal, given back, and a small steady appetite afterwards: when does the memory go back, under which allocator?
//!
//! Allocates --megabytes in blocks of mixed sizes, frees all but one small block on top, then for --seconds allocates and frees a few
//! blocks ten times a second, as a service at night does (some allocators give back only while they are called).
//! Phases: base, full, freed, done.

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::clock::{idle_ms, now_ns};
use crate::glibc::{self, Table};
use crate::random::Random;
use crate::stage::Stage;

const MOST: usize = 200_000;
/// Blocks of the small appetite.
const SNACK: usize = 500;
static MEAL: Table<MOST> = Table::new();

pub const PROGRAM: Program = Program {
    name: "appetite",
    about: "allocates much, frees it, and stays a little active for some seconds",
    options: &[
        NumberOption {
            name: "megabytes",
            default: 64,
            maximum: 512,
        },
        NumberOption {
            name: "seconds",
            default: 12,
            maximum: 3_600,
        },
    ],
    run,
};

fn run(stage: &mut Stage, options: &Options) {
    let (bytes, seconds) = (options.count("megabytes") << 20, options.get("seconds"));
    stage.phase("base");
    let mut random = Random::new(1);
    let (mut blocks, mut held) = (0, 0);
    while held < bytes && blocks < MOST {
        let size = 500 + random.below(7_500);
        MEAL.put(blocks, glibc::take(size));
        blocks += 1;
        held += size;
    }
    let survivor = glibc::take(100);
    stage.phase("full");
    (0..blocks).filter_map(|i| MEAL.take(i)).for_each(glibc::give);
    stage.phase("freed");
    let end = now_ns() + seconds * 1_000_000_000;
    while now_ns() < end {
        // More at once than a thread's cache holds, so that the allocator behind it is called.
        for i in 0..SNACK {
            MEAL.put(i, glibc::take(500 + random.below(7_500)));
        }
        (0..SNACK).filter_map(|i| MEAL.take(i)).for_each(glibc::give);
        idle_ms(100);
    }
    stage.phase("done");
    glibc::give(survivor);
}
