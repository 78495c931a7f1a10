//! The product's own kernel tests on other kernels and on arm64, in virtual machines: `cargo xtask test-kernels`.
//!
//! ```text
//! series -> image        Debian's cloud kernel, target/kernels/images
//!        -> test programs, memtrace (static), lab (linked with the oldest glibc)     cross.rs
//!        -> initramfs     busybox, a C library, those programs, an init script
//!        -> QEMU (TCG)    as many guests at a time as there are processors
//!        -> transcript -> cell -> table
//! ```
//!
//! Nothing of the system changes: QEMU, compilers, kernels and libraries are unpacked below target/kernels.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;

use self::cell::Cell;
use self::guest::{Contents, Transcript};
use self::image::{Image, Series, Version};
use self::initramfs::Initramfs;
use self::programs::Programs;
use self::qemu::{Boot, Qemu};
use self::table::Matrix;
use self::userland::Userland;
use crate::archive::{self, Archive, Installed, NotThere};
use crate::cross::Cross;
use crate::ebpf::Arch;
use crate::process::say;
use crate::workspace;

mod cell;
mod compiled;
mod guest;
mod image;
mod initramfs;
mod kept;
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
const SERIES: [(&str, &str); 6] = [
    ("5.10", "bullseye"),
    ("6.1", "bookworm"),
    ("6.12", "trixie"),
    ("6.18", "sid"),
    ("newest", "experimental"),
    ("newest-16k", "experimental"),
];
/// A guest takes five to ten minutes on an idle machine; a busy one is given its time.
const LIMIT: Duration = Duration::from_secs(1800);

#[derive(Args)]
pub struct Options {
    /// Only guests of this architecture
    #[arg(long, value_enum)]
    arch: Option<Arch>,
    /// The small set that `cargo xtask test` runs
    #[arg(long, conflicts_with_all = ["arch", "series"])]
    small: bool,
    /// Only tests whose names contain this
    #[arg(long)]
    filter: Option<String>,
    /// Give every guest the C library of this Debian release
    #[arg(long, value_parser = userland::SUITES)]
    libc: Option<String>,
    /// Test the very files that `cargo xtask dist` hands out, not a quicker build of the same source
    #[arg(long)]
    dist: bool,
    /// Take over what earlier runs found good of the same kernels with the same files in the guest
    #[arg(long)]
    resume: bool,
    /// Guests at a time; as many as there are processors by default, four at most
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
    /// Put the table into the README (the whole matrix only, and only if it is good)
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
    if plans.is_empty() {
        bail!("only arm64 has kernels with pages of 16 KiB");
    }
    let only = options.small.then_some(small::PROGRAM);
    let qemu = Qemu::find_or_fetch(&architectures(&plans))?;
    let filters: Vec<&str> = match &options.filter {
        Some(filter) => vec![filter],
        None if options.small => small::FILTERS.to_vec(),
        None => Vec::new(),
    };
    let how = How {
        qemu: &qemu,
        filters: &filters,
        resume: options.resume,
        skips_whatever_is_missing: false,
        jobs: options.jobs.unwrap_or_else(jobs),
    };
    let matrix = run(&plans, &how, options.dist, only)?;
    print!("{}", matrix.text());
    let is_narrowed = options.small || options.filter.is_some() || options.arch.is_some() || options.libc.is_some();
    let is_whole = !is_narrowed && options.series.is_empty();
    if is_whole {
        matrix.save()?;
    }
    for arch in architectures(&plans) {
        if !matrix.ran(arch) {
            bail!(
                "no kernel could be had for {}, so nothing was tested there",
                arch.debian()
            );
        }
    }
    if let Some(cell) = matrix.cells.iter().find(|cell| cell.not_run.is_some())
        && !options.series.is_empty()
    {
        bail!("a kernel that was asked for could not be had: {}", summary(cell));
    }
    if options.write_readme && matrix.is_good() {
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
        let all = || {
            let all = SERIES.iter().filter_map(|(series, _)| series.parse().ok());
            all.collect()
        };
        let series: Vec<Series> = if options.series.is_empty() {
            all()
        } else {
            options.series.clone()
        };
        let has = |series: &Series| !series.large_pages || arch == Arch::Aarch64;
        for series in series.into_iter().filter(has) {
            let suite = options.libc.clone().unwrap_or_else(|| suite_of(series).to_owned());
            plans.push(Plan { series, arch, suite });
        }
    }
    plans
}

/// The C library of a series' guests; of the next older series of the table for one that is not in it.
fn suite_of(series: Series) -> &'static str {
    let Version::Numbered(major, minor) = series.version else {
        return SERIES[SERIES.len() - 1].1;
    };
    let not_newer = |(name, _): &&(&str, &str)| {
        name.parse()
            .is_ok_and(|series: Series| matches!(series.version, Version::Numbered(a, b) if (a, b) <= (major, minor)))
    };
    SERIES.iter().rev().find(not_newer).unwrap_or(&SERIES[0]).1
}

fn architectures(plans: &[Plan]) -> Vec<Arch> {
    let mut architectures: Vec<Arch> = plans.iter().map(|plan| plan.arch).collect();
    architectures.dedup();
    architectures
}

/// How guests are run.
struct How<'a> {
    qemu: &'a Qemu,
    filters: &'a [&'a str],
    /// Take over good cells of the same inputs.
    resume: bool,
    /// Also where it is not the archive that no longer has it: a compiler, a keyring, a network.
    skips_whatever_is_missing: bool,
    jobs: NonZeroUsize,
}

impl How<'_> {
    /// A reason to skip in place of an error that is one: the archive no longer has what is wanted.
    fn or_skip<T>(&self, result: Result<T>) -> Result<Result<T, String>> {
        match result {
            Ok(had) => Ok(Ok(had)),
            Err(error) if self.skips_whatever_is_missing || error.is::<NotThere>() => Ok(Err(format!("{error:#}"))),
            Err(error) => Err(error),
        }
    }
}

/// A guest has two processors, but its tests run one after the other: one here for each is enough. It has a GiB of memory.
fn jobs() -> NonZeroUsize {
    const MOST: NonZeroUsize = NonZeroUsize::new(4).expect("it is not zero");
    thread::available_parallelism().map_or(NonZeroUsize::MIN, |processors| processors.min(MOST))
}

/// `only`: the one test program to run; all of them without.
fn run(plans: &[Plan], how: &How, dist: bool, only: Option<&str>) -> Result<Matrix> {
    let mut prepared = BTreeMap::new();
    for arch in architectures(plans) {
        prepared.insert(arch.debian(), Machine::prepare(arch, dist, only, how)?);
    }
    // One after the other: downloads of one architecture share a directory.
    let mut guests = Vec::new();
    for plan in plans {
        let ready = match &prepared[plan.arch.debian()] {
            Ok(machine) => how.or_skip(machine.fetch_guest(plan))?.map(|guest| (machine, guest)),
            Err(why) => Err(why.clone()),
        };
        guests.push((plan, ready));
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some((plan, ready)) = guests.get(number) else {
                return done;
            };
            let not_run = |why| Cell::not_run(&plan.series.to_string(), plan.arch.debian(), why);
            let cell = match ready {
                // What one guest comes to is nothing to the others.
                Ok((machine, guest)) => machine.run(plan, guest, how).unwrap_or_else(|error| Cell {
                    not_run: None,
                    failed: vec![format!("the guest could not be run: {error:#}")],
                    ..not_run(String::new())
                }),
                Err(why) => not_run(why.clone()),
            };
            say(&summary(&cell));
            done.push((number, cell));
        }
    };
    let mut cells = Vec::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..how.jobs.get()).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            cells.extend(
                worker
                    .join()
                    .map_err(|_| anyhow!("a thread that runs guests panicked"))?,
            );
        }
        anyhow::Ok(())
    })?;
    cells.sort_by_key(|(number, _)| *number);
    let cells = cells.into_iter().map(|(_, cell)| cell).collect();
    Ok(Matrix { dist, cells })
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

/// What one guest has of its own.
struct Guest {
    image: Image,
    userland: Userland,
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
    fn prepare(arch: Arch, dist: bool, only: Option<&str>, how: &How) -> Result<Result<Self, String>> {
        match how.or_skip(Self::fetch(arch))? {
            Ok((apt, busybox, util_linux, tools, oldest)) => Ok(Ok(Self {
                programs: Programs::build(&tools, &oldest, dist, only)?,
                releases: releases(arch, &apt, how)?,
                apt,
                busybox,
                util_linux,
            })),
            Err(why) => Ok(Err(why)),
        }
    }

    fn fetch(arch: Arch) -> Result<(Archive, PathBuf, PathBuf, Cross, Userland)> {
        let apt = archive_of(arch)?;
        let busybox = program(arch, &apt, "busybox-static/bookworm", "busybox")?;
        let unshare = program(arch, &apt, "util-linux/bullseye", "unshare")?;
        let oldest = Userland::find_or_fetch(userland::SUITES[0], arch, &apt)?;
        Ok((apt, busybox, unshare, Cross::find_or_fetch(arch)?, oldest))
    }

    fn fetch_guest(&self, plan: &Plan) -> Result<Guest> {
        Ok(Guest {
            image: image::find_or_fetch(plan.series, plan.arch, &self.apt)?,
            userland: Userland::find_or_fetch(&plan.suite, plan.arch, &self.apt)?,
        })
    }

    fn run(&self, plan: &Plan, guest: &Guest, how: &How) -> Result<Cell> {
        let Plan { series, arch, .. } = plan;
        let Guest { image, userland } = guest;
        let mut tree = Initramfs::default();
        userland.install(&mut tree)?;
        for (suite, release) in &self.releases {
            release.install_release(&mut tree, suite)?;
        }
        let mut environment = self.programs.environment.clone();
        environment.extend(userland.tunables());
        guest::populate(&mut tree, &self.contents(how.filters, &environment))?;
        let name = format!("{series}-{}", arch.debian());
        let (initrd, log) = (logs().join(format!("{name}.cpio")), logs().join(format!("{name}.log")));
        fs::create_dir_all(logs()).with_context(|| format!("making {}", logs().display()))?;
        fs::write(&initrd, tree.archive()).with_context(|| format!("writing {}", initrd.display()))?;

        let inputs = kept::digest([&image.path, &initrd])?;
        if let Some(cell) = kept::find(&logs(), &name, &inputs).filter(|_| how.resume) {
            fs::remove_file(&initrd).with_context(|| format!("removing {}", initrd.display()))?;
            return Ok(cell);
        }
        say(&format!("booting {} with glibc {}", image.release, userland.version));
        let begin = Instant::now();
        let end = how.qemu.run(&Boot {
            arch: *arch,
            new_processor: series.large_pages,
            kernel: &image.path,
            initrd: &initrd,
            log: &log,
            limit: LIMIT,
        })?;
        let printed = fs::read(&log).with_context(|| format!("reading {}", log.display()))?;
        let mut cell = Cell::not_run(&series.to_string(), arch.debian(), String::new());
        cell.not_run = None;
        cell.date = kept::today()?;
        cell.inputs = inputs;
        cell.kernel = image.release.clone();
        cell.libc = userland.version.clone();
        cell.seconds = begin.elapsed().as_secs_f64();
        cell.judge(end, Transcript::read(&String::from_utf8_lossy(&printed)));
        // A few tests of a guest do not take the place of what --resume takes over.
        if how.filters.is_empty() {
            kept::keep(&logs(), &name, &cell)?;
        }
        // As large as all programs together, and made again for each run; the log stays.
        fs::remove_file(&initrd).with_context(|| format!("removing {}", initrd.display()))?;
        Ok(cell)
    }

    fn contents<'a>(&'a self, filters: &'a [&'a str], environment: &'a [(String, String)]) -> Contents<'a> {
        Contents {
            busybox: &self.busybox,
            unshare: &self.util_linux,
            tests: &self.programs.tests,
            compiled: &self.programs.compiled,
            in_place: &self.programs.in_place,
            memtrace: &self.programs.memtrace,
            lab: &self.programs.lab,
            environment,
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
fn releases(arch: Arch, apt: &Archive, how: &How) -> Result<Vec<(&'static str, Userland)>> {
    let mut found = Vec::new();
    for suite in userland::SUITES {
        match how.or_skip(Userland::find_or_fetch(suite, arch, apt))? {
            Ok(userland) => found.push((suite, userland)),
            Err(why) => say(&format!("the guests go without the C library of {suite}: {why}")),
        }
    }
    Ok(found)
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
            resume: false,
            jobs: None,
            write_readme: false,
            series: Vec::new(),
        });
        let large = default.iter().filter(|plan| plan.series.large_pages).count();
        assert_eq!(large, 1);
        assert_eq!(default.len(), (SERIES.len() - large) * Arch::ALL.len() + large);
    }

    #[test]
    fn a_series_between_two_gets_the_older_ones_library() {
        let of = |series: &str| suite_of(series.parse().expect("it is a series"));
        assert_eq!(of("6.16"), "trixie");
        assert_eq!(of("5.4"), "bullseye");
        assert_eq!(of("newest"), "experimental");
        assert_eq!(of("6.18-16k"), "sid");
    }
}
