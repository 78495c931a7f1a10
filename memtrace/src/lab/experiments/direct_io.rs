//! The page cache against the disk: experiment 15.

use anyhow::Result;

use super::MIB;
use crate::lab::bench::Bench;
use crate::lab::experiment::{Check, Expect, Experiment, Group, Needs};
use crate::lab::figure::Measured;
use crate::lab::picture::{Axis, Picture, Series, Shape};
use crate::lab::room;
use crate::lab::run::{self, Line, Run};
use crate::lab::unit::Unit;
use crate::sentence;

pub const DIRECT_IO: Experiment = Experiment {
    number: 15,
    name: "direct-io",
    group: Group::PageCache,
    title: "reads from the page cache beat the disk many times",
    claim: "Random reads of 4 KiB through the page cache do 15 times the operations of O_DIRECT at a sixteenth of the latency \
            (on NVMe).",
    why: "A read that the page cache serves is a system call and a copy. O_DIRECT goes to the device each time. What a \
          virtual machine calls its disk may be a cache of its host: O_DIRECT passes only this kernel's.",
    commands: &["memtrace-lab random-reads"],
    checks: &[
        Check {
            figure: "operations",
            says: "operations in the same time, cached against O_DIRECT",
            claimed: Some(15.0),
            expect: Expect::AtLeast(5.0),
            essential: true,
        },
        Check {
            figure: "latency",
            says: "latency, O_DIRECT against cached (medians)",
            claimed: Some(16.0),
            expect: Expect::AtLeast(5.0),
            essential: true,
        },
    ],
    needs: Needs { memory: 0, files: 1 },
    root_adds: None,
    measure,
};

fn measure(bench: &Bench) -> Result<Measured> {
    let rounds = bench.settings.rounds.clamp(3, 5);
    let command = bench
        .program("random-reads")
        .arg("--bytes", bench.settings.file_size)
        .arg("--rounds", rounds);
    let run = run::run(&command)?;
    let mut measured = Measured::default();
    let rows = |way: &str| -> Vec<&Line> { run.rows("reads").filter(|row| row.text("way") == Some(way)).collect() };
    let column = |way: &str, key: &str| -> Result<Vec<f64>> { rows(way).iter().map(|row| row.number(key)).collect() };
    measured.time(
        "cached",
        "a read from the page cache",
        &column("cached", "ns")?,
        Unit::Nanoseconds,
    );
    measured.time(
        "cold",
        "a read through an empty page cache",
        &column("cold", "ns")?,
        Unit::Nanoseconds,
    );
    if let Some(refused) = run.rows("refused").next() {
        let why = format!(
            "the file system of {} refuses O_DIRECT ({}): try --dir on another disk",
            bench.settings.directory.display(),
            sentence::of_error(&std::io::Error::from_raw_os_error(refused.number("error")? as i32))
        );
        measured.miss("operations", why.clone());
        measured.miss("latency", why);
        return Ok(measured);
    }
    measured.time(
        "direct",
        "a read by O_DIRECT",
        &column("direct", "ns")?,
        Unit::Nanoseconds,
    );
    let rates = |way: &str| column(way, "ns").map(|ns| ns.iter().map(|ns| 1e9 / ns).collect::<Vec<_>>());
    measured.time(
        "cached_rate",
        "reads from the page cache",
        &rates("cached")?,
        Unit::PerSecond,
    );
    measured.time("direct_rate", "reads by O_DIRECT", &rates("direct")?, Unit::PerSecond);
    let operations = super::pairs::ratios(&column("direct", "ns")?, &column("cached", "ns")?);
    measured.time(
        "operations",
        "operations, cached against O_DIRECT",
        &operations,
        Unit::Times,
    );
    let latency = super::pairs::ratios(&column("direct", "p50")?, &column("cached", "p50")?);
    measured.time(
        "latency",
        "median latency, O_DIRECT against cached",
        &latency,
        Unit::Times,
    );
    if let Some(why) = room::too_small_for(bench.settings.file_size) {
        for key in ["operations", "latency"] {
            measured.because(key, why.clone());
        }
    }
    be_honest(&run, &mut measured)?;
    measured.pictures.push(latencies(&run)?);
    measured.note(format!(
        "one reader at a time, {} of file: more readers at once get more out of a disk, and of the cache",
        Unit::Bytes.show(bench.settings.file_size as f64 / MIB * MIB)
    ));
    Ok(measured)
}

/// Two runs over the same places with an empty cache: what differs is not the disk's doing.
fn be_honest(run: &Run, measured: &mut Measured) -> Result<()> {
    for (way, shown) in [("direct", "O_DIRECT"), ("cold", "reads through an empty cache")] {
        let medians: Vec<f64> = run
            .rows("reads")
            .filter(|row| row.text("way") == Some(way))
            .map(|row| row.number("p50"))
            .collect::<Result<_>>()?;
        let (Some(&first), Some(&last)) = (medians.first(), medians.last()) else {
            continue;
        };
        if first > last * 1.3 || last > first * 1.3 {
            measured.note(format!(
                "{shown}: the first round took {} a read and the last {} at the very same places: something below this \
                 kernel caches, or others use the disk",
                Unit::Nanoseconds.show(first),
                Unit::Nanoseconds.show(last)
            ));
        }
    }
    Ok(())
}

fn latencies(run: &Run) -> Result<Picture> {
    const QUANTILES: [(&str, &str); 4] = [("p10", "10 %"), ("p50", "50 %"), ("p90", "90 %"), ("p99", "99 %")];
    let of = |way: &str| -> Result<Vec<(f64, f64)>> {
        let mut points = Vec::new();
        for (place, (key, _)) in QUANTILES.iter().enumerate() {
            let values: Vec<f64> = run
                .rows("reads")
                .filter(|row| row.text("way") == Some(way))
                .map(|row| row.number(key))
                .collect::<Result<_>>()?;
            points.extend(crate::lab::figure::median(&values).map(|value| (place as f64, value)));
        }
        Ok(points)
    };
    Ok(Picture {
        name: "direct-io",
        title: "Latency of a random read of 4 KiB".to_string(),
        x: Axis::places(
            "this share of the reads takes no longer than shown",
            QUANTILES.map(|(_, name)| name.to_string()).to_vec(),
        ),
        y: Axis::logarithmic("latency", Unit::Nanoseconds),
        series: vec![
            Series::new("page cache", Shape::Line, of("cached")?),
            Series::new("O_DIRECT", Shape::Line, of("direct")?),
            Series::new("empty page cache", Shape::Line, of("cold")?),
        ],
    })
}
