//! One file for each verb.

pub mod args;
pub mod doctor;
pub mod exit;
pub mod explain;
mod feed;
pub mod lab;
mod lab_files;
mod output;
mod probes;
mod quantity;
mod record;
mod replay;
mod trace;

use args::{Cli, Verb};
use exit::Exit;

/// Does what the command line says.
pub fn run(cli: Cli) -> anyhow::Result<Exit> {
    let Cli { verb, trace } = cli;
    match verb {
        None => trace::run(&trace),
        Some(Verb::Replay(args)) => replay::run(&args),
        Some(Verb::Probes(args)) => probes::run(&args),
        Some(Verb::Lab(args)) => lab::run(&args),
        Some(Verb::Explain(args)) => explain::run(&args),
        Some(Verb::Doctor(args)) => doctor::run(&args),
    }
}
