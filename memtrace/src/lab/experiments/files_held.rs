//! Which files of a process are cached, and how much of each: experiment 18.

use crate::page_size::page_size;
use anyhow::{Context, Result};
use memtrace_analysis::files::{HeldFile, Residency};

use crate::inspect::page_cache::of_process;
use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::Measured;
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::run;
use crate::lab::unit::Unit;

pub const FILES: Experiment = Experiment {
    number: 18,
    name: "files",
    group: Group::PageCache,
    title: "the cached share of each file of a process can be told",
    claim: "For each file of a process the kernel tells how much of it is in the page cache, and how much of that is not yet \
            on the disk.",
    why: "cachestat(2) counts a file's cached, dirty and writeback pages; before Linux 6.5 mincore(2) tells which pages of a \
          mapping are there. Dirty pages are no free memory: they have to be written before they can go.",
    commands: &["memtrace-lab files-held --wait", "memtrace explain --pid P --files"],
    checks: &[
        Check {
            figure: "half",
            says: "of a file read to its middle",
            claimed: Some(50.0),
            expect: Expect::Between(49.0, 52.0),
            essential: true,
        },
        Check {
            figure: "mapped",
            says: "pages of a mapped file that were looked at, and no more",
            claimed: Some(1.0),
            // Some file systems read a few neighbours along, in large folios.
            expect: Expect::Between(1.0, 4.0),
            essential: true,
        },
        Check {
            figure: "dirty",
            says: "of a file just written that is not on the disk",
            claimed: Some(100.0),
            expect: Expect::AtLeast(90.0),
            essential: false,
        },
        Check {
            figure: "dirty_synced",
            says: "the same after fsync",
            claimed: Some(0.0),
            expect: Expect::AtMost(0.0),
            essential: false,
        },
    ],
    needs: Needs { memory: 0, files: 0 },
    root_adds: Some("the files of other users' processes"),
    measure,
};

fn measure(bench: &Bench) -> Result<Measured> {
    let mut looks: Vec<Vec<HeldFile>> = Vec::new();
    let run = run::run_with(&bench.program("files-held"), |_, pid| {
        looks.push(of_process(pid)?);
        Ok(())
    })?;
    let mut measured = Measured::default();
    let line = &run.stop("held")?.line;
    let bytes = line.number("bytes")?;
    let find = |look: usize, fact: &str| -> Result<Residency> {
        let number = line.number(fact)? as u32;
        let files = looks.get(look).context("files-held had too few phases")?;
        let held = files.iter().find(|file| file.how.descriptors.contains(&number));
        let held = held.with_context(|| format!("descriptor {number} of files-held was not found"))?;
        held.residency.clone().map_err(anyhow::Error::msg)
    };
    // base, held, synced
    let (half, mapped, dirty, synced) = (
        find(1, "half")?,
        find(1, "mapped")?,
        find(1, "dirty")?,
        find(2, "dirty")?,
    );
    measured.count(
        "half",
        "of the half-read file cached",
        half.share() * 100.0,
        Unit::Percent,
    );
    let looked_at = line.number("touched")? * page_size() as f64;
    measured.count(
        "mapped",
        "cached against looked at, of the mapped file",
        mapped.cached as f64 / looked_at,
        Unit::Times,
    );
    if mapped.cached as f64 > looked_at {
        measured.because("mapped", "the kernel read the neighbours of what was looked at along");
    }
    match (dirty.waiting(), synced.waiting()) {
        (Some(before), Some(after)) => {
            measured.count(
                "dirty",
                "of the new file dirty",
                before as f64 * 100.0 / bytes,
                Unit::Percent,
            );
            let written = dirty.cached.saturating_sub(before);
            if written > 0 {
                let written = Unit::Bytes.show(written as f64);
                measured.because(
                    "dirty",
                    format!("the kernel had already written {written} of it to the disk"),
                );
            }
            measured.count("dirty_synced", "dirty after fsync", after as f64, Unit::Bytes);
        }
        _ => {
            for key in ["dirty", "dirty_synced"] {
                measured.miss(
                    key,
                    "this kernel has no cachestat (Linux 6.5), and mincore knows nothing of dirty pages",
                );
            }
        }
    }
    let machine = run.stop("held")?.look.machine;
    measured.note(format!(
        "the whole machine then: Dirty {}, Writeback {}",
        Unit::Bytes.show(machine.dirty),
        Unit::Bytes.show(machine.writeback)
    ));
    measured.pictures.push(Picture {
        name: "files",
        title: "Three files of one process: what is cached, what is dirty".to_string(),
        x: Axis::places(
            "",
            ["half read", "mapped, 1 page of 64 seen", "written", "after fsync"]
                .map(str::to_string)
                .to_vec(),
        ),
        y: Axis::linear("bytes of a 16 MiB file", Unit::Bytes),
        series: vec![
            Series::new(
                "cached",
                Shape::Bars,
                bars([half, mapped, dirty, synced], |file| file.cached),
            ),
            Series::new(
                "dirty",
                Shape::Bars,
                bars([half, mapped, dirty, synced], |file| file.waiting().unwrap_or(0)),
            ),
        ],
    });
    Ok(measured)
}

fn bars(files: [Residency; 4], value: impl Fn(&Residency) -> u64) -> Vec<(f64, f64)> {
    files
        .iter()
        .enumerate()
        .map(|(place, file)| (place as f64, value(file) as f64))
        .collect()
}
