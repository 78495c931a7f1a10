//! Threads that know what is in each of their blocks, and look: a target whose own data tells whether it was harmed.
//!
//! Every block is filled with a pattern that follows from its address and size, and verified whenever it is exchanged,
//! resized or freed. Meanwhile the first thread forks children that verify what they have inherited and go on a while,
//! has them execute this program again, starts and joins threads, and loads and unloads a library. It ends when a line, or the
//! end, of its input comes, verifies all, and prints `intact blocks=N children=N threads=N libraries=N`; what is wrong ends it
//! at once with a line on standard error and status 4.

use std::ffi::{CStr, c_void};
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::clock;
use crate::line;
use crate::random::Random;
use crate::stage::{self, Stage};

const MOST_THREADS: usize = 16;
const SLOTS: usize = 512;
/// Exit status when a block does not hold what was written into it, or a child says so.
const EXIT_HARMED: i32 = 4;
/// Is with every glibc, and mapped by no program of this kind before.
const LIBRARY: &CStr = c"libresolv.so.2";

pub const PROGRAM: Program = Program {
    name: "checking",
    about: "verifies the contents of all its blocks while it forks, executes, loads libraries and starts threads",
    options: &[
        NumberOption {
            name: "threads",
            default: 4,
            maximum: MOST_THREADS as u64,
        },
        NumberOption {
            name: "seed",
            default: 1,
            maximum: u64::MAX,
        },
        // Exchanges to make, then end: what children do. 0: until there is input
        NumberOption {
            name: "exchanges",
            default: 0,
            maximum: 1 << 40,
        },
    ],
    run,
};

static OVER: AtomicBool = AtomicBool::new(false);
static EXCHANGES: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Copy)]
struct Block {
    start: *mut u64,
    words: usize,
}

struct Holder {
    blocks: [Block; SLOTS],
    random: Random,
}

// SAFETY: a thread's blocks are its own.
unsafe impl Send for Holder {}

impl Holder {
    const fn empty() -> Self {
        const NONE: Block = Block {
            start: null_mut(),
            words: 0,
        };
        Self {
            blocks: [NONE; SLOTS],
            random: Random::unused(),
        }
    }

    /// Frees, resizes or exchanges one block, having verified it.
    fn step(&mut self) {
        let slot = self.random.below(SLOTS);
        let words = 1 + match self.random.below(50) {
            0 => self.random.below(40_000),
            1..10 => self.random.below(1_000),
            _ => self.random.below(60),
        };
        let block = &mut self.blocks[slot];
        verify(*block);
        // SAFETY: the block was allocated here and is freed or resized once; what it is given back for is filled below.
        unsafe {
            block.start = match self.random.below(4) {
                0 if !block.start.is_null() => libc::realloc(block.start.cast(), words * 8).cast(),
                1 => {
                    libc::free(block.start.cast());
                    libc::calloc(words, 8).cast()
                }
                _ => {
                    libc::free(block.start.cast());
                    libc::malloc(words * 8).cast()
                }
            };
        }
        block.words = words;
        if block.start.is_null() {
            harmed("an allocation failed");
        }
        fill(*block);
        EXCHANGES.fetch_add(1, Ordering::Relaxed);
    }

    fn verify_all(&self) {
        for &block in &self.blocks {
            verify(block);
        }
    }
}

/// What the `i`th word of a block holds.
fn pattern(block: Block, i: usize) -> u64 {
    (block.start as u64 ^ (block.words as u64) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i as u64
}

fn fill(block: Block) {
    for i in 0..block.words {
        // SAFETY: the block has that many words.
        unsafe { block.start.add(i).write(pattern(block, i)) };
    }
}

fn verify(block: Block) {
    for i in 0..block.words {
        // SAFETY: the block has that many words, all of them filled.
        if unsafe { black_box(block.start).add(i).read() } != pattern(block, i) {
            harmed("a block does not hold what was written into it");
        }
    }
}

fn harmed(what: &str) -> ! {
    line::error(format_args!("memtrace-lab: process {}: {what}", std::process::id()));
    // SAFETY: ends the process without running anything of ours.
    unsafe { libc::_exit(EXIT_HARMED) }
}

/// In the program's data, since they must outlive their threads.
static mut HOLDERS: [Holder; MOST_THREADS] = [const { Holder::empty() }; MOST_THREADS];

fn run(_stage: &mut Stage, options: &Options) {
    let threads = options.count("threads").max(2);
    let holders = &raw mut HOLDERS;
    // SAFETY: this function is run once, and nothing else names the static.
    let holders = unsafe { &mut *holders };
    for (i, holder) in holders.iter_mut().enumerate() {
        holder.random = Random::new(options.get("seed").wrapping_mul(1_000_003).wrapping_add(i as u64));
    }
    let (own, others) = holders[..threads].split_at_mut(1);
    let own = &mut own[0];
    let exchanges = options.get("exchanges");
    if exchanges > 0 {
        for _ in 0..exchanges {
            own.step();
        }
        own.verify_all();
        return;
    }
    let mut ids = [0; MOST_THREADS];
    for (id, holder) in ids.iter_mut().zip(others.iter_mut()) {
        *id = thread(hold, core::ptr::from_mut(holder).cast());
    }
    line::print(format_args!("ready pid={} threads={threads}", std::process::id()));
    let (mut children, mut started, mut libraries) = (0u64, 0u64, 0u64);
    while !stage::input_waits() {
        for _ in 0..2_000 {
            own.step();
        }
        match own.random.below(4) {
            0 => {
                child(own, false);
                children += 1;
            }
            1 => {
                child(own, true);
                children += 1;
            }
            2 => {
                let id = thread(short, core::ptr::null_mut());
                // SAFETY: started above and joined once.
                unsafe { libc::pthread_join(id, null_mut()) };
                started += 1;
            }
            _ => {
                load_library();
                libraries += 1;
            }
        }
        // Others are to have the processor too.
        clock::idle_ms(5);
    }
    OVER.store(true, Ordering::Release);
    for id in &ids[..others.len()] {
        // SAFETY: each thread was started above and is joined once.
        unsafe { libc::pthread_join(*id, null_mut()) };
    }
    own.verify_all();
    for holder in others.iter() {
        holder.verify_all();
    }
    line::print(format_args!(
        "intact blocks={} children={children} threads={started} libraries={libraries}",
        EXCHANGES.load(Ordering::Relaxed)
    ));
}

/// pthread_create itself, since std's threads allocate on their own account.
fn thread(work: extern "C" fn(*mut c_void) -> *mut c_void, with: *mut c_void) -> libc::pthread_t {
    let mut id = 0;
    // SAFETY: what the thread is handed is not touched by others before it is joined.
    if unsafe { libc::pthread_create(&raw mut id, core::ptr::null(), work, with) } != 0 {
        harmed("a thread could not be started");
    }
    id
}

extern "C" fn hold(holder: *mut c_void) -> *mut c_void {
    // SAFETY: see `run`.
    let holder = unsafe { &mut *holder.cast::<Holder>() };
    while !OVER.load(Ordering::Acquire) {
        for _ in 0..500 {
            holder.step();
        }
        clock::idle_ms(2);
    }
    null_mut()
}

/// A thread that comes, works on blocks of its own and goes.
extern "C" fn short(_: *mut c_void) -> *mut c_void {
    for words in 1..200 {
        // SAFETY: any size is a valid request; the block is freed once.
        unsafe {
            let block = Block {
                start: libc::malloc(words * 8).cast(),
                words,
            };
            if block.start.is_null() {
                harmed("an allocation failed");
            }
            fill(block);
            verify(block);
            libc::free(block.start.cast());
        }
    }
    null_mut()
}

/// Forks a child that verifies what it has inherited and goes on with it, or executes this program again; waits for it.
fn child(own: &mut Holder, executes: bool) {
    // SAFETY: the child calls what may be called after a fork of a process with threads: glibc keeps its malloc usable.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => harmed("fork failed"),
        0 => {
            own.verify_all();
            if executes {
                execute();
            }
            for _ in 0..500 {
                own.step();
            }
            own.verify_all();
            // SAFETY: ends the child without running what the parent has registered for its own end.
            unsafe { libc::_exit(0) }
        }
        _ => {}
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
        if line::errno() != libc::EINTR {
            harmed("waiting for a child failed");
        }
    }
    if status != 0 {
        line::error(format_args!("memtrace-lab: a child ended with wait status {status:#x}"));
        harmed("a child did not end well");
    }
}

fn execute() -> ! {
    let words = [c"memtrace-lab", c"checking", c"--exchanges", c"2000"].map(CStr::as_ptr);
    let words = [words[0], words[1], words[2], words[3], core::ptr::null()];
    // SAFETY: the path and the words end with NULs, the list of words with a null pointer.
    unsafe { libc::execv(c"/proc/self/exe".as_ptr(), words.as_ptr()) };
    harmed("executing this program again failed")
}

fn load_library() {
    // SAFETY: the name ends with a NUL; the library's initialisers do nothing of note, and it is closed once.
    unsafe {
        let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            harmed("a library could not be loaded");
        }
        libc::dlclose(library);
    }
}
