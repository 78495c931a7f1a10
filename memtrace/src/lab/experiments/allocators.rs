//! Other allocators give memory back in their own time: experiment 19.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::Measured;
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::run::{self, Run};
use crate::lab::trace::Traced;
use crate::lab::unit::Unit;

/// A little longer than jemalloc's decay of 10 seconds.
const SECONDS: u64 = 12;
const TRACED_SECONDS: u64 = 3;

pub const ALLOCATORS: Experiment = Experiment {
    number: 19,
    name: "allocators",
    group: Group::Others,
    title: "jemalloc and tcmalloc return memory by other rules",
    claim: "After the same frees under a small block on top glibc keeps all, while jemalloc gives back over some ten seconds \
            (decay) and tcmalloc by its own rate.",
    why: "glibc gives back at the top of the heap only. jemalloc purges unused pages wherever they lie, along a curve that \
          ends after dirty_decay_ms (10 000), as long as it is called now and then. gperftools' tcmalloc releases a page for \
          about every thousand that are freed (TCMALLOC_RELEASE_RATE).",
    commands: &[
        "memtrace-lab appetite",
        "LD_PRELOAD=libjemalloc.so.2 memtrace-lab appetite",
    ],
    checks: &[
        Check {
            figure: "glibc_kept",
            says: "of glibc's peak still resident in the end",
            claimed: None,
            expect: Expect::AtLeast(80.0),
            essential: true,
        },
        Check {
            figure: "jemalloc_kept",
            says: "of jemalloc's peak still resident in the end",
            claimed: None,
            expect: Expect::AtMost(50.0),
            essential: true,
        },
        Check {
            figure: "tcmalloc_kept",
            says: "of tcmalloc's peak still resident in the end",
            claimed: None,
            expect: Expect::Shown,
            essential: false,
        },
    ],
    needs: Needs {
        memory: (3 * 96) << 20,
        files: 0,
    },
    root_adds: Some("the system calls by which each gives back (madvise, munmap)"),
    measure,
};

struct Preloaded {
    kept: &'static str,
    after_free: &'static str,
    name: &'static str,
    files: &'static [&'static str],
    package: &'static str,
}

const OTHERS: [Preloaded; 2] = [
    Preloaded {
        kept: "jemalloc_kept",
        after_free: "jemalloc_after_free",
        name: "jemalloc",
        files: &["libjemalloc.so.2"],
        package: "libjemalloc2",
    },
    Preloaded {
        kept: "tcmalloc_kept",
        after_free: "tcmalloc_after_free",
        name: "tcmalloc",
        files: &["libtcmalloc.so.4", "libtcmalloc_minimal.so.4"],
        package: "libgoogle-perftools4 or libtcmalloc-minimal4",
    },
];

fn measure(bench: &Bench) -> Result<Measured> {
    bench.served_by_glibc()?;
    let mut measured = Measured::default();
    let mut commands = vec![("glibc", "glibc_kept", "glibc_after_free", bench.program("appetite"))];
    for Preloaded {
        kept,
        after_free,
        name,
        files,
        package,
    } in &OTHERS
    {
        match (find(files), &bench.settings.glibc) {
            (None, _) => measured.miss(kept, format!("{name} is not installed (Debian: {package})")),
            (Some(_), Some(_)) => {
                measured.miss(kept, format!("this machine's {name} was not built for the other glibc"));
            }
            (Some(path), None) => {
                let command = bench.program("appetite").env("LD_PRELOAD", path);
                commands.push((name, kept, after_free, command));
            }
        }
    }
    // Side by side: what is looked at is the size of each, not its speed.
    let runs: Vec<Result<Run>> = std::thread::scope(|scope| {
        let threads: Vec<_> = commands
            .iter()
            .map(|(_, _, _, command)| {
                let command = command
                    .clone()
                    .arg("--seconds", SECONDS)
                    .sampled(Duration::from_millis(250));
                scope.spawn(move || run::run(&command))
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|run| run.unwrap_or_else(|_| Err(anyhow!("a thread of the lab panicked"))))
            .collect()
    });
    let mut series = Vec::new();
    for ((name, kept, after_free, _), run) in commands.iter().zip(runs) {
        let run = run?;
        let share = |phase: &str| -> Result<f64> {
            let above =
                |phase: &str| -> Result<f64> { Ok(run.stop(phase)?.look.resident - run.stop("base")?.look.resident) };
            Ok(above(phase)? * 100.0 / above("full")?.max(1.0))
        };
        measured.count(
            after_free,
            format!("{name}, just after the frees"),
            share("freed")?,
            Unit::Percent,
        );
        measured.count(
            kept,
            format!("{name}, {SECONDS} s later"),
            share("done")?,
            Unit::Percent,
        );
        let mut points: Vec<_> = run
            .stops
            .iter()
            .map(|stop| &stop.look)
            .chain(&run.samples)
            .map(|look| (look.at, look.resident))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        series.push(Series::new(*name, Shape::Line, points));
    }
    for (name, _, _, command) in &commands {
        if bench.can_trace().is_err() {
            break;
        }
        match bench.trace(&command.clone().arg("--seconds", TRACED_SECONDS))? {
            Traced::Seen { report, .. } => measured.note(format!(
                "{name}, traced for {TRACED_SECONDS} s after the frees: {}",
                super::runtimes::given_back(&report)
            )),
            Traced::Not(why) => measured.note(format!("{name}, not traced: {why}")),
        }
    }
    measured.pictures.push(Picture {
        name: "allocators",
        title: "64 MiB freed below one small block: resident bytes over time".to_string(),
        x: Axis::linear("time", Unit::Seconds),
        y: Axis::linear("resident", Unit::Bytes),
        series,
    });
    Ok(measured)
}

/// The first of these libraries where distributions put them.
fn find(names: &[&str]) -> Option<PathBuf> {
    let architecture = std::env::consts::ARCH;
    let multiarch = format!("/usr/lib/{architecture}-linux-gnu");
    let places = [multiarch.as_str(), "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    let candidates = names
        .iter()
        .flat_map(|name| places.iter().map(move |place| Path::new(place).join(name)));
    candidates.into_iter().find(|path| path.exists())
}
