//! Programs of one allocator behaviour each, to be traced, looked into and learnt from.
//!
//! ```text
//! memtrace-lab list                          what there is
//! memtrace-lab NAME [--wait] [--OPTION N]    run one; --wait: stop at each phase for a line on stdin
//! ```
//!
//! A program calls glibc's allocator itself and prints without allocating, so that what a tracer counts is what its
//! source says, and nothing else. That is also why `main` is C's here: the start of Rust's runtime allocates.
#![no_main]

use std::ffi::{CStr, c_char, c_int};

mod arguments;
mod books;
mod clock;
mod file;
mod glibc;
mod line;
mod programs;
mod random;
mod stage;
mod window;

/// Exit status of a wrong command line, as in sysexits.h.
const EXIT_USAGE: c_int = 64;

// SAFETY: the only symbol of this name in the program, with the signature that C's start-up code calls.
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, words: *const *const c_char) -> c_int {
    let words = (1..usize::try_from(count).unwrap_or(0)).map(|i| {
        // SAFETY: the kernel hands over `count` pointers to NUL-terminated strings that live as long as the process.
        unsafe { CStr::from_ptr(*words.add(i)) }
            .to_str()
            .unwrap_or("(not UTF-8)")
    });
    match arguments::parse(words) {
        Ok(arguments::Request::Help) => {
            programs::help();
            0
        }
        Ok(arguments::Request::List) => {
            programs::list();
            0
        }
        Ok(arguments::Request::Run { program, options, wait }) => {
            (program.run)(&mut stage::Stage::new(wait), &options);
            0
        }
        Err(error) => {
            error.print();
            EXIT_USAGE
        }
    }
}
