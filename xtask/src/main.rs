//! Builds, tests and demonstrates memtrace: `cargo xtask help`.
//!
//! ```text
//! ebpf    toolchain (found, else fetched)  ->  target/bpf/ARCH/memtrace-ebpf
//! build   ebpf  ->  target/release/memtrace, memtrace-lab
//! demo    build ->  a trace of `memtrace-lab brk-steps`
//! test    packages, ebpf, formatting, lints, glibcs, every test  ->  a summary with what was skipped and why
//! glibcs  other releases' libc6 under target/glibc, for tests
//! bench   build ->  memtrace, bare probes and peers on the same workloads  ->  tables, figures reached or not
//! soak    build ->  memtrace comes and goes, a target that checks itself  ->  intact, and nothing left behind
//! test-kernels  other kernels, arm64 too: QEMU  ->  the kernel tests in each guest  ->  a table
//! dist    static binaries, packages, manual, completions, bill of materials, checksums  ->  target/dist
//! ```

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod archive;
mod bench;
mod cross;
mod demo;
mod dist;
mod ebpf;
mod glibcs;
mod kernels;
mod lines;
mod linker;
mod old_lab;
mod packages;
mod process;
mod readme;
mod soak;
mod test;
mod toolchain;
mod tracepoints;
mod workspace;

/// Builds, tests and demonstrates memtrace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Build the kernel side, fetching a BPF toolchain where there is none
    Ebpf {
        /// The architecture whose registers the kernel side reads
        #[arg(long, value_enum, default_value_t = ebpf::Arch::HOST)]
        arch: ebpf::Arch,
    },
    /// Build target/release/memtrace and target/release/memtrace-lab
    Build,
    /// Build, then trace memtrace-lab's brk-steps and print the report
    Demo,
    /// Run every check and every test, those with real probes included
    Test(test::Options),
    /// Run one test program, as cargo does for `test`
    #[command(hide = true)]
    RunTest {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        words: Vec<OsString>,
    },
    /// Run memtrace's kernel tests on other kernels and architectures, in virtual machines
    TestKernels(kernels::Options),
    /// Make what a release hands out: static binaries, packages, manual, completions, bill of materials, checksums
    Dist(dist::Options),
    /// Race memtrace at each depth against bare probes and its peers, and hold it against the figures it is to reach
    Bench(bench::Options),
    /// Attach to a target that checks itself and go, in every way and for minutes: nothing is harmed, nothing left behind
    Soak(soak::Options),
    /// Unpack the glibc of other Debian releases under target/glibc, for tests
    Glibcs,
}

fn main() -> ExitCode {
    match dispatch(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(verb: Verb) -> Result<()> {
    match verb {
        Verb::Ebpf { arch } => ebpf::build(arch).map(drop),
        Verb::Build => demo::build(),
        Verb::Demo => demo::demo(),
        Verb::Test(options) => test::test(&options),
        Verb::RunTest { words } => test::run_one(&words),
        Verb::Dist(options) => dist::dist(&options),
        Verb::TestKernels(options) => kernels::test_kernels(&options),
        Verb::Bench(options) => bench::bench(&options),
        Verb::Soak(options) => soak::soak(&options),
        Verb::Glibcs => glibcs::fetch_and_list(),
    }
}
