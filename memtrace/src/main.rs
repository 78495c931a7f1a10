//! The memtrace command: parse, do, exit.

use std::process::ExitCode;

use memtrace::commands::{self, args::Cli, exit};

fn main() -> ExitCode {
    let exit = match Cli::read(std::env::args_os()) {
        Ok(cli) => exit::conclude(commands::run(cli)),
        Err(told) => exit::without_command(&told),
    };
    exit.into()
}
