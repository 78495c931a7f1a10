//! The programs, a file each.

use crate::arguments::{MAX_OPTIONS, Options};
use crate::line;
use crate::stage::Stage;

mod brk_steps;
mod large_block;
mod mixed;
mod threshold;

pub struct Program {
    pub name: &'static str,
    /// What it does, in one sentence.
    pub about: &'static str,
    pub options: &'static [NumberOption],
    pub run: fn(&mut Stage, &Options),
}

/// `--name N`
pub struct NumberOption {
    pub name: &'static str,
    pub default: u64,
    pub maximum: u64,
}

pub const ALL: &[Program] = &[
    brk_steps::PROGRAM,
    large_block::PROGRAM,
    threshold::PROGRAM,
    mixed::PROGRAM,
];

const _: () = {
    let mut i = 0;
    while i < ALL.len() {
        assert!(ALL[i].options.len() <= MAX_OPTIONS);
        i += 1;
    }
};

pub fn list() {
    for Program {
        name,
        about,
        options,
        run: _,
    } in ALL
    {
        line::print(format_args!("{name:16} {about}"));
        for NumberOption { name, default, maximum } in *options {
            line::print(format_args!("{:16}   --{name} N ({default}, at most {maximum})", ""));
        }
    }
}
