//! The set for every day: the oldest and the newest kernel, and the other architecture, with the tests of what differs most
//! between them. `cargo xtask test` ends with it.

use anyhow::Result;

use super::cell::Cell;
use super::image::Series;
use super::qemu::Qemu;
use super::{How, Plan, suite_of};
use crate::ebpf::Arch;
use crate::process::say;

const SET: [(&str, Arch); 3] = [
    ("5.10", Arch::X86_64),
    ("newest", Arch::X86_64),
    ("6.12", Arch::Aarch64),
];
/// The tests, few since an emulated machine is slow: a trace of brk-steps, which every guest makes, and of this test program
/// exact counts over eight threads, each step of the break and of an arena, and whose each system call is.
pub const PROGRAM: &str = "kernel";
pub const FILTERS: [&str; 3] = ["attribution::", "counts::", "heap::"];

pub fn plan() -> Vec<Plan> {
    let plan = |(series, arch): (&str, Arch)| {
        let series: Series = series.parse().ok()?;
        let suite = suite_of(series).to_owned();
        Some(Plan { series, arch, suite })
    };
    SET.into_iter().filter_map(plan).collect()
}

/// What came of it.
#[derive(Default)]
pub struct Small {
    pub passed: u64,
    pub skipped: Vec<String>,
    pub failed: Vec<String>,
}

/// What cannot be had here, be it QEMU, a kernel or a compiler, is a reason to skip; what does not build is an error.
pub fn test_small_set() -> Result<Small> {
    let plans = plan();
    let mut outcome = Small::default();
    let qemu = match Qemu::find_or_fetch(&super::architectures(&plans)) {
        Ok(qemu) => qemu,
        Err(error) => {
            outcome.skipped.push(format!("other kernels: {error:#}"));
            return Ok(outcome);
        }
    };
    say(
        "testing a few things on other kernels, in virtual machines (all kernels, all tests: cargo xtask test-kernels)",
    );
    let how = How {
        qemu: &qemu,
        filters: &FILTERS,
        resume: false,
        skips_whatever_is_missing: true,
        jobs: super::jobs(),
    };
    let matrix = super::run(&plans, &how, false, Some(PROGRAM))?;
    print!("{}", matrix.text());
    for cell in &matrix.cells {
        outcome.add(cell);
    }
    Ok(outcome)
}

impl Small {
    fn add(&mut self, cell: &Cell) {
        let name = format!("Linux {} on {}", cell.series, cell.architecture);
        self.passed += cell.passed;
        let reasons = cell.not_run.iter().chain(&cell.skipped);
        self.skipped.extend(reasons.map(|why| format!("{name}: {why}")));
        self.failed
            .extend(cell.failed.iter().map(|what| format!("{name}: {what}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_of_the_set_is_one() {
        assert_eq!(plan().len(), SET.len());
    }

    #[test]
    fn a_kernel_that_cannot_be_had_is_skipped_and_one_that_fails_is_a_failure() {
        let mut outcome = Small::default();
        outcome.add(&Cell::not_run("5.10", "amd64", "it is gone".to_owned()));
        let mut bad = Cell::not_run("newest", "amd64", String::new());
        bad.not_run = None;
        bad.passed = 3;
        bad.failed = vec!["kernel::a".to_owned()];
        outcome.add(&bad);
        assert_eq!(outcome.passed, 3);
        assert_eq!(outcome.skipped, ["Linux 5.10 on amd64: it is gone"]);
        assert_eq!(outcome.failed, ["Linux newest on amd64: kernel::a"]);
    }
}
