//! The kernel the tests run on, by its number: what is said to be missing in it has to be.

use std::fs;

/// Linux `major.minor` or later.
pub fn is_at_least(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("every Linux says its release");
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse::<u32>().expect("a release begins with two numbers"));
    let mut next = || numbers.next().expect("a release begins with two numbers");
    (next(), next()) >= (major, minor)
}

/// A task's registers can be read in a tracepoint: what tells that a frame is still on the stack.
pub fn shows_registers() -> bool {
    is_at_least(5, 15)
}
