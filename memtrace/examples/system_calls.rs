//! What it costs at least to see memory system calls by tracepoints, and how many system calls there are.
//!
//! ```text
//! system_calls bare            an empty BPF program on one tracepoint, until the input ends
//! system_calls count PID       how many calls the process's threads make until the input ends
//! ```
//!
//! While any tracepoint of a system call is in use, the kernel takes the slow way into and out of every system call. The one
//! here is brk's entry: who wants to see memory system calls this way needs it, and more. Says `attached` when all is in place.

mod kernel;

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use memtrace::session;

const BPF_PROG_TYPE_TRACEPOINT: u32 = 5;
const PERF_TYPE_TRACEPOINT: u32 = 2;
/// Threads that come later count as well.
const INHERIT: u64 = 2;
const EVENTS: [&str; 2] = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"];

fn main() -> Result<()> {
    session::mount_if_missing().context("looking for the kernel's trace events")?;
    let words: Vec<String> = env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bare"] => bare(),
        ["count", pid] => count(pid),
        _ => bail!("usage: system_calls bare | system_calls count PID"),
    }
}

fn bare() -> Result<()> {
    // Any processor will do: the program runs on all.
    let event = open("syscalls/sys_enter_brk", 0, -1, 0)?;
    let program = kernel::load(BPF_PROG_TYPE_TRACEPOINT, 0).context("loading the empty program")?;
    kernel::bind(&event, &program).context("binding the empty program")?;
    wait()
}

fn count(pid: &str) -> Result<()> {
    let tasks = format!("/proc/{pid}/task");
    let mut events = Vec::new();
    for task in fs::read_dir(&tasks).with_context(|| format!("reading {tasks}"))? {
        let name = task.with_context(|| format!("reading {tasks}"))?.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok());
        let thread = thread.with_context(|| format!("reading {tasks}"))?;
        events.push(open("raw_syscalls/sys_enter", INHERIT, thread, -1)?);
    }
    wait()?;
    let mut calls = 0;
    for event in events {
        let mut figure = [0; 8];
        fs::File::from(event)
            .read_exact(&mut figure)
            .context("reading a counter")?;
        calls += u64::from_ne_bytes(figure);
    }
    println!("calls={calls}");
    Ok(())
}

fn open(tracepoint: &str, flags: u64, thread: i32, processor: i32) -> Result<OwnedFd> {
    let file = EVENTS.map(|events| Path::new(events).join(tracepoint).join("id"));
    let file = file.iter().find(|file| file.exists());
    let file = file.with_context(|| format!("the kernel has no tracepoint {tracepoint}"))?;
    let id = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let event = kernel::Event {
        kind: PERF_TYPE_TRACEPOINT,
        size: size_of::<kernel::Event>() as u32,
        config: id
            .trim()
            .parse()
            .with_context(|| format!("reading {}", file.display()))?,
        flags,
        ..kernel::Event::default()
    };
    // SAFETY: of a tracepoint all fields are numbers.
    unsafe { kernel::open_event(&event, thread, processor) }.with_context(|| format!("opening {tracepoint}"))
}

fn wait() -> Result<()> {
    println!("attached");
    io::stdin()
        .read_to_end(&mut Vec::new())
        .map(drop)
        .context("waiting for the end of the input")
}
