//! When a process's probes come and go, seen where it counts: in its own code.
//!
//! ```text
//! watch_probes PID         how many instructions of the allocator's entry points are not what their file says, a line
//!                          `TIME_NS COUNT` whenever that changes (CLOCK_MONOTONIC), until the input ends; a line of input is
//!                          answered `TIME_NS asked`
//! ```
//!
//! A probe replaces the first byte of its instruction, or all of it. The process is only read.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use memtrace::probe::ProbePlan;
use memtrace::target::Target;

const BETWEEN_LOOKS: Duration = Duration::from_micros(200);
/// No site is farther from the begin of its function, and no function shorter than the padding behind it.
const CODE: u64 = 48;

/// A function's code in the process, and as its file has it.
struct Function {
    address: u64,
    code: Vec<u8>,
}

fn main() -> Result<()> {
    let pid = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let pid = pid.context("usage: watch_probes PID")?;
    let library = Target::of_pid(pid)?.libc.context("the process has no glibc to probe")?;
    let bytes = library.read().with_context(|| format!("reading {}", library.shown))?;
    let plan = ProbePlan::for_library(&bytes).with_context(|| format!("planning probes in {}", library.shown))?;
    let mut functions = Vec::new();
    for site in &plan.sites {
        let length = site.offset.max(CODE);
        let begin = site.file_offset - site.offset;
        let place = usize::try_from(begin)?..usize::try_from(begin + length)?;
        let Some(code) = bytes.get(place) else {
            bail!("{} ends within {}", library.shown, site.symbol);
        };
        functions.push(Function {
            address: library.base + site.function,
            code: code.to_vec(),
        });
    }
    let memory = File::open(format!("/proc/{pid}/mem")).context("opening the process's memory")?;
    watch(&memory, &functions)
}

fn watch(memory: &File, functions: &[Function]) -> Result<()> {
    let over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&over);
    thread::spawn(move || {
        for line in io::stdin().lines() {
            if line.is_err() || writeln!(io::stdout(), "{} asked", now_ns()).is_err() {
                break;
            }
        }
        told.store(true, Ordering::Relaxed);
    });
    let mut before = None;
    while !over.load(Ordering::Relaxed) {
        let mut count = 0;
        for function in functions {
            let mut code = vec![0; function.code.len()];
            memory
                .read_exact_at(&mut code, function.address)
                .context("reading the process's code")?;
            count += usize::from(code != function.code);
        }
        if before != Some(count) {
            writeln!(io::stdout(), "{} {count}", now_ns()).context("writing a line")?;
            before = Some(count);
        }
        thread::sleep(BETWEEN_LOOKS);
    }
    Ok(())
}

fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the structure it is given; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
