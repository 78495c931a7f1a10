//! What a pair of malloc and free costs, by size, and a pair of mmap and munmap beside it.
//!
//! Each block gets its first byte written, so that a fresh mapping pays for its page as it would in life. In each round
//! every size is timed in both ways, one after the other, so that their ratio is of one moment. Each timing is a line
//! `pair way=malloc bytes=48 round=0 ns=10.4`; the first pair of a size, before its way is paved, is `first ...`.
//! Phases: base, done.

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::null_mut;

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::clock;
use crate::line;
use crate::stage::Stage;

const SIZES: [usize; 13] = [
    16,
    48,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    32 << 20,
    64 << 20,
];
/// Time for one timing: long against the clock's resolution, short against the scheduler's moods.
const WISHED_NS: u64 = 3_000_000;

pub const PROGRAM: Program = Program {
    name: "pairs",
    about: "times malloc and free of many sizes, and mmap and munmap of the same",
    options: &[
        NumberOption {
            name: "rounds",
            default: 9,
            maximum: 1_000,
        },
        // 0: all of them
        NumberOption {
            name: "bytes",
            default: 0,
            maximum: 1 << 30,
        },
        // 1: mallopt(M_MMAP_THRESHOLD, 0) at the start
        NumberOption {
            name: "threshold-zero",
            default: 0,
            maximum: 1,
        },
    ],
    run,
};

fn run(stage: &mut Stage, options: &Options) {
    let (rounds, bytes) = (options.get("rounds"), options.count("bytes"));
    if options.get("threshold-zero") == 1 {
        // SAFETY: has no precondition.
        let taken = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 0) };
        line::print(format_args!("mallopt result={taken}"));
    }
    stage.phase("base");
    let only = [bytes];
    let sizes: &[usize] = if bytes == 0 { &SIZES } else { &only };
    for &bytes in sizes {
        line::print(format_args!(
            "first way=malloc bytes={bytes} ns={:.1}",
            clock::each_ns(1, || malloc_pair(bytes))
        ));
    }
    for round in 0..rounds {
        for &bytes in sizes {
            time("malloc", bytes, round, || malloc_pair(bytes));
            time("mmap", bytes, round, || mmap_pair(bytes));
        }
    }
    stage.phase("done");
}

fn time(way: &str, bytes: usize, round: u64, mut pair: impl FnMut()) {
    let calls = clock::calls_for(WISHED_NS, 1 << 20, &mut pair);
    let ns = clock::each_ns(calls, pair);
    line::print(format_args!("pair way={way} bytes={bytes} round={round} ns={ns:.2}"));
}

fn malloc_pair(bytes: usize) {
    // SAFETY: any size is a valid request; the block has that many bytes and is freed once.
    unsafe {
        let block = libc::malloc(bytes);
        if block.is_null() {
            no_memory(bytes);
        }
        touch(block);
        libc::free(block);
    }
}

fn mmap_pair(bytes: usize) {
    // SAFETY: a mapping of our own, written to within its bounds and removed once.
    unsafe {
        let block = libc::mmap(
            null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if block == libc::MAP_FAILED {
            no_memory(bytes);
        }
        touch(block);
        libc::munmap(block, bytes);
    }
}

/// # Safety
/// `block` has a byte that may be written.
unsafe fn touch(block: *mut c_void) {
    // SAFETY: the caller's promise. Volatile, so that the pair is not optimised away.
    unsafe { block.cast::<u8>().write_volatile(1) };
    black_box(block);
}

fn no_memory(bytes: usize) -> ! {
    line::error(format_args!(
        "memtrace-lab: there is no memory for a block of {bytes} bytes"
    ));
    // SAFETY: ends the process without running anything of ours.
    unsafe { libc::_exit(2) }
}
