//! Phases: where a program stops, says what is true of it, and waits to be looked at.
//!
//! Each phase is one line on standard output:
//!
//! ```text
//! phase=freed pid=4242 rss=2121728 brk=811008 live_blocks=0 live_bytes=0 arena=811008 uordblks=1024 ...
//! ```
//!
//! `rss` is resident bytes, `brk` the bytes by which the break has moved since the first phase, `live_*` what the
//! program holds (sizes as asked for), the rest mallinfo2(3), which glibc sums over its arenas. With `--wait` the
//! program goes on when it reads a line from standard input, and ends when there is none.

use std::ffi::{CStr, c_int};
use std::fmt::Arguments;

use crate::books;
use crate::glibc;
use crate::line::{self, Line};

/// Exit status when whoever reads our lines, or answers them, is gone.
pub const EXIT_NO_PARTNER: c_int = 3;

pub struct Stage {
    wait: bool,
    break_at_first: Option<usize>,
}

impl Stage {
    pub fn new(wait: bool) -> Self {
        Self {
            wait,
            break_at_first: None,
        }
    }

    /// Prints the facts of a phase, then waits if that was asked for.
    pub fn phase(&mut self, name: &str) {
        self.phase_of(name, format_args!(""));
    }

    /// The same with facts of the program's own (`key=value `, each with a blank after it).
    pub fn phase_of(&mut self, name: &str, own: Arguments) {
        let mut line = Line::new();
        line.add(format_args!("phase={name} pid={} {own}", std::process::id()));
        self.facts(&mut line);
        line.print();
        if self.wait && !read_line() {
            // SAFETY: ends the process without running anything of ours.
            unsafe { libc::_exit(EXIT_NO_PARTNER) };
        }
    }

    /// Prints how far a phase has come, without waiting.
    pub fn progress(&mut self, blocks: usize) {
        let moved = self.break_moved();
        line::print(format_args!("progress blocks={blocks} brk={moved}"));
    }

    fn facts(&mut self, line: &mut Line) {
        let (blocks, bytes) = glibc::live();
        let (rss, moved) = (resident(), self.break_moved());
        let books = books::read();
        line.add(format_args!(
            "rss={rss} brk={moved} live_blocks={blocks} live_bytes={bytes} "
        ));
        line.add(format_args!(
            "arena={} uordblks={} fordblks={} keepcost={} hblks={} hblkhd={}",
            books.arena, books.uordblks, books.fordblks, books.keepcost, books.hblks, books.hblkhd
        ));
    }

    /// Bytes by which the break has moved since the first phase.
    pub fn break_moved(&mut self) -> isize {
        // SAFETY: asks, and moves nothing.
        let now = unsafe { libc::sbrk(0) } as usize;
        now.wrapping_sub(*self.break_at_first.get_or_insert(now)) as isize
    }
}

/// Reads up to the end of a line; false at the end of the input.
fn read_line() -> bool {
    let mut byte = 0u8;
    loop {
        // SAFETY: `byte` has room for one byte.
        match unsafe { libc::read(libc::STDIN_FILENO, (&raw mut byte).cast(), 1) } {
            1 if byte == b'\n' => return true,
            1 => {}
            -1 if line::errno() == libc::EINTR => {}
            _ => return false,
        }
    }
}

/// Whether there is something to be read on standard input, be it its end.
pub fn input_waits() -> bool {
    let mut input = libc::pollfd {
        fd: libc::STDIN_FILENO,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure, as the count says; a time of 0 does not wait.
    unsafe { libc::poll(&raw mut input, 1, 0) > 0 }
}

/// Reads a line that is a number; None at the end of the input and for anything else.
pub fn read_number() -> Option<u64> {
    let mut number = None;
    loop {
        let mut byte = 0u8;
        // SAFETY: `byte` has room for one byte.
        match unsafe { libc::read(libc::STDIN_FILENO, (&raw mut byte).cast(), 1) } {
            1 if byte == b'\n' => return number,
            1 if byte.is_ascii_digit() => {
                let digit = u64::from(byte - b'0');
                number = Some(number.unwrap_or(0u64).checked_mul(10)?.checked_add(digit)?);
            }
            -1 if line::errno() == libc::EINTR => {}
            _ => return None,
        }
    }
}

/// Resident bytes. The rollup adds up the page tables; the counters of statm may lag by some pages on each CPU.
fn resident() -> u64 {
    const ROLLUP: &CStr = c"/proc/self/smaps_rollup";
    let mut text = [0u8; 512];
    let length = read_file(ROLLUP, &mut text);
    let kib = core::str::from_utf8(&text[..length])
        .ok()
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("Rss:")))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|number| number.trim().parse::<u64>().ok());
    match kib {
        Some(kib) => kib * 1024,
        None => {
            line::error(format_args!(
                "memtrace-lab: reading the resident size from {ROLLUP:?} failed"
            ));
            // SAFETY: ends the process without running anything of ours.
            unsafe { libc::_exit(1) }
        }
    }
}

/// The begin of a file; 0 bytes when it cannot be read.
fn read_file(path: &CStr, room: &mut [u8]) -> usize {
    // SAFETY: the path ends with a NUL, `room` has room for what is read, and the descriptor is closed once.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return 0;
        }
        let length = libc::read(file, room.as_mut_ptr().cast(), room.len());
        libc::close(file);
        usize::try_from(length).unwrap_or(0)
    }
}
