//! Every check and every test, those with real probes included, and a summary that hides nothing.
//!
//! Tests that need root live in files of memtrace/tests whose names begin with one of [`NEEDS_ROOT`]. They are built
//! unprivileged like all others; cargo then runs every test program through `cargo xtask run-test`, which takes sudo for
//! those. A test that cannot run on this machine says why on stderr and in the file that `MEMTRACE_SKIPS` names; the
//! summary repeats it.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::process::{self, Root, say};
use crate::tracepoints::Keeper;
use crate::{ebpf, glibcs, kernels, old_lab, packages, workspace};

const NEEDS_ROOT: [&str; 4] = ["kernel", "oracle", "spawn", "target"];
/// Names the file to which tests that cannot run add a line.
const SKIPS: &str = "MEMTRACE_SKIPS";

/// Programs that tests run: program, its package, and what goes untested without it.
const PROGRAMS: [(&str, &str, &str); 5] = [
    ("strace", "strace", "system call counts are not compared with strace's"),
    (
        "valgrind",
        "valgrind",
        "allocation counts are not compared with valgrind's",
    ),
    ("python3", "python3", "python3 is not traced"),
    ("sqlite3", "sqlite3", "sqlite3 is not traced"),
    ("perl", "perl-base", "perl is not traced"),
];

#[derive(Args)]
pub struct Options {
    /// Leave formatting and lints unchecked
    #[arg(long)]
    no_lint: bool,
    /// Install nothing: tests whose programs are missing are skipped
    #[arg(long)]
    no_install: bool,
    /// No tests on other kernels, in virtual machines
    #[arg(long)]
    no_kernels: bool,
    /// Only tests whose names contain this, on this kernel alone
    filter: Option<String>,
}

#[derive(Default)]
struct Summary {
    passed: u64,
    failed: u64,
    ignored: u64,
    skipped: Vec<String>,
    failures: Vec<String>,
}

pub fn test(options: &Options) -> Result<()> {
    let begin = Instant::now();
    let mut summary = Summary::default();
    if process::find("cc").is_none() {
        bail!("a C compiler is needed (no cc in PATH): install gcc and libc6-dev, and run this again");
    }
    prepare_programs(options, &mut summary);
    ebpf::build(ebpf::Arch::HOST)?;
    if !options.no_lint {
        lint(&mut summary);
    }
    prepare_glibcs(&mut summary);
    run_tests(options, &mut summary)?;
    if !options.no_kernels && options.filter.is_none() {
        other_kernels(&mut summary)?;
    }
    finish(summary, begin)
}

fn prepare_programs(options: &Options, summary: &mut Summary) {
    let missing = || PROGRAMS.iter().filter(|(program, ..)| process::find(program).is_none());
    let wanted: Vec<&str> = missing().map(|&(_, package, _)| package).collect();
    if !wanted.is_empty() && !options.no_install && packages::apt_is_here() {
        // Not fatal: the tests concerned are skipped, and the summary says so.
        if let Err(error) = packages::install(&wanted, "the tests run these programs") {
            say(&format!("{error:#}"));
        }
    }
    for (program, _, loss) in missing() {
        summary.skipped.push(format!("{program} is not installed: {loss}"));
    }
}

fn prepare_glibcs(summary: &mut Summary) {
    match glibcs::fetch() {
        Ok(outcomes) => {
            for glibcs::Outcome { suite, result } in outcomes {
                match result {
                    Ok(directory) if suite == glibcs::OLDEST => {
                        if let Err(error) = old_lab::build(&directory) {
                            summary.failures.push(format!("{error:#}"));
                        }
                    }
                    Ok(_) => {}
                    Err(error) => summary
                        .skipped
                        .push(format!("tests under the glibc of Debian's {suite}: {error:#}")),
                }
            }
        }
        Err(error) => summary
            .skipped
            .push(format!("tests under other glibc releases: {error:#}")),
    }
}

fn lint(summary: &mut Summary) {
    let checks: [(&str, &str, &[&str]); 2] = [
        ("cargo-fmt", "formatting", &["fmt", "--all", "--check"]),
        (
            "cargo-clippy",
            "lints",
            &[
                "clippy",
                "--quiet",
                "--locked",
                "--all-targets",
                "--",
                "--deny",
                "warnings",
            ],
        ),
    ];
    for (program, what, words) in checks {
        if process::find(program).is_none() {
            summary
                .skipped
                .push(format!("{what}: {program} is not installed (rustup component add)"));
            continue;
        }
        say(&format!("checking {what}"));
        if let Err(error) = process::run(process::cargo().args(words), &format!("checking {what}")) {
            summary.failures.push(format!("{error:#}"));
        }
    }
}

fn run_tests(options: &Options, summary: &mut Summary) -> Result<()> {
    let skips = workspace::target().join("test-skips");
    fs::write(&skips, "").with_context(|| format!("emptying {}", skips.display()))?;

    // Tests run the lab's programs, which `cargo test` alone would not build.
    process::run(process::cargo().args(["build", "--locked"]), "building")?;
    // Apart: built together with the tests' own dependencies, xtask would be another, and is running.
    let mut keeper = process::cargo();
    keeper.args([
        "build",
        "--locked",
        "--package",
        "memtrace",
        "--example",
        "keep_tracepoints",
    ]);
    process::run(&mut keeper, "building what runs beside the tests")?;
    say("running the tests");
    let _keeper = Keeper::start();
    let own = std::env::current_exe().context("finding the path of xtask")?;
    let mut tests = process::cargo();
    tests
        .args(["test", "--locked", "--no-fail-fast", "--config"])
        .arg(format!("target.'cfg(all())'.runner = [{own:?}, \"run-test\"]"))
        .args(&options.filter)
        .env(SKIPS, &skips);
    count(&mut tests, summary)?;

    let text = fs::read_to_string(&skips).with_context(|| format!("reading {}", skips.display()))?;
    summary.skipped.extend(text.lines().map(str::to_owned));
    Ok(())
}

fn other_kernels(summary: &mut Summary) -> Result<()> {
    let kernels::Small {
        passed,
        skipped,
        failed,
    } = kernels::test_small_set()?;
    summary.passed += passed;
    summary.skipped.extend(skipped);
    summary.failed += failed.len() as u64;
    for what in failed {
        println!("failed: {what}");
    }
    Ok(())
}

/// Runs a test program that cargo has built, as root where it needs that.
pub fn run_one(words: &[OsString]) -> Result<()> {
    let (program, arguments) = words.split_first().context("no test program is named")?;
    let skips = std::env::var_os(SKIPS);
    let root = Root::find_out()?;
    let mut command = Command::new(program);
    if needs_root(Path::new(program)) && root != Root::Already {
        let Some(mut sudo) = root.command("env") else {
            return skip(Path::new(program), skips);
        };
        // sudo drops the environment.
        for name in [SKIPS, "PATH", "RUST_BACKTRACE"] {
            if let Some(value) = std::env::var_os(name) {
                let mut setting = OsString::from(format!("{name}="));
                setting.push(value);
                sudo.arg(setting);
            }
        }
        sudo.arg(program);
        command = sudo;
    }
    let error = command.args(arguments).exec();
    Err(error).with_context(|| format!("starting {}", process::shown(&command)))
}

fn skip(program: &Path, skips: Option<OsString>) -> Result<()> {
    let line = format!(
        "{}: it attaches probes, which needs root, and there is no sudo here\n",
        program.display()
    );
    eprint!("skipped: {line}");
    let Some(file) = skips else { return Ok(()) };
    let mut file = OpenOptions::new()
        .append(true)
        .open(&file)
        .with_context(|| format!("opening {file:?}"))?;
    file.write_all(line.as_bytes()).context("noting a skipped test")
}

/// A program is named after its source file, with a hash behind a dash. One of another package could share the name, and
/// then runs as root without need.
fn needs_root(program: &Path) -> bool {
    let name = program
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    NEEDS_ROOT.iter().any(|prefix| name.starts_with(prefix))
}

/// Runs `cargo test`, passing its output on and adding up its result lines.
fn count(tests: &mut Command, summary: &mut Summary) -> Result<()> {
    let mut child = tests.stdout(Stdio::piped()).spawn().context("starting cargo test")?;
    let output = child.stdout.take().context("reading what cargo test prints")?;
    let mut failed = 0;
    for line in BufReader::new(output).lines() {
        let line = line.context("reading what cargo test prints")?;
        println!("{line}");
        if let Some([passed, bad, ignored]) = result_line(&line) {
            summary.passed += passed;
            summary.ignored += ignored;
            failed += bad;
        }
    }
    let status: ExitStatus = child.wait().context("waiting for cargo test")?;
    summary.failed += failed;
    if !status.success() && failed == 0 {
        // It did not build, or a test program died before its last line.
        summary.failures.push(format!("cargo test ended with {status}"));
    }
    Ok(())
}

/// Passed, failed and ignored of a line like "test result: ok. 5 passed; 0 failed; 1 ignored; ...".
fn result_line(line: &str) -> Option<[u64; 3]> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |name: &str| {
        let part = counts.split(';').find_map(|part| part.trim().strip_suffix(name))?;
        part.trim().parse().ok()
    };
    Some([number("passed")?, number("failed")?, number("ignored")?])
}

fn finish(summary: Summary, begin: Instant) -> Result<()> {
    let Summary {
        passed,
        failed,
        ignored,
        mut skipped,
        failures,
    } = summary;
    skipped.sort();
    skipped.dedup();
    for skip in &skipped {
        println!("skipped: {skip}");
    }
    for failure in &failures {
        println!("failed: {failure}");
    }
    println!(
        "xtask test: {passed} passed, {failed} failed, {ignored} ignored, {} skipped, {} in checks and builds failed; {:.0} s",
        skipped.len(),
        failures.len(),
        begin.elapsed().as_secs_f64()
    );
    if failed > 0 || !failures.is_empty() {
        bail!("not everything passed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_result_lines_of_cargo_test() {
        let line = "test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(result_line(line), Some([12, 1, 3]));
        assert_eq!(result_line("test a ... ok"), None);
    }

    #[test]
    fn tests_that_need_root_are_told_by_their_names() {
        assert!(needs_root(Path::new("/t/debug/deps/kernel-0f3a")));
        assert!(needs_root(Path::new("/t/debug/deps/oracle_counts-0f3a")));
        assert!(!needs_root(Path::new("/t/kernel/deps/memtrace-0f3a")));
    }
}
