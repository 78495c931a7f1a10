//! Threads that allocate and free as fast as they can, in windows that are measured from outside.
//!
//! Each thread holds `slots` blocks of its own and exchanges one after the other, drawn at random, for a new one of `low`
//! to `high` bytes; a unit of work is one free and one malloc. With one slot and one size it is the pair that the thread's
//! cache serves from one place. How windows are asked for and answered is in `window`. Nothing else of the program calls the
//! allocator once it is ready.

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::null_mut;

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::line;
use crate::random::Random;
use crate::stage::Stage;
use crate::window::{self, MOST_THREADS, Worker};

const MOST_SLOTS: usize = 4096;
/// Some microseconds of work: the clock is read once for each portion, which is to cost nothing beside it.
const PORTION: u64 = 256;

pub const PROGRAM: Program = Program {
    name: "churn",
    about: "frees and allocates from several threads, in windows that are measured from outside",
    options: &[
        NumberOption {
            name: "threads",
            default: 1,
            maximum: MOST_THREADS as u64,
        },
        NumberOption {
            name: "slots",
            default: 1,
            maximum: MOST_SLOTS as u64,
        },
        NumberOption {
            name: "low",
            default: 48,
            maximum: 1 << 20,
        },
        NumberOption {
            name: "high",
            default: 48,
            maximum: 1 << 20,
        },
    ],
    run,
};

struct Churn {
    slots: [*mut c_void; MOST_SLOTS],
    used: usize,
    low: usize,
    high: usize,
    random: Random,
}

// SAFETY: a thread's blocks are its own.
unsafe impl Send for Churn {}

impl Churn {
    const fn unused() -> Self {
        Self {
            slots: [null_mut(); MOST_SLOTS],
            used: 1,
            low: 0,
            high: 0,
            random: Random::unused(),
        }
    }

    fn exchange(&mut self) {
        let slot = self.random.below(self.used);
        let bytes = self.low + self.random.below(self.high - self.low + 1);
        // SAFETY: what a slot holds was allocated here and is freed once.
        unsafe { libc::free(self.slots[slot]) };
        self.slots[slot] = block(bytes);
    }
}

impl Worker for Churn {
    fn portion(&mut self) -> u64 {
        if self.used == 1 && self.low == self.high {
            let bytes = black_box(self.low);
            for _ in 0..PORTION {
                // SAFETY: the block was allocated here and is freed once.
                unsafe { libc::free(block(bytes)) };
            }
        } else {
            for _ in 0..PORTION {
                self.exchange();
            }
        }
        PORTION
    }
}

fn block(bytes: usize) -> *mut c_void {
    // SAFETY: any size is a valid request, and a block has at least a byte that may be written: volatile, so that the
    // pair is not optimised away.
    unsafe {
        let block = libc::malloc(bytes);
        if block.is_null() {
            line::error(format_args!(
                "memtrace-lab: there is no memory for a block of {bytes} bytes"
            ));
            libc::_exit(2);
        }
        block.cast::<u8>().write_volatile(1);
        black_box(block)
    }
}

/// In the program's data, since they must outlive their threads, and a stack has no room for them.
static mut CHURNS: [Churn; MOST_THREADS] = [const { Churn::unused() }; MOST_THREADS];

fn run(_stage: &mut Stage, options: &Options) {
    let threads = options.count("threads").max(1);
    let (low, high) = (options.count("low"), options.count("high"));
    let churns = &raw mut CHURNS;
    // SAFETY: this function is run once, and nothing else names the static.
    let churns = unsafe { &mut *churns };
    for (seed, churn) in churns.iter_mut().take(threads).enumerate() {
        churn.used = options.count("slots").max(1);
        churn.low = low;
        churn.high = high.max(low);
        churn.random = Random::new(seed as u64);
    }
    window::serve(&mut churns[..threads]);
}
