//! What reading a file does to the machine's memory, and how one file leaves the cache: experiments 16 and 17.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use memtrace_analysis::files::Residency;

use crate::inspect::page_cache::of_file;
use crate::lab::bench::Bench;
use crate::lab::disk::{self, Limits};
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::Measured;
use crate::lab::interrupt;
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::room;
use crate::lab::run::{self, MachineMemory, Run, Stop};
use crate::lab::unit::Unit;

pub const PAGE_CACHE: Experiment = Experiment {
    number: 16,
    name: "page-cache",
    group: Group::PageCache,
    title: "reading a file fills buff/cache, MemAvailable stays",
    claim: "Reading a 512 MB file makes buff/cache grow by that much, while MemAvailable hardly moves.",
    why: "Pages read from a file stay in the page cache as long as nobody needs them for something else; MemAvailable counts \
          them as available, MemFree does not. A machine whose free memory is near zero for this reason is healthy.",
    commands: &["memtrace-lab file-cache", "free -m"],
    checks: &[
        Check {
            figure: "cache_growth",
            says: "buff/cache grows by the file's size",
            claimed: Some(100.0),
            expect: Expect::Between(85.0, 115.0),
            essential: true,
        },
        Check {
            figure: "available_change",
            says: "MemAvailable hardly moves",
            claimed: Some(0.0),
            expect: Expect::Between(-10.0, 10.0),
            essential: true,
        },
        Check {
            figure: "resident_share",
            says: "of the file in the page cache afterwards",
            claimed: Some(100.0),
            expect: Expect::AtLeast(99.0),
            essential: true,
        },
    ],
    needs: Needs { memory: 0, files: 1 },
    root_adds: None,
    measure: measure_cache,
};

pub const FADVISE: Experiment = Experiment {
    number: 17,
    name: "fadvise",
    group: Group::PageCache,
    title: "POSIX_FADV_DONTNEED drops one file and no other",
    claim: "drop_caches is too coarse: POSIX_FADV_DONTNEED takes one file out of the page cache and WILLNEED brings it back, \
            its neighbours untouched.",
    why: "The advice is about one open file. Only clean pages can go, so the file is to be written to the disk before. \
          WILLNEED starts reading and does not wait, and one call reads no more than the device's largest request or \
          read-ahead. drop_caches empties the cache of the whole machine, and every other \
          process pays for it; here it is written to with --allow-drop-caches only.",
    commands: &["memtrace-lab file-cache"],
    checks: &[
        Check {
            figure: "before",
            says: "of the file cached before",
            claimed: None,
            expect: Expect::AtLeast(99.0),
            essential: true,
        },
        Check {
            figure: "after_dontneed",
            says: "of the file cached after DONTNEED",
            claimed: Some(0.0),
            expect: Expect::AtMost(1.0),
            essential: true,
        },
        Check {
            figure: "neighbour",
            says: "of its neighbour cached after that",
            claimed: Some(100.0),
            expect: Expect::AtLeast(99.0),
            essential: true,
        },
        Check {
            figure: "after_willneed",
            says: "of the file cached after WILLNEED",
            claimed: Some(100.0),
            expect: Expect::AtLeast(95.0),
            essential: true,
        },
        Check {
            figure: "after_pieces",
            says: "of the file cached after WILLNEED piece by piece",
            claimed: None,
            expect: Expect::Shown,
            essential: false,
        },
    ],
    needs: Needs { memory: 0, files: 1 },
    root_adds: Some("drop_caches itself, with --allow-drop-caches"),
    measure: measure_fadvise,
};

/// A run of file-cache with what was cached of its two files at each phase.
pub struct FileCacheRun {
    run: Run,
    residency: Vec<(String, Residency, Residency)>,
    dropped: Option<Dropped>,
}

/// What drop_caches did to a neighbour.
struct Dropped {
    neighbour: Residency,
    cache_before: f64,
    cache_after: f64,
}

impl FileCacheRun {
    pub fn make(bench: &Bench) -> Result<Self> {
        let mut residency = Vec::new();
        let mut dropped = None;
        let command = bench.program("file-cache").arg("--bytes", bench.settings.file_size);
        let run = run::run_with(&command, |stop, pid| {
            if stop.line.text("first").is_none() {
                return Ok(());
            }
            let (first, second) = (open(stop, pid, "first")?, open(stop, pid, "second")?);
            let name = stop.line.name.clone();
            if name == "willneed" || name == "pieces" {
                wait_for_readahead(&first)?;
            }
            residency.push((name.clone(), of_file(&first)?, of_file(&second)?));
            if name == "pieces" && bench.settings.allow_drop_caches {
                dropped = Some(drop_caches(&second)?);
            }
            Ok(())
        })?;
        Ok(Self {
            run,
            residency,
            dropped,
        })
    }

    /// The last look at a phase of this name.
    fn at(&self, phase: &str) -> Result<(Residency, Residency)> {
        let found = self.residency.iter().rev().find(|(name, _, _)| name == phase);
        found
            .map(|(_, first, second)| (*first, *second))
            .with_context(|| format!("file-cache had no phase {phase}"))
    }
}

fn measure_cache(bench: &Bench) -> Result<Measured> {
    let seen = bench.file_cache()?;
    let mut measured = Measured::default();
    let total = {
        let line = &seen.run.stop("read")?.line;
        line.number("bytes")? + line.number("neighbour")?
    };
    let (mut growth, mut available, mut free) = (Vec::new(), Vec::new(), Vec::new());
    let (mut cache_drift, mut available_drift) = (0.0_f64, 0.0_f64);
    let phase = |name| seen.run.stops(name);
    for ((dropped, idle), read) in phase("dropped").zip(phase("idle")).zip(phase("read")) {
        // What the rest of the machine did in a time of the same kind is taken off.
        let drift = (idle.look.at - dropped.look.at).max(1e-3);
        let scale = (read.look.at - idle.look.at) / drift;
        let moved = |value: fn(&MachineMemory) -> f64| {
            let at = |stop: &Stop| value(&stop.look.machine);
            (at(idle) - at(dropped)) * scale * 100.0 / total
        };
        let share = |value: fn(&MachineMemory) -> f64| {
            let at = |stop: &Stop| value(&stop.look.machine);
            (at(read) - at(idle)) * 100.0 / total - moved(value)
        };
        cache_drift = cache_drift.max(moved(MachineMemory::buff_cache).abs());
        available_drift = available_drift.max(moved(|memory| memory.available).abs());
        growth.push(share(MachineMemory::buff_cache));
        available.push(share(|memory| memory.available));
        free.push(share(|memory| memory.free));
    }
    measured.time(
        "cache_growth",
        "buff/cache grew by, of the bytes read",
        &growth,
        Unit::Percent,
    );
    measured.time(
        "available_change",
        "MemAvailable changed by, of the bytes read",
        &available,
        Unit::Percent,
    );
    measured.time(
        "free_change",
        "MemFree changed by, of the bytes read",
        &free,
        Unit::Percent,
    );
    measured.count(
        "resident_share",
        "of the file cached",
        seen.at("read")?.0.share() * 100.0,
        Unit::Percent,
    );
    if let Some(why) = room::too_small_for(total as u64) {
        for key in ["cache_growth", "resident_share"] {
            measured.because(key, why.clone());
        }
    }
    measured.disturbed("cache_growth", cache_drift);
    measured.disturbed("available_change", available_drift);
    let values: [fn(&MachineMemory) -> f64; 3] = [
        MachineMemory::buff_cache,
        |memory| memory.free,
        |memory| memory.available,
    ];
    let change = |from: &str, to: &str| -> Result<Vec<(f64, f64)>> {
        let (from, to) = (seen.run.stop(from)?.look.machine, seen.run.stop(to)?.look.machine);
        Ok(values
            .iter()
            .enumerate()
            .map(|(place, value)| (place as f64, value(&to) - value(&from)))
            .collect())
    };
    measured.pictures.push(Picture {
        name: "page-cache",
        title: format!(
            "Reading {} of files: what changes in the machine's memory",
            Unit::Bytes.show(total)
        ),
        x: Axis::places(
            "",
            ["buff/cache", "MemFree", "MemAvailable"].map(str::to_string).to_vec(),
        ),
        y: Axis::linear("change", Unit::Bytes),
        series: vec![
            Series::new("while idle", Shape::Bars, change("dropped", "idle")?),
            Series::new("while reading", Shape::Bars, change("idle", "read")?),
        ],
    });
    Ok(measured)
}

fn measure_fadvise(bench: &Bench) -> Result<Measured> {
    let seen = bench.file_cache()?;
    let mut measured = Measured::default();
    let percent = |residency: Residency| residency.share() * 100.0;
    let (before, after, again) = (seen.at("read")?, seen.at("dontneed")?, seen.at("willneed")?);
    measured.count("before", "the file cached before", percent(before.0), Unit::Percent);
    measured.count(
        "after_dontneed",
        "the file cached after DONTNEED",
        percent(after.0),
        Unit::Percent,
    );
    measured.count(
        "neighbour",
        "its neighbour cached after that",
        percent(after.1),
        Unit::Percent,
    );
    measured.count(
        "after_willneed",
        "the file cached after WILLNEED",
        percent(again.0),
        Unit::Percent,
    );
    measured.count(
        "after_pieces",
        "the file cached after WILLNEED for each MiB",
        percent(seen.at("pieces")?.0),
        Unit::Percent,
    );
    let line = &seen.run.stop("read")?.line;
    let total = line.number("bytes")? + line.number("neighbour")?;
    if let Some(why) = room::too_small_for(total as u64) {
        for key in ["before", "neighbour"] {
            measured.because(key, why.clone());
        }
    }
    let pieces = seen.at("pieces")?.0;
    if pieces.cached > again.0.cached {
        measured.because(
            "after_willneed",
            one_call(again.0.cached, pieces.cached, disk::limits(&bench.settings.directory)),
        );
    }
    let taken_back =
        seen.run.stop("willneed")?.look.machine.taken_back - seen.run.stop("read")?.look.machine.taken_back;
    if taken_back > 0.0 {
        for key in ["neighbour", "after_willneed"] {
            measured.because(
                key,
                format!(
                    "memory was short: the kernel took {} of this machine's page cache back meanwhile",
                    Unit::Bytes.show(taken_back)
                ),
            );
        }
    }
    match &seen.dropped {
        Some(dropped) => measured.note(format!(
            "drop_caches took the neighbour down to {} as well, and buff/cache of the whole machine from {} to {}",
            Unit::Percent.show(percent(dropped.neighbour)),
            Unit::Bytes.show(dropped.cache_before),
            Unit::Bytes.show(dropped.cache_after)
        )),
        None => measured
            .note("drop_caches was not tried: it would empty the cache of the whole machine (--allow-drop-caches)"),
    }
    let places = ["read", "dontneed", "willneed", "pieces"];
    let bars = |pick: fn(&(Residency, Residency)) -> Residency| -> Result<Vec<(f64, f64)>> {
        let at = |(place, name): (usize, &&str)| Ok((place as f64, percent(pick(&seen.at(name)?))));
        places.iter().enumerate().map(at).collect()
    };
    measured.pictures.push(Picture {
        name: "fadvise",
        title: "Advice about one file: what of each is in the page cache".to_string(),
        x: Axis::places(
            "",
            ["both read", "DONTNEED for the first", "WILLNEED", "WILLNEED, each MiB"]
                .map(str::to_string)
                .to_vec(),
        ),
        y: Axis::linear("cached", Unit::Percent),
        series: vec![
            Series::new("the file", Shape::Bars, bars(|pair| pair.0)?),
            Series::new("its neighbour", Shape::Bars, bars(|pair| pair.1)?),
        ],
    });
    Ok(measured)
}

/// Why one call of the advice brought less than many: whether it is the disk's limits is looked up.
fn one_call(brought: u64, by_pieces: u64, limits: Option<Limits>) -> String {
    let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
    let limit = match limits {
        Some(Limits {
            read_ahead,
            largest_request,
        }) => {
            let both = format!(
                "this disk's read-ahead is {} and its largest request {}",
                show(read_ahead),
                show(largest_request)
            );
            if brought == read_ahead.max(largest_request) {
                format!("{both}, and one call reads no more than the larger of them")
            } else {
                both
            }
        }
        None => "the limits of the disk behind this directory cannot be told".to_string(),
    };
    format!(
        "one call brought {} and the rest of the advice was forgotten: {limit}; asked for in pieces of 1 MiB {} came",
        show(brought),
        show(by_pieces)
    )
}

/// A file that the program holds, whose name is gone.
pub fn open(stop: &Stop, pid: u32, fact: &str) -> Result<File> {
    let path = format!("/proc/{pid}/fd/{}", stop.line.number(fact)?);
    File::open(&path).with_context(|| format!("opening {path}"))
}

/// WILLNEED does not wait: the pages come in their own time.
fn wait_for_readahead(file: &File) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut last = of_file(file)?.cached;
    let mut still = 0;
    while Instant::now() < deadline && still < 10 {
        interrupt::check()?;
        std::thread::park_timeout(Duration::from_millis(50));
        let now = of_file(file)?;
        if now.share() >= 1.0 {
            break;
        }
        still = if now.cached == last { still + 1 } else { 0 };
        last = now.cached;
    }
    Ok(())
}

fn drop_caches(neighbour: &File) -> Result<Dropped> {
    const KNOB: &str = "/proc/sys/vm/drop_caches";
    if of_file(neighbour)?.share() < 0.99 {
        bail!("the neighbour is not cached, so that dropping it would show nothing");
    }
    let cache_before = MachineMemory::now()?.buff_cache();
    fs::write(KNOB, "1").with_context(|| format!("writing to {KNOB} (this needs root)"))?;
    Ok(Dropped {
        neighbour: of_file(neighbour)?,
        cache_before,
        cache_after: MachineMemory::now()?.buff_cache(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_named_as_the_reason_only_where_its_limit_was_met() {
        let disk = Some(Limits {
            read_ahead: 8 << 20,
            largest_request: 4 << 20,
        });
        let met = one_call(8 << 20, 512 << 20, disk);
        assert!(met.contains("reads no more than the larger of them"), "{met}");
        let other = one_call(1 << 20, 512 << 20, disk);
        assert!(
            other.contains("8 MiB and its largest request 4 MiB;") && !other.contains("no more"),
            "{other}"
        );
        assert!(one_call(1 << 20, 2 << 20, None).contains("cannot be told"));
    }
}
