//! The programs, a file each.

use crate::arguments::{self, MAX_OPTIONS, Options};
use crate::line;
use crate::stage::Stage;

mod appetite;
mod arenas;
mod brk_steps;
mod checking;
mod child_job;
mod churn;
mod file_cache;
mod files_held;
mod knobs;
mod large_alive;
mod large_block;
mod leak;
mod mixed;
mod one_at_a_time;
mod pairs;
mod random_reads;
mod system_calls;
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
    one_at_a_time::PROGRAM,
    leak::PROGRAM,
    child_job::PROGRAM,
    pairs::PROGRAM,
    large_alive::PROGRAM,
    arenas::PROGRAM,
    knobs::PROGRAM,
    random_reads::PROGRAM,
    file_cache::PROGRAM,
    files_held::PROGRAM,
    appetite::PROGRAM,
    churn::PROGRAM,
    system_calls::PROGRAM,
    checking::PROGRAM,
];

const _: () = {
    let mut i = 0;
    while i < ALL.len() {
        assert!(ALL[i].options.len() <= MAX_OPTIONS);
        i += 1;
    }
};

pub fn help() {
    line::print(format_args!(
        "Programs of one allocator behaviour each, to be traced and looked into."
    ));
    line::print(format_args!("{}", arguments::USAGE));
    line::print(format_args!(
        "--wait: stop at each phase until a line comes on standard input"
    ));
    line::print(format_args!(""));
    list();
}

pub fn list() {
    for Program {
        name,
        about,
        options,
        run: _,
    } in ALL
    {
        line::print(format_args!("{name:22} {about}"));
        for NumberOption { name, default, maximum } in *options {
            line::print(format_args!("{:22}   --{name} N ({default}, at most {maximum})", ""));
        }
    }
}
