//! Writes the manual pages and shell completions of the memtrace command below a directory: `documents DIR`.
//!
//! `cargo xtask dist` runs it. An example, so that neither the binary nor xtask carries what only a release needs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use memtrace::commands::args::Cli;

fn main() -> Result<()> {
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(directory), None) = (words.next(), words.next()) else {
        bail!("usage: documents DIR");
    };
    let manual = made(&directory, "man")?;
    // Built first: a verb knows the names of the commands above it only then.
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_page(&command, &manual)?;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        write_page(verb, &manual)?;
    }
    let completions = made(&directory, "completions")?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "memtrace", &completions)
            .with_context(|| format!("writing the completion for {shell} to {}", completions.display()))?;
    }
    Ok(())
}

/// Every page names memtrace's version: clap's verbs have none of their own.
fn write_page(command: &Command, manual: &Path) -> Result<()> {
    clap_mangen::Man::new(command.clone())
        .source(concat!("memtrace ", env!("CARGO_PKG_VERSION")))
        .generate_to(manual)
        .with_context(|| format!("writing manual pages to {}", manual.display()))
        .map(drop)
}

fn made(directory: &Path, name: &str) -> Result<PathBuf> {
    let made = directory.join(name);
    std::fs::create_dir_all(&made).with_context(|| format!("making {}", made.display()))?;
    Ok(made)
}
