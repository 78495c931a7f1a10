//! A thread that does nothing but system calls, in windows that are measured from outside (see `window`).
//!
//! The calls are getppid, or with `memory` mmap and munmap of a page, in turn; a unit of work is one call. `rate` holds it to
//! that many in a second: it makes as many as are due, sleeps a millisecond and looks again.

use std::ptr::null_mut;

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::clock;
use crate::line;
use crate::stage::Stage;
use crate::window::{self, Worker};

const PORTION: u64 = 256;
const PAGE: usize = 4096;

pub const PROGRAM: Program = Program {
    name: "system-calls",
    about: "does nothing but system calls, in windows that are measured from outside",
    options: &[
        // 1: mmap and munmap, 0: getppid
        NumberOption {
            name: "memory",
            default: 0,
            maximum: 1,
        },
        // 0: as fast as it can
        NumberOption {
            name: "rate",
            default: 0,
            maximum: 1 << 32,
        },
    ],
    run,
};

struct Calls {
    memory: bool,
    rate: u64,
    began: u64,
    done: u64,
}

impl Calls {
    fn call(&self) {
        // SAFETY: getppid takes nothing; the mapping is our own and is removed at once.
        unsafe {
            if !self.memory {
                libc::syscall(libc::SYS_getppid);
                return;
            }
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let page = libc::mmap(null_mut(), PAGE, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            if page == libc::MAP_FAILED {
                line::error(format_args!("memtrace-lab: there is no memory for a page"));
                libc::_exit(2);
            }
            libc::munmap(page, PAGE);
        }
    }

    /// How many calls are due now.
    fn due(&self) -> u64 {
        if self.rate == 0 {
            return PORTION;
        }
        let passed = clock::now_ns() - self.began;
        let wanted = u128::from(passed) * u128::from(self.rate) / 1_000_000_000;
        u64::try_from(wanted).unwrap_or(u64::MAX).saturating_sub(self.done)
    }
}

impl Worker for Calls {
    fn begin(&mut self) {
        (self.began, self.done) = (clock::now_ns(), 0);
    }

    fn portion(&mut self) -> u64 {
        let each = if self.memory { 2 } else { 1 };
        let rounds = self.due() / each;
        for _ in 0..rounds {
            self.call();
        }
        if self.rate != 0 {
            clock::idle_ms(1);
        }
        self.done += rounds * each;
        rounds * each
    }
}

static mut CALLS: [Calls; 1] = [Calls {
    memory: false,
    rate: 0,
    began: 0,
    done: 0,
}];

fn run(_stage: &mut Stage, options: &Options) {
    let calls = &raw mut CALLS;
    // SAFETY: this function is run once, and nothing else names the static.
    let calls = unsafe { &mut *calls };
    calls[0].memory = options.get("memory") == 1;
    calls[0].rate = options.get("rate");
    window::serve(calls);
}
