//! Many large blocks alive at once: nothing can be used again, so each pays the full price.
//!
//! Each round holds --blocks blocks of --bytes at once, then frees them, and prints
//! `alive round=0 malloc_ns=... write_ns=... free_ns=... faults=...` (per block); then does the same number of times one
//! block after the other: `reuse round=0 ...`. Phases: base, held (first round), freed (first round), done.

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::clock::now_ns;
use crate::glibc::raw_block::{free, malloc, write_pages};
use crate::line;
use crate::stage::Stage;

const MOST: usize = 1_024;

pub const PROGRAM: Program = Program {
    name: "large-alive",
    about: "holds many large blocks at once and frees them, against one block after the other",
    options: &[
        NumberOption {
            name: "blocks",
            default: 64,
            maximum: MOST as u64,
        },
        NumberOption {
            name: "bytes",
            default: 1 << 20,
            maximum: 1 << 30,
        },
        NumberOption {
            name: "rounds",
            default: 5,
            maximum: 1_000,
        },
    ],
    run,
};

#[derive(Default)]
struct Price {
    malloc_ns: u64,
    write_ns: u64,
    free_ns: u64,
    faults: i64,
}

fn run(stage: &mut Stage, options: &Options) {
    let (blocks, bytes, rounds) = (options.count("blocks"), options.count("bytes"), options.get("rounds"));
    stage.phase("base");
    for round in 0..rounds {
        let price = all_at_once(stage, blocks, bytes, round == 0);
        price.print("alive", round, blocks);
        if round == 0 {
            stage.phase("freed");
        }
    }
    for round in 0..rounds {
        let mut price = Price::default();
        for _ in 0..blocks {
            let block = price.malloc(bytes);
            price.free(block);
        }
        price.print("reuse", round, blocks);
    }
    stage.phase("done");
}

fn all_at_once(stage: &mut Stage, blocks: usize, bytes: usize, look: bool) -> Price {
    let mut held = [core::ptr::null_mut(); MOST];
    let mut price = Price::default();
    for slot in &mut held[..blocks] {
        *slot = price.malloc(bytes);
    }
    if look {
        stage.phase("held");
    }
    for block in &held[..blocks] {
        price.free(*block);
    }
    price
}

impl Price {
    fn malloc(&mut self, bytes: usize) -> *mut libc::c_void {
        let (faults, began) = (minor_faults(), now_ns());
        let block = malloc(bytes);
        let got = now_ns();
        // SAFETY: the block has that many bytes.
        unsafe { write_pages(block, bytes) };
        self.write_ns += now_ns() - got;
        self.malloc_ns += got - began;
        self.faults += minor_faults() - faults;
        block
    }

    fn free(&mut self, block: *mut libc::c_void) {
        let began = now_ns();
        // SAFETY: each block is freed once.
        unsafe { free(block) };
        self.free_ns += now_ns() - began;
    }

    fn print(&self, kind: &str, round: u64, blocks: usize) {
        let each = |total: u64| total as f64 / blocks.max(1) as f64;
        line::print(format_args!(
            "{kind} round={round} malloc_ns={:.1} write_ns={:.1} free_ns={:.1} faults={:.2}",
            each(self.malloc_ns),
            each(self.write_ns),
            each(self.free_ns),
            self.faults as f64 / blocks.max(1) as f64
        ));
    }
}

/// Page faults served without the disk, so far.
fn minor_faults() -> i64 {
    let mut usage = core::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: writes the structure it is given, which is valid as zeros too.
    unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init().ru_minflt
    }
}
