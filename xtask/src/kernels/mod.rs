//! The product's own kernel tests on other kernels and on arm64, in virtual machines: `cargo xtask test-kernels`.
//!
//! ```text
//! series -> image        Debian's cloud kernel, target/kernels/images
//!        -> test programs, memtrace (static), lab (linked with the oldest glibc)     cross.rs
//!        -> initramfs     busybox, a C library, those programs, an init script
//!        -> QEMU (TCG)    one guest after another
//!        -> transcript -> cell -> table
//! ```
//!
//! Nothing of the system changes: QEMU, compilers, kernels and libraries are unpacked below target/kernels.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use self::cell::Cell;
use self::guest::{Contents, Transcript};
use self::image::Series;
use self::initramfs::Initramfs;
use self::programs::Programs;
use self::qemu::{Boot, Qemu};
use self::table::Matrix;
use self::userland::Userland;
use crate::archive::{self, Archive, Installed};
use crate::cross::Cross;
use crate::ebpf::Arch;
use crate::process::say;
use crate::workspace;

mod cell;
mod compiled;
mod guest;
mod image;
mod initramfs;
mod machine;
mod programs;
mod qemu;
mod small;
mod table;
mod userland;
mod verdict;

pub use programs::Release;
pub use qemu::debian_codename;
pub use small::{Small, test_small_set};

/// The whole matrix, each series with the C library its guests get: all kernels see old and new libraries between them.
const SERIES: [(&str, &str); 5] = [
    ("5.10", "bullseye"),
    ("6.1", "bookworm"),
    ("6.12", "trixie"),
    ("6.18", "sid"),
    ("newest", "experimental"),
];
/// A guest takes a minute at most on an idle machine; a busy one is given its time.
const LIMIT: Duration = Duration::from_secs(900);

#[derive(Args)]
pub struct Options {
    /// Only guests of this architecture
    #[arg(long, value_enum)]
    arch: Option<Arch>,
    /// The small set that `cargo xtask test --kernels` runs
    #[arg(long, conflicts_with_all = ["arch", "series"])]
    small: bool,
    /// Only tests whose names contain this
    #[arg(long)]
    filter: Option<String>,
    /// Give every guest the C library of this Debian release
    #[arg(long, value_parser = userland::SUITES)]
    libc: Option<String>,
    /// Test what `cargo xtask dist` hands out, not a faster build of the same source
    #[arg(long)]
    dist: bool,
    /// Put the table into the README (the whole matrix only)
    #[arg(long, conflicts_with_all = ["arch", "series", "small", "filter", "libc"])]
    write_readme: bool,
    /// Kernel series such as 5.10, or `newest`; all by default
    series: Vec<Series>,
}

/// A cell to be run.
struct Plan {
    series: Series,
    arch: Arch,
    suite: String,
}

/// `cargo xtask test-kernels`
pub fn test_kernels(options: &Options) -> Result<()> {
    let plans = plan(options);
    let profile = if options.dist {
        programs::RELEASE
    } else {
        programs::GUEST
    };
    let only = options.small.then_some(small::PROGRAM);
    let qemu = Qemu::find_or_fetch(&architectures(&plans))?;
    let filters: Vec<&str> = match &options.filter {
        Some(filter) => vec![filter],
        None if options.small => small::FILTERS.to_vec(),
        None => Vec::new(),
    };
    let matrix = run(&plans, &qemu, profile, &filters, only)?;
    print!("{}", matrix.text());
    if options.write_readme {
        matrix.write_readme()?;
    }
    if !matrix.is_good() {
        bail!(
            "not every kernel passed; what the guests printed is in {}",
            logs().display()
        );
    }
    Ok(())
}

fn plan(options: &Options) -> Vec<Plan> {
    if options.small {
        return small::plan();
    }
    let mut plans = Vec::new();
    for arch in Arch::ALL
        .into_iter()
        .filter(|arch| options.arch.is_none_or(|only| only == *arch))
    {
        let all = || SERIES.iter().filter_map(|(series, _)| series.parse().ok()).collect();
        let series: Vec<Series> = if options.series.is_empty() {
            all()
        } else {
            options.series.clone()
        };
        for series in series {
            let suite = options.libc.clone().unwrap_or_else(|| suite_of(&series).to_owned());
            plans.push(Plan { series, arch, suite });
        }
    }
    plans
}

/// The C library of a series' guests; of the next older series of the table for one that is not in it.
fn suite_of(series: &Series) -> &'static str {
    let Series::Numbered(major, minor) = series else {
        return SERIES[SERIES.len() - 1].1;
    };
    let not_newer =
        |(name, _): &&(&str, &str)| matches!(name.parse(), Ok(Series::Numbered(a, b)) if (a, b) <= (*major, *minor));
    SERIES.iter().rev().find(not_newer).unwrap_or(&SERIES[0]).1
}

fn architectures(plans: &[Plan]) -> Vec<Arch> {
    let mut architectures: Vec<Arch> = plans.iter().map(|plan| plan.arch).collect();
    architectures.dedup();
    architectures
}

/// `only`: the one test program to run; all of them without.
fn run(plans: &[Plan], qemu: &Qemu, profile: &str, filters: &[&str], only: Option<&str>) -> Result<Matrix> {
    let mut prepared = BTreeMap::new();
    for arch in architectures(plans) {
        prepared.insert(arch.debian(), Machine::prepare(arch, profile, only)?);
    }
    let mut cells = Vec::new();
    for plan in plans {
        let cell = match &prepared[plan.arch.debian()] {
            Ok(machine) => machine.run(plan, qemu, filters)?,
            Err(why) => Cell::not_run(&plan.series.to_string(), plan.arch.debian(), why.clone()),
        };
        say(&summary(&cell));
        cells.push(cell);
    }
    let matrix = Matrix::of_today(cells)?;
    matrix.save()?;
    Ok(matrix)
}

fn summary(cell: &Cell) -> String {
    match &cell.not_run {
        Some(why) => format!("{} {}: not run: {why}", cell.series, cell.architecture),
        None => format!(
            "{} {}: {} passed, {} skipped, {} failed, {:.0} s",
            cell.kernel,
            cell.architecture,
            cell.passed,
            cell.skipped.len(),
            cell.failed.len(),
            cell.seconds
        ),
    }
}

/// What all guests of one architecture share.
struct Machine {
    apt: Archive,
    busybox: PathBuf,
    /// Its unshare, which knows more than busybox's.
    util_linux: PathBuf,
    /// Every release of the C library that can be had, for the tests that run under each.
    releases: Vec<(&'static str, Userland)>,
    programs: Programs,
}

impl Machine {
    /// What cannot be had is a reason not to run; what does not build is an error.
    fn prepare(arch: Arch, profile: &str, only: Option<&str>) -> Result<Result<Self, String>> {
        match Self::fetch(arch) {
            Ok((apt, busybox, util_linux, tools)) => Ok(Ok(Self {
                programs: Programs::build(&tools, &apt, profile, only)?,
                releases: releases(arch, &apt),
                apt,
                busybox,
                util_linux,
            })),
            Err(error) => Ok(Err(format!("{error:#}"))),
        }
    }

    fn fetch(arch: Arch) -> Result<(Archive, PathBuf, PathBuf, Cross)> {
        let apt = archive_of(arch)?;
        let busybox = program(arch, &apt, "busybox-static/bookworm", "busybox")?;
        let unshare = program(arch, &apt, "util-linux/bullseye", "unshare")?;
        Ok((apt, busybox, unshare, Cross::find_or_fetch(arch)?))
    }

    fn run(&self, plan: &Plan, qemu: &Qemu, filters: &[&str]) -> Result<Cell> {
        let Plan { series, arch, suite } = plan;
        let had = image::find_or_fetch(series, *arch, &self.apt)
            .and_then(|image| Ok((image, Userland::find_or_fetch(suite, *arch, &self.apt)?)));
        let (image, userland) = match had {
            Ok(both) => both,
            Err(error) => return Ok(Cell::not_run(&series.to_string(), arch.debian(), format!("{error:#}"))),
        };
        let mut tree = Initramfs::default();
        userland.install(&mut tree)?;
        for (suite, release) in &self.releases {
            release.install_release(&mut tree, suite)?;
        }
        guest::populate(&mut tree, &self.contents(filters))?;
        let name = format!("{series}-{}", arch.debian());
        let (initrd, log) = (logs().join(format!("{name}.cpio")), logs().join(format!("{name}.log")));
        fs::create_dir_all(logs()).with_context(|| format!("making {}", logs().display()))?;
        fs::write(&initrd, tree.archive()).with_context(|| format!("writing {}", initrd.display()))?;

        say(&format!("booting {} with glibc {}", image.release, userland.version));
        let begin = Instant::now();
        let end = qemu.run(&Boot {
            arch: *arch,
            kernel: &image.path,
            initrd: &initrd,
            log: &log,
            limit: LIMIT,
        })?;
        let printed = fs::read(&log).with_context(|| format!("reading {}", log.display()))?;
        let mut cell = Cell::not_run(&series.to_string(), arch.debian(), String::new());
        cell.not_run = None;
        cell.kernel = image.release;
        cell.libc = userland.version;
        cell.seconds = begin.elapsed().as_secs_f64();
        cell.judge(end, Transcript::read(&String::from_utf8_lossy(&printed)));
        // As large as all programs together, and made again for each run; the log stays.
        fs::remove_file(&initrd).with_context(|| format!("removing {}", initrd.display()))?;
        Ok(cell)
    }

    fn contents<'a>(&'a self, filters: &'a [&'a str]) -> Contents<'a> {
        Contents {
            busybox: &self.busybox,
            unshare: &self.util_linux,
            tests: &self.programs.tests,
            compiled: &self.programs.compiled,
            in_place: &self.programs.in_place,
            memtrace: &self.programs.memtrace,
            lab: &self.programs.lab,
            environment: &self.programs.environment,
            filters,
        }
    }
}

/// A program of a package, unpacked.
fn program(arch: Arch, apt: &Archive, package: &str, name: &str) -> Result<PathBuf> {
    let directory = workspace::target()
        .join("kernels/programs")
        .join(format!("{name}-{}", arch.debian()));
    archive::once(&directory, |partial| archive::unpack(&apt.download(package)?, partial))?;
    let places = ["bin", "usr/bin"].map(|place| directory.join(place).join(name));
    let found = places.into_iter().find(|file| file.is_file());
    found.with_context(|| format!("{package} has no {name}"))
}

/// A release that cannot be had is left out, aloud: the tests run under those at hand.
fn releases(arch: Arch, apt: &Archive) -> Vec<(&'static str, Userland)> {
    let mut found = Vec::new();
    for suite in userland::SUITES {
        match Userland::find_or_fetch(suite, arch, apt) {
            Ok(userland) => found.push((suite, userland)),
            Err(error) => say(&format!("the guests go without the C library of {suite}: {error:#}")),
        }
    }
    found
}

/// Debian's packages of every suite for an architecture.
fn archive_of(arch: Arch) -> Result<Archive> {
    Archive::open(arch.debian(), &image::SUITES, arch.debian(), Installed::Nothing)
}

fn logs() -> PathBuf {
    workspace::target().join("kernels/logs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_of_the_tables_is_one() {
        let default = plan(&Options {
            arch: None,
            small: false,
            filter: None,
            libc: None,
            dist: false,
            write_readme: false,
            series: Vec::new(),
        });
        assert_eq!(default.len(), SERIES.len() * Arch::ALL.len());
    }

    #[test]
    fn a_series_between_two_gets_the_older_ones_library() {
        assert_eq!(suite_of(&Series::Numbered(6, 16)), "trixie");
        assert_eq!(suite_of(&Series::Numbered(5, 4)), "bullseye");
        assert_eq!(suite_of(&Series::Newest), "experimental");
    }
}
