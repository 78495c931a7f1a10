//! Runtimes with a collector of their own: experiment 20.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use memtrace_analysis::report::Report;

use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::Measured;
use crate::lab::interrupt::{Interrupted, Named};
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::run::{self, Command, Run};
use crate::lab::trace::Traced;
use crate::lab::unit::Unit;
use crate::sentence;

const JAVA_SOURCE: &str = include_str!("../../../../memtrace-lab/runtimes/Appetite.java");
const GO_SOURCE: &str = include_str!("../../../../memtrace-lab/runtimes/appetite.go");

pub const RUNTIMES: Experiment = Experiment {
    number: 20,
    name: "runtimes",
    group: Group::Others,
    title: "RSS of Go and the JVM lags behind their live objects",
    claim: "When a Go or JVM program drops its objects, RSS stays until the collector runs and hands pages back \
            (uncommit, madvise).",
    why: "Dropping a reference frees nothing. A collection finds the space free for new objects; giving its pages to the \
          system is a step of its own, which the JVM takes when it makes its heap smaller and Go in the background.",
    commands: &[
        "java --source 11 memtrace-lab/runtimes/Appetite.java",
        "go run memtrace-lab/runtimes/appetite.go",
    ],
    checks: &[
        Check {
            figure: "dropped",
            says: "of the peak still resident when all objects are dropped",
            claimed: None,
            expect: Expect::AtLeast(90.0),
            essential: true,
        },
        Check {
            figure: "collected",
            says: "of the peak still resident once it was collected and handed back",
            claimed: None,
            expect: Expect::AtMost(60.0),
            essential: true,
        },
    ],
    needs: Needs {
        memory: 512 << 20,
        files: 0,
    },
    root_adds: Some("the madvise, munmap and mprotect calls by which each runtime gives back"),
    measure,
};

struct Runtime {
    name: &'static str,
    package: &'static str,
    /// In which phase everything has been handed back that will be.
    last: &'static str,
}

const JVM: Runtime = Runtime {
    name: "JVM",
    package: "default-jdk-headless",
    last: "later",
};
const GO: Runtime = Runtime {
    name: "Go",
    package: "golang-go",
    last: "released",
};

fn measure(bench: &Bench) -> Result<Measured> {
    let mut measured = Measured::default();
    let sources = Sources::write(&bench.settings.directory)?;
    let mut runs = Vec::new();
    for (runtime, command) in [(JVM, sources.java(bench)), (GO, sources.go(bench))] {
        let Some(command) = command else {
            measured.note(format!(
                "{} is not installed and was skipped (Debian: {})",
                runtime.name, runtime.package
            ));
            continue;
        };
        match run_traced(bench, &command, &runtime, &mut measured) {
            Ok(run) => runs.push((runtime, run)),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => measured.note(format!("{} was skipped: {}", runtime.name, sentence::of(&error))),
        }
    }
    if runs.is_empty() {
        for key in ["dropped", "collected"] {
            measured.miss(key, "neither Go nor a JDK could be run here");
        }
        return Ok(measured);
    }
    // With two runtimes, the one that is further from the claim speaks for both.
    let (mut dropped, mut collected) = (f64::INFINITY, 0.0f64);
    let mut series = Vec::new();
    for (runtime, run) in &runs {
        let share = |phase: &str| share(run, phase);
        measured.note(format!(
            "{}: of a peak of {} above its start, {} stay when dropped, {} after a collection, {} in the end",
            runtime.name,
            Unit::Bytes.show(run.stop("full")?.look.resident - run.stop("base")?.look.resident),
            Unit::Percent.show(share("dropped")?),
            Unit::Percent.show(share("collected")?),
            Unit::Percent.show(share(runtime.last)?)
        ));
        dropped = dropped.min(share("dropped")?);
        collected = collected.max(share(runtime.last)?);
        let points = run
            .stops
            .iter()
            .enumerate()
            .map(|(place, stop)| (place as f64, stop.look.resident));
        series.push(Series::new(runtime.name, Shape::Bars, points.collect()));
    }
    measured.count("dropped", "of the peak, all objects dropped", dropped, Unit::Percent);
    measured.count("collected", "of the peak, in the end", collected, Unit::Percent);
    let phases = [
        "start",
        "128 MiB held",
        "dropped",
        "collected",
        "2 s later",
        "handed back",
    ];
    let longest = runs.iter().map(|(_, run)| run.stops.len()).max().unwrap_or(0);
    measured.pictures.push(Picture {
        name: "runtimes",
        title: "A runtime's RSS behind its live objects".to_string(),
        x: Axis::places(
            "",
            phases.iter().take(longest).map(|phase| (*phase).to_string()).collect(),
        ),
        y: Axis::linear("resident", Unit::Bytes),
        series,
    });
    Ok(measured)
}

/// Traced where that can be: the system calls then tell how it gives back.
fn run_traced(bench: &Bench, command: &Command, runtime: &Runtime, measured: &mut Measured) -> Result<Run> {
    if bench.can_trace().is_err() {
        return run::run(command);
    }
    match bench.trace(command)? {
        Traced::Seen { run, report } => {
            measured.note(format!("{}, traced: {}", runtime.name, given_back(&report)));
            Ok(run)
        }
        Traced::Not(why) => {
            measured.note(format!("{}, not traced: {why}", runtime.name));
            run::run(command)
        }
    }
}

/// The system calls that take memory and give it back, in words.
pub fn given_back(report: &Report) -> String {
    let calls = report.syscalls.iter().filter(|(_, count)| count.count > 0);
    let calls: Vec<_> = calls
        .map(|(name, count)| format!("{} {name}", Unit::Count.show(count.count as f64)))
        .collect();
    if calls.is_empty() {
        "no memory system call".to_string()
    } else {
        format!("{} calls", calls.join(", "))
    }
}

/// Resident above the start, in percent of the peak.
fn share(run: &Run, phase: &str) -> Result<f64> {
    let base = run.stop("base")?.look.resident;
    let above = |phase: &str| -> Result<f64> { Ok(run.stop(phase)?.look.resident - base) };
    Ok(above(phase)? * 100.0 / above("full")?.max(1.0))
}

/// The runtimes want files with their names; the directory goes with this value.
struct Sources {
    directory: PathBuf,
    _named: Named,
}

impl Sources {
    fn write(directory: &Path) -> Result<Self> {
        let own = directory.join(format!("memtrace-lab-{}", std::process::id()));
        let named = Named::begin();
        fs::create_dir(&own).with_context(|| format!("making {}", own.display()))?;
        let sources = Self {
            directory: own,
            _named: named,
        };
        for (name, text) in [("Appetite.java", JAVA_SOURCE), ("appetite.go", GO_SOURCE)] {
            let path = sources.directory.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(sources)
    }

    fn java(&self, bench: &Bench) -> Option<Command> {
        // Without UsePerfData, or it would leave a file in /tmp/hsperfdata_USER when it is ended early.
        let options = [
            "-XX:-UsePerfData",
            "-XX:+UseG1GC",
            "-Xms16m",
            "-Xmx512m",
            "--source",
            "11",
        ];
        let arguments = options
            .iter()
            .map(OsString::from)
            .chain([self.directory.join("Appetite.java").into()]);
        Some(bench.command(find("java")?, arguments.collect()))
    }

    fn go(&self, bench: &Bench) -> Option<Command> {
        let command = bench.command(
            find("go")?,
            vec!["run".into(), self.directory.join("appetite.go").into()],
        );
        // What it builds lies beside the source, and goes with it.
        Some(
            command
                .env("GOCACHE", self.directory.join("cache"))
                .env("GOTMPDIR", &self.directory)
                .env("GOFLAGS", "-modcacherw"),
        )
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            eprintln!(
                "memtrace: removing {}: {}",
                self.directory.display(),
                sentence::of_error(&error)
            );
        }
    }
}

fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|place| place.join(program))
        .find(|path| path.is_file())
}
