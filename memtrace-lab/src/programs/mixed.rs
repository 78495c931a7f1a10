//! Threads that use every entry point on blocks they share: what one allocates another frees or resizes.
//!
//! Phases: base, worked (all threads joined), freed (all blocks given back). Before the last one it prints a line of
//! the calls it made itself: `calls malloc=N ... free=N malloc_trim=N`. They depend on the seed alone, since a thread
//! draws what to do before it sees what the others left. glibc makes a few more for each thread it starts.

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::glibc::raw;
use crate::line::{self, Line};
use crate::random::Random;
use crate::stage::Stage;

const MOST_THREADS: usize = 64;
const SLOTS: usize = 512;

pub const PROGRAM: Program = Program {
    name: "mixed",
    about: "uses every entry point from several threads, on blocks they share",
    options: &[
        NumberOption {
            name: "threads",
            default: 4,
            maximum: MOST_THREADS as u64,
        },
        NumberOption {
            name: "rounds",
            default: 5_000,
            maximum: 1 << 40,
        },
        NumberOption {
            name: "seed",
            default: 1,
            maximum: u64::MAX,
        },
    ],
    run,
};

/// Entry points, as indices of the table of counts.
#[derive(Clone, Copy)]
enum Entry {
    Malloc,
    Calloc,
    Realloc,
    Memalign,
    AlignedAlloc,
    PosixMemalign,
    Valloc,
    Pvalloc,
    Free,
    MallocTrim,
}

const NAMES: [&str; 10] = [
    "malloc",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "free",
    "malloc_trim",
];

static CALLS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
static SHARED: [AtomicPtr<c_void>; SLOTS] = [const { AtomicPtr::new(null_mut()) }; SLOTS];

struct Work {
    rounds: u64,
    seed: u64,
}

fn run(stage: &mut Stage, options: &Options) {
    let (threads, rounds, seed) = (options.count("threads"), options.get("rounds"), options.get("seed"));
    let mut work = [const { Work { rounds: 0, seed: 0 } }; MOST_THREADS];
    let mut ids = [0; MOST_THREADS];

    stage.phase("base");
    for i in 0..threads {
        work[i] = Work {
            rounds,
            seed: seed.wrapping_mul(1_000_003).wrapping_add(i as u64),
        };
        // pthread_create itself, since std's threads allocate on their own account.
        // SAFETY: `work[i]` outlives the thread, which is joined below, and nobody writes to it meanwhile.
        let failed = unsafe {
            libc::pthread_create(
                &raw mut ids[i],
                core::ptr::null(),
                work_in_thread,
                (&raw mut work[i]).cast(),
            )
        };
        if failed != 0 {
            line::give_up("starting a thread", failed, 2);
        }
    }
    for id in &ids[..threads] {
        // SAFETY: each thread was started above and is joined once.
        unsafe { libc::pthread_join(*id, null_mut()) };
    }
    stage.phase("worked");
    for slot in &SHARED {
        free(slot.swap(null_mut(), Ordering::AcqRel));
    }
    let mut line = Line::new();
    line.add(format_args!("calls"));
    for (name, calls) in NAMES.iter().zip(&CALLS) {
        line.add(format_args!(" {name}={}", calls.load(Ordering::Relaxed)));
    }
    line.print();
    stage.phase("freed");
}

extern "C" fn work_in_thread(work: *mut c_void) -> *mut c_void {
    // SAFETY: `run` hands over a Work that it does not touch before this thread is joined.
    let Work { rounds, seed } = unsafe { &*work.cast::<Work>() };
    let mut random = Random::new(*seed);
    for _ in 0..*rounds {
        act(&mut random);
    }
    null_mut()
}

fn act(random: &mut Random) {
    let slot = &SHARED[random.below(SLOTS)];
    let bytes = request(random);
    let choice = random.below(100);
    match choice {
        // resize what is there, in whatever thread it was made; nothing there: a new block
        0..20 => put(slot, realloc(slot.swap(null_mut(), Ordering::AcqRel), bytes.max(1))),
        // glibc frees on a size of 0, and returns NULL
        20..22 => put(slot, realloc(slot.swap(null_mut(), Ordering::AcqRel), 0)),
        22..24 => put(slot, realloc(null_mut(), bytes)),
        24 => fail(random),
        25 => free(null_mut()),
        26 if random.below(50) == 0 => {
            count(Entry::MallocTrim);
            // SAFETY: has no precondition.
            unsafe { raw::malloc_trim(bytes) };
        }
        _ => put(slot, allocate(random, bytes)),
    }
}

/// Mostly small sizes, some that span pages, a few that get a mapping of their own.
fn request(random: &mut Random) -> usize {
    match random.below(100) {
        0..80 => random.below(1_024),
        80..95 => random.below(16 << 10),
        95..99 => random.below(200 << 10),
        _ => random.below(1 << 20),
    }
}

fn allocate(random: &mut Random, bytes: usize) -> *mut c_void {
    // 8 is below what malloc gives anyway, 4096 is a page.
    let alignment = [8, 16, 32, 64, 4096][random.below(5)];
    let entry = match random.below(20) {
        0..9 => Entry::Malloc,
        9..13 => Entry::Calloc,
        13 => Entry::Memalign,
        14..16 => Entry::AlignedAlloc,
        16..18 => Entry::PosixMemalign,
        18 => Entry::Valloc,
        _ => Entry::Pvalloc,
    };
    count(entry);
    // SAFETY: the alignments are powers of two and multiples of a pointer's size; any size is a valid request.
    unsafe {
        match entry {
            Entry::Malloc => libc::malloc(bytes),
            Entry::Calloc => libc::calloc(bytes / 16 + 1, 16),
            Entry::Memalign => raw::memalign(alignment, bytes),
            Entry::AlignedAlloc => raw::aligned_alloc(alignment, bytes.next_multiple_of(alignment)),
            Entry::PosixMemalign => {
                let mut block = null_mut();
                libc::posix_memalign(&raw mut block, alignment, bytes);
                block
            }
            Entry::Valloc => raw::valloc(bytes),
            Entry::Pvalloc => raw::pvalloc(bytes),
            Entry::Realloc | Entry::Free | Entry::MallocTrim => unreachable!("not drawn above"),
        }
    }
}

/// Requests that no machine can serve: NULL comes back, and a block handed to realloc lives on.
fn fail(random: &mut Random) {
    let impossible = black_box(isize::MAX as usize + 1 + random.below(4096));
    let kind = random.below(3);
    // SAFETY: any size is a valid request; the block handed to realloc is alive, and freed once.
    let block = unsafe {
        match kind {
            0 => {
                count(Entry::Malloc);
                libc::malloc(impossible)
            }
            1 => {
                count(Entry::Calloc);
                libc::calloc(impossible, 16)
            }
            _ => {
                count(Entry::Malloc);
                let block = libc::malloc(40);
                let moved = realloc(block, impossible);
                if moved.is_null() { block } else { moved }
            }
        }
    };
    free(block);
}

fn put(slot: &AtomicPtr<c_void>, block: *mut c_void) {
    free(slot.swap(black_box(block), Ordering::AcqRel));
}

fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    count(Entry::Realloc);
    // The compiler knows these functions: unless what they are given is hidden from it, it makes a malloc of
    // realloc(NULL, n) and nothing of free(NULL).
    // SAFETY: whoever takes a block out of its slot is the only one who has it.
    unsafe { libc::realloc(black_box(block), black_box(bytes)) }
}

fn free(block: *mut c_void) {
    count(Entry::Free);
    // SAFETY: as for realloc.
    unsafe { libc::free(black_box(block)) };
}

fn count(entry: Entry) {
    CALLS[entry as usize].fetch_add(1, Ordering::Relaxed);
}
