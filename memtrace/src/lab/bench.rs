//! What experiments work with: the programs, where they may write, and runs that several of them share.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use memtrace_analysis::glibc::look::Look as Explained;

use crate::inspect;
use crate::sentence;
use crate::target::Target;
use memtrace_analysis::event::AllocatorKind;

use super::disk;
use super::inherited::{self, Setting};
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
    tracer: Rc<Result<Tracer, String>>,
    /// Settings of the environment that the programs get, ...
    inherited: Vec<Setting>,
    /// ... and that they do not get.
    without: Vec<Setting>,
    /// The same bench without these settings, once one is wanted.
    control: OnceCell<Box<Bench>>,
    trial: OnceCell<Trial>,
    brk_steps: OnceCell<BrkSteps>,
    brk_steps_traced: OnceCell<Traced>,
    pairs: OnceCell<Run>,
    pairs_without_threshold: OnceCell<Run>,
    file_cache: OnceCell<super::experiments::page_cache::FileCacheRun>,
}

impl Bench {
    pub fn new(settings: Settings, tracer: Result<Tracer, String>) -> Self {
        Self::with(
            settings,
            Rc::new(tracer),
            inherited::among(std::env::vars_os()),
            Vec::new(),
        )
    }

    fn with(
        settings: Settings,
        tracer: Rc<Result<Tracer, String>>,
        inherited: Vec<Setting>,
        without: Vec<Setting>,
    ) -> Self {
        Self {
            settings,
            tracer,
            inherited,
            without,
            control: OnceCell::new(),
            trial: OnceCell::new(),
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
            without: self.without.iter().map(|setting| setting.name.clone()).collect(),
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
                    freed = inspect::look(pid).map_err(|error| sentence::of(&error));
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
        match self.tracer.as_ref() {
            Ok(tracer) => tracer.run(command),
            Err(why) => Ok(Traced::Not(why.clone())),
        }
    }

    /// Whether anything can be traced.
    pub fn can_trace(&self) -> Result<(), String> {
        self.tracer.as_ref().as_ref().map(|_| ()).map_err(Clone::clone)
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

    /// What the environment sets for the programs.
    pub fn inherited(&self) -> &[Setting] {
        &self.inherited
    }

    /// A bench whose programs do not get what the environment sets; None where it sets nothing.
    pub fn control(&self) -> Option<&Bench> {
        if self.inherited.is_empty() {
            return None;
        }
        Some(self.control.get_or_init(|| {
            let (settings, tracer) = (self.settings.clone(), Rc::clone(&self.tracer));
            Box::new(Self::with(settings, tracer, Vec::new(), self.inherited.clone()))
        }))
    }

    /// An error where another allocator answers the programs' malloc.
    pub fn served_by_glibc(&self) -> Result<()> {
        match &self.trial()?.foreign {
            Some(foreign) => bail!("the claim is about glibc's malloc, and {foreign} serves the lab's programs here"),
            None => Ok(()),
        }
    }

    /// An error where files have no disk behind them: such a file is nowhere but in memory.
    pub fn on_a_disk(&self) -> Result<()> {
        let directory = &self.settings.directory;
        match disk::kept_in_memory(directory)? {
            Some(kind) => bail!(
                "the files of {} are kept in memory ({kind}), with no disk behind them: --dir names a place on a disk",
                directory.display()
            ),
            None => Ok(()),
        }
    }

    /// What one program showed of all; an error when they cannot be run at all.
    pub fn trial(&self) -> Result<&Trial> {
        once(&self.trial, || {
            let mut foreign = None;
            let run = run::run_with(&self.program("knobs"), |_, pid| {
                let target = Target::of_pid(pid).with_context(|| format!("looking at process {pid}"))?;
                foreign = match target.allocator.kind {
                    AllocatorKind::Glibc | AllocatorKind::GlibcStatic => None,
                    _ => Some(target.allocator.path.unwrap_or(target.allocator.evidence)),
                };
                Ok(())
            })?;
            let base = run.stop("base").context("it does not speak as a program of the lab")?;
            Ok(Trial {
                glibc: base.look.books.map(|books| books.version.to_string()),
                foreign,
            })
        })
        .with_context(|| format!("trying out the lab's programs ({})", self.settings.programs.display()))
    }
}

/// What is the same for all programs of the lab.
pub struct Trial {
    /// The release they run with.
    pub glibc: Option<String>,
    /// Whose malloc they call, where that is not glibc's.
    pub foreign: Option<String>,
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
