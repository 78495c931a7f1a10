//! Threads with a heap each: how many arenas come of it, and what one survivor in each keeps resident.
//!
//! Every thread allocates --kilobytes of small blocks and one more on top, frees all but that one, and stays alive; all
//! at the same time, or with --in-turn 1 one thread after the other. Phases: base, full (all held; not in turn), freed
//! (one survivor in each thread), trimmed (after malloc_trim(0)).

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::glibc;
use crate::glibc::raw_block::{free, malloc, write_pages};
use crate::line;
use crate::stage::Stage;

const MOST_THREADS: usize = 512;
const BLOCK: usize = 1_000;
const MOST_BLOCKS: usize = 16_384;

pub const PROGRAM: Program = Program {
    name: "arenas",
    about: "threads that allocate, free all but one block each, and stay alive",
    options: &[
        NumberOption {
            name: "threads",
            default: 32,
            maximum: MOST_THREADS as u64,
        },
        NumberOption {
            name: "kilobytes",
            default: 1_024,
            maximum: (MOST_BLOCKS * BLOCK / 1024) as u64,
        },
        NumberOption {
            name: "in-turn",
            default: 0,
            maximum: 1,
        },
    ],
    run,
};

static BLOCKS: AtomicUsize = AtomicUsize::new(0);
/// Threads that have come to the end of the step; each step adds all of them.
static ARRIVED: Gate = Gate::new();
/// The step that threads may enter.
static STEP: Gate = Gate::new();

fn run(stage: &mut Stage, options: &Options) {
    let threads = options.count("threads");
    let blocks = (options.count("kilobytes") * 1024 / BLOCK).clamp(1, MOST_BLOCKS);
    BLOCKS.store(blocks, Ordering::Relaxed);
    let in_turn = options.get("in-turn") == 1;
    stage.phase("base");
    if in_turn {
        STEP.add();
    }
    for thread in 1..=threads {
        let mut id = 0;
        // SAFETY: the thread uses statics only, and runs until the process ends.
        let failed = unsafe { libc::pthread_create(&raw mut id, core::ptr::null(), work, null_mut()) };
        if failed != 0 {
            line::give_up("starting a thread", failed, 2);
        }
        if in_turn {
            ARRIVED.wait_for(2 * thread);
        }
    }
    if !in_turn {
        ARRIVED.wait_for(threads);
        stage.phase("full");
        STEP.add();
    }
    ARRIVED.wait_for(2 * threads);
    stage.phase("freed");
    glibc::trim();
    stage.phase("trimmed");
}

extern "C" fn work(_: *mut c_void) -> *mut c_void {
    let blocks = BLOCKS.load(Ordering::Relaxed);
    let table_bytes = blocks * size_of::<*mut c_void>();
    // The table has a mapping of its own, so that the arena holds nothing but the blocks.
    // SAFETY: an anonymous mapping of our own, large enough for the table.
    let table = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(
            null_mut(),
            table_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    if table == libc::MAP_FAILED {
        line::give_up("mapping a thread's table", line::errno(), 2);
    }
    // SAFETY: the mapping is zeroed, writable, aligned, and lives as long as the thread.
    let table = unsafe { core::slice::from_raw_parts_mut(table.cast::<*mut c_void>(), blocks) };
    for slot in table.iter_mut() {
        *slot = malloc(BLOCK);
        // SAFETY: the block has that many bytes.
        unsafe { write_pages(*slot, BLOCK) };
    }
    let _survivor = malloc(BLOCK);
    ARRIVED.add();
    STEP.wait_for(1);
    for slot in table.iter_mut() {
        // SAFETY: each block is freed once.
        unsafe { free(*slot) };
    }
    ARRIVED.add();
    STEP.wait_for(2);
    null_mut()
}

/// A count that others wait for, by the kernel's futex.
struct Gate(std::sync::atomic::AtomicU32);

impl Gate {
    const fn new() -> Self {
        Self(std::sync::atomic::AtomicU32::new(0))
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
        // SAFETY: wakes whoever waits on this word.
        unsafe { libc::syscall(libc::SYS_futex, &raw const self.0, libc::FUTEX_WAKE, i32::MAX) };
    }

    fn wait_for(&self, count: usize) {
        loop {
            let now = self.0.load(Ordering::Acquire);
            if now as usize >= count {
                return;
            }
            // SAFETY: waits while the word still holds `now`.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    &raw const self.0,
                    libc::FUTEX_WAIT,
                    now,
                    core::ptr::null::<libc::timespec>(),
                )
            };
        }
    }
}
