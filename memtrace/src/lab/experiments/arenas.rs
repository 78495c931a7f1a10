//! Threads make arenas up to a limit, and each keeps what lies below its survivor: experiment 13.

use std::fs;
use std::io;

use anyhow::{Context, Result};

use super::MIB;
use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::Measured;
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::run::{self, Books, Run};
use crate::lab::trace::Traced;
use crate::lab::unit::Unit;

pub const ARENAS: Experiment = Experiment {
    number: 13,
    name: "arenas",
    group: Group::Cost,
    title: "threads make arenas up to 8 for each processor",
    claim: "Threads make arenas up to 8 times the number of processors; one survivor in each keeps its arena's memory, and \
            MALLOC_ARENA_MAX=2 prevents that.",
    why: "A thread that allocates for the first time gets an arena of its own while there are fewer than the limit. What it \
          frees stays in that arena, where other threads cannot use it. With two arenas, the memory that one thread has \
          freed serves the next one.",
    commands: &[
        "memtrace-lab arenas --threads 64 --in-turn 1",
        "MALLOC_ARENA_MAX=2 memtrace-lab arenas --threads 64 --in-turn 1",
    ],
    checks: &[
        Check {
            figure: "arenas_per_processor",
            says: "arenas for each processor, with threads enough",
            claimed: Some(8.0),
            expect: Expect::Exactly(8.0),
            essential: true,
        },
        Check {
            figure: "kept",
            says: "RSS kept by one survivor in each arena",
            claimed: None,
            expect: Expect::AtLeast(MIB),
            essential: true,
        },
        Check {
            figure: "arenas_limited",
            says: "arenas with MALLOC_ARENA_MAX=2",
            claimed: Some(2.0),
            expect: Expect::AtMost(2.0),
            essential: true,
        },
        Check {
            figure: "kept_ratio",
            says: "RSS kept against that with MALLOC_ARENA_MAX=2",
            claimed: None,
            expect: Expect::AtLeast(2.0),
            essential: true,
        },
    ],
    needs: Needs {
        memory: 256 << 20,
        files: 0,
    },
    root_adds: Some("how each arena grew (mprotect, page by page) and shrank (madvise)"),
    measure,
};

fn measure(bench: &Bench) -> Result<Measured> {
    let processors = Processors::here()?;
    let threads = (8 * processors.online.max(processors.allowed) + 16).min(512);
    let program = |count| bench.program("arenas").arg("--threads", count).arg("--in-turn", 1);
    let default = run::run(&program(threads))?;
    let limited = run::run(&program(threads).env("MALLOC_ARENA_MAX", "2"))?;
    let mut measured = Measured::default();
    match (books(&default), books(&limited)) {
        (Some(default_books), Some(limited)) => {
            let (default, limited) = (default_books.arenas as f64, limited.arenas as f64);
            let (counted, which) = processors.counted(default as u64);
            let per_processor = default / counted as f64;
            measured.count(
                "arenas_per_processor",
                format!("arenas for each processor {which}"),
                per_processor,
                Unit::Count,
            );
            measured.because(
                "arenas_per_processor",
                why_so_many(threads, counted, default as u64, &default_books),
            );
            measured.count("arenas", format!("arenas of {threads} threads"), default, Unit::Count);
            measured.count("arenas_limited", "arenas with MALLOC_ARENA_MAX=2", limited, Unit::Count);
        }
        _ => {
            for key in ["arenas_per_processor", "arenas_limited"] {
                measured.miss(key, default.stop("freed")?.look.without_books());
            }
        }
    }
    let (kept_default, kept_limited) = (kept(&default)?, kept(&limited)?);
    measured.count("kept", "RSS kept by the survivors", kept_default, Unit::Bytes);
    measured.count(
        "kept_limited",
        "the same with MALLOC_ARENA_MAX=2",
        kept_limited,
        Unit::Bytes,
    );
    measured.count(
        "kept_ratio",
        "the first against the second",
        kept_default / kept_limited.max(1.0),
        Unit::Times,
    );
    let trimmed = default.stop("freed")?.look.resident - default.stop("trimmed")?.look.resident;
    measured.note(format!(
        "malloc_trim(0) then gave back {}: it walks every arena",
        Unit::Bytes.show(trimmed)
    ));

    match bench.trace(&program(threads))? {
        Traced::Seen { report, .. } => {
            let growth = &report.growth;
            measured.note(format!(
                "traced: {} thread arenas grew {} times by {} in all, {} of these steps as the rule without top_pad predicts",
                growth.arenas.iter().filter(|arena| !arena.main).count(),
                growth.arena_steps_total,
                Unit::Bytes.show(growth.arena_bytes as f64),
                growth.arena_steps_matching
            ));
        }
        Traced::Not(why) => measured.miss("traced", why),
    }

    let mut points = (Vec::new(), Vec::new());
    for count in [1, threads / 8, threads / 4, threads / 2, threads * 3 / 4, threads]
        .into_iter()
        .filter(|count| *count > 0)
    {
        let run = if count == threads {
            default.clone()
        } else {
            run::run(&program(count))?
        };
        points.0.push((count as f64, kept(&run)?));
        let run = if count == threads {
            limited.clone()
        } else {
            run::run(&program(count).env("MALLOC_ARENA_MAX", "2"))?
        };
        points.1.push((count as f64, kept(&run)?));
    }
    measured.pictures.push(Picture {
        name: "arenas",
        title: "One block of 1 000 bytes left by each thread: what stays resident".to_string(),
        x: Axis::linear("threads, each with 1 MiB for a while, one after the other", Unit::Count),
        y: Axis::linear("resident above the start", Unit::Bytes),
        series: vec![
            Series::new("as many arenas as glibc makes", Shape::Line, points.0),
            Series::new("MALLOC_ARENA_MAX=2", Shape::Line, points.1),
        ],
    });
    Ok(measured)
}

fn books(run: &Run) -> Option<Books> {
    run.stop("freed").ok()?.look.books
}

/// Releases of glibc differ in which they count: those that are online, or those that the process may use.
#[derive(Clone, Copy)]
struct Processors {
    online: u64,
    allowed: u64,
}

impl Processors {
    fn here() -> Result<Self> {
        const ONLINE: &str = "/sys/devices/system/cpu/online";
        let list = fs::read_to_string(ONLINE).with_context(|| format!("reading {ONLINE}"))?;
        let online = count_list(&list).with_context(|| format!("{ONLINE} says {:?}", list.trim()))?;
        // SAFETY: zeros are a valid set, and the call writes no more than its size.
        let allowed = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            match libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) {
                0 => libc::CPU_COUNT(&set) as u64,
                _ => return Err(io::Error::last_os_error()).context("asking which processors may be used"),
            }
        };
        Ok(Self { online, allowed })
    }

    /// The number that explains so many arenas, else the one that the claim means; and which it is.
    fn counted(self, arenas: u64) -> (u64, &'static str) {
        if arenas != 8 * self.online && arenas == 8 * self.allowed {
            (self.allowed, "that the process may use")
        } else {
            (self.online, "that is online")
        }
    }
}

/// "0-3,8" are five.
fn count_list(text: &str) -> Option<u64> {
    text.trim().split(',').try_fold(0u64, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// Which limit fits what was counted.
fn why_so_many(threads: u64, processors: u64, arenas: u64, books: &Books) -> String {
    let seen = format!("{threads} threads on {processors} processors made {arenas} arenas");
    let arena_test = books.arena_test;
    if arenas == books.arena_max {
        format!("{seen}, as arena_max allows ({arenas})")
    } else if arenas == processors.max(arena_test) {
        format!(
            "{seen}, which fits a limit of one for each processor that is looked at only once there are arena_test \
             ({arena_test})"
        )
    } else {
        format!("{seen}, which fits no limit that is known here")
    }
}

fn kept(run: &Run) -> Result<f64> {
    Ok(run.stop("freed")?.look.resident - run.stop("base")?.look.resident)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(count_list("0-3,8\n"), Some(5));
        assert_eq!(count_list("0"), Some(1));
        assert_eq!(count_list(""), None);
        assert_eq!(count_list("3-1"), None);
    }

    #[test]
    fn the_processors_that_fit_the_arenas_are_taken() {
        let pinned = Processors { online: 2, allowed: 1 };
        assert_eq!(pinned.counted(16), (2, "that is online"));
        assert_eq!(pinned.counted(8), (1, "that the process may use"));
        assert_eq!(pinned.counted(3), (2, "that is online"));
    }
}
