//! What experiments work with: the programs, where they may write, and runs that several of them share.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};
use memtrace_analysis::glibc::look::Look as Explained;

use crate::inspect;

use super::run::{self, Command, Run};
use super::trace::{Traced, Tracer};

/// How a whole lab session is to be run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// memtrace-lab itself.
    pub programs: PathBuf,
    /// Another glibc for the programs: its dynamic loader and the directory of its libraries.
    pub glibc: Option<(PathBuf, PathBuf)>,
    /// Where files are made; nothing is left there.
    pub directory: PathBuf,
    /// Bytes of the large file of the page cache experiments.
    pub file_size: u64,
    /// Rounds of each timing.
    pub rounds: u64,
    pub allow_drop_caches: bool,
}

/// A run of brk-steps, with a walk through its heap when all is freed.
pub struct BrkSteps {
    pub run: Run,
    pub freed: Result<Explained, String>,
}

pub struct Bench {
    pub settings: Settings,
    /// Why there is none, where that is so.
    tracer: Result<Tracer, String>,
    brk_steps: OnceCell<BrkSteps>,
    brk_steps_traced: OnceCell<Traced>,
    pairs: OnceCell<Run>,
    pairs_without_threshold: OnceCell<Run>,
    file_cache: OnceCell<super::experiments::page_cache::FileCacheRun>,
}

impl Bench {
    pub fn new(settings: Settings, tracer: Result<Tracer, String>) -> Self {
        Self {
            settings,
            tracer,
            brk_steps: OnceCell::new(),
            brk_steps_traced: OnceCell::new(),
            pairs: OnceCell::new(),
            pairs_without_threshold: OnceCell::new(),
            file_cache: OnceCell::new(),
        }
    }

    /// A program of memtrace-lab that waits at its phases.
    pub fn program(&self, name: &str) -> Command {
        let mut arguments: Vec<OsString> = Vec::new();
        let program = match &self.settings.glibc {
            None => self.settings.programs.clone(),
            Some((loader, libraries)) => {
                arguments.extend([
                    "--library-path".into(),
                    libraries.into(),
                    self.settings.programs.clone().into(),
                ]);
                loader.clone()
            }
        };
        arguments.extend([name.into(), "--wait".into()]);
        self.command(program, arguments)
    }

    /// Any other program that speaks as those do.
    pub fn command(&self, program: impl Into<OsString>, arguments: Vec<OsString>) -> Command {
        Command {
            program: program.into(),
            arguments,
            environment: Vec::new(),
            directory: self.settings.directory.clone(),
            sample_every: None,
        }
    }

    /// 10,000 blocks of 64 bytes: the subject of the first four experiments.
    pub fn brk_steps(&self) -> Result<&BrkSteps> {
        once(&self.brk_steps, || {
            let mut freed = Err("the program did not come to its frees".to_string());
            let run = run::run_with(&self.program("brk-steps"), |stop, pid| {
                if stop.line.name == "freed" {
                    freed = inspect::look(pid).map_err(|error| format!("{error:#}"));
                }
                Ok(())
            })?;
            Ok(BrkSteps { run, freed })
        })
    }

    /// The same, traced.
    pub fn brk_steps_traced(&self) -> Result<&Traced> {
        once(&self.brk_steps_traced, || self.trace(&self.program("brk-steps")))
    }

    /// Runs a program with its memory system calls traced, where that can be.
    pub fn trace(&self, command: &Command) -> Result<Traced> {
        match &self.tracer {
            Ok(tracer) => tracer.run(command),
            Err(why) => Ok(Traced::Not(why.clone())),
        }
    }

    /// Whether anything can be traced.
    pub fn can_trace(&self) -> Result<(), String> {
        self.tracer.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    /// Pairs of every size, in both ways.
    pub fn pairs(&self) -> Result<&Run> {
        once(&self.pairs, || {
            run::run(&self.program("pairs").arg("--rounds", self.settings.rounds))
        })
    }

    /// The same with M_MMAP_THRESHOLD set to 0.
    pub fn pairs_without_threshold(&self) -> Result<&Run> {
        once(&self.pairs_without_threshold, || {
            run::run(
                &self
                    .program("pairs")
                    .arg("--rounds", self.settings.rounds)
                    .arg("--threshold-zero", 1),
            )
        })
    }

    pub fn file_cache(&self) -> Result<&super::experiments::page_cache::FileCacheRun> {
        once(&self.file_cache, || {
            super::experiments::page_cache::FileCacheRun::make(self)
        })
    }

    /// The glibc the programs run with; an error when they cannot be run at all.
    pub fn glibc(&self) -> Result<Option<String>> {
        let run = run::run(&self.program("knobs"))
            .with_context(|| format!("trying out the lab's programs ({})", self.settings.programs.display()))?;
        Ok(run.stop("base")?.look.books.map(|books| books.version.to_string()))
    }
}

fn once<T>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    match cell.get() {
        Some(made) => Ok(made),
        None => {
            let made = make()?;
            Ok(cell.get_or_init(|| made))
        }
    }
}
