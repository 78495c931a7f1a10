//! Writes the manual pages and shell completions of the memtrace command below a directory: `documents DIR`.
//!
//! `cargo xtask dist` runs it. An example, so that neither the binary nor xtask carries what only a release needs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::CommandFactory;
use clap_complete::Shell;
use memtrace::commands::args::Cli;

fn main() -> Result<()> {
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(directory), None) = (words.next(), words.next()) else {
        bail!("usage: documents DIR");
    };
    let manual = made(&directory, "man")?;
    clap_mangen::generate_to(Cli::command(), &manual)
        .with_context(|| format!("writing manual pages to {}", manual.display()))?;
    let completions = made(&directory, "completions")?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "memtrace", &completions)
            .with_context(|| format!("writing the completion for {shell} to {}", completions.display()))?;
    }
    Ok(())
}

fn made(directory: &Path, name: &str) -> Result<PathBuf> {
    let made = directory.join(name);
    std::fs::create_dir_all(&made).with_context(|| format!("making {}", made.display()))?;
    Ok(made)
}
