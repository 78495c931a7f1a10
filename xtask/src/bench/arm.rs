//! Who is raced: memtrace at each depth, and the tools that people take for the same question.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::lines::{Lines, PATIENCE};
use crate::process;
use crate::workspace;

pub struct Arm {
    pub name: &'static str,
    pub about: &'static str,
    /// The program, and the Debian package that has it; None for what is built here.
    pub needs: Option<(&'static str, &'static str)>,
    pub kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Empty BPF programs at memtrace's places for malloc and free.
    Bare,
    /// An empty BPF program on one system call tracepoint.
    BareSyscalls,
    /// With further words on its command line.
    Memtrace(&'static [&'static str]),
    /// A script, in which LIBC stands for the library.
    Bpftrace(&'static str),
    Memleak,
    /// A tracer by ptrace(2); the process's id follows its words.
    Ptrace(&'static [&'static str]),
    /// A program that the workload has to be started under; SCRATCH stands for a directory.
    Under(&'static [&'static str]),
}

/// Says when all its probes are in place: an interval begins last.
const SAY: &str = "interval:ms:100 /@said == 0/ { @said = 1; printf(\"attached\\n\"); }
";
/// What memleak does: the size from entry to return, and a map of the blocks that live.
const LEAKS: &str = "uprobe:LIBC:malloc { @size[tid] = arg0; }
uretprobe:LIBC:malloc /@size[tid]/ { @blocks[retval] = @size[tid]; @n += 1; delete(@size[tid]); }
uprobe:LIBC:free { delete(@blocks[arg0]); }
END { clear(@size); clear(@blocks); clear(@said); }
";
/// The least that counts both calls.
const COUNTS: &str = "uprobe:LIBC:malloc { @n += 1; }
uprobe:LIBC:free { @f += 1; }
END { clear(@said); }
";

pub const ALL: [Arm; 14] = [
    Arm {
        name: "bare",
        about: "two uprobes on cheap instructions of malloc and free, an empty BPF program on each",
        needs: None,
        kind: Kind::Bare,
    },
    Arm {
        name: BARE_SYSCALLS,
        about: "an empty BPF program on one system call tracepoint, brk's entry: what each tracer that uses one costs at least",
        needs: None,
        kind: Kind::BareSyscalls,
    },
    Arm {
        name: "syscalls",
        about: "memtrace --depth syscalls",
        needs: None,
        kind: Kind::Memtrace(&["--depth", "syscalls"]),
    },
    Arm {
        name: "slow-path",
        about: "memtrace --depth slow-path",
        needs: None,
        kind: Kind::Memtrace(&["--depth", "slow-path"]),
    },
    Arm {
        name: "calls",
        about: "memtrace --depth calls: every call counted",
        needs: None,
        kind: Kind::Memtrace(&["--depth", "calls"]),
    },
    Arm {
        name: "bpftrace",
        about: "bpftrace as memleak does it: malloc's entry and return, free's entry, a map of blocks",
        needs: Some(("bpftrace", "bpftrace")),
        kind: Kind::Bpftrace(LEAKS),
    },
    Arm {
        name: "bpftrace-count",
        about: "bpftrace counting malloc and free at their entries",
        needs: Some(("bpftrace", "bpftrace")),
        kind: Kind::Bpftrace(COUNTS),
    },
    Arm {
        name: "memleak",
        about: "memleak of bcc",
        needs: Some(("memleak-bpfcc", "bpfcc-tools")),
        kind: Kind::Memleak,
    },
    Arm {
        name: "strace",
        about: "strace of the memory system calls",
        needs: Some(("strace", "strace")),
        kind: Kind::Ptrace(&["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=memory", "-p"]),
    },
    Arm {
        name: "ltrace",
        about: "ltrace of malloc and free, from the start (attached, it sees neither)",
        needs: Some(("ltrace", "ltrace")),
        kind: Kind::Under(&[
            "ltrace",
            "-f",
            "-o",
            "/dev/null",
            "-x",
            "malloc@libc.so.6+free@libc.so.6",
        ]),
    },
    Arm {
        name: "heaptrack",
        about: "heaptrack from the start",
        needs: Some(("heaptrack", "heaptrack")),
        kind: Kind::Under(&["heaptrack", "--output", "SCRATCH/heaptrack"]),
    },
    Arm {
        name: "massif",
        about: "valgrind's massif from the start",
        needs: Some(("valgrind", "valgrind")),
        kind: Kind::Under(&["valgrind", "--tool=massif", "--massif-out-file=SCRATCH/massif"]),
    },
    Arm {
        name: "memcheck",
        about: "valgrind's memcheck from the start",
        needs: Some(("valgrind", "valgrind")),
        kind: Kind::Under(&["valgrind", "--tool=memcheck"]),
    },
    Arm {
        name: "auto",
        about: "memtrace as it comes, with its default budget",
        needs: None,
        kind: Kind::Memtrace(&[]),
    },
];

/// The arm of the budget: it is given time to adapt, which rounds do not have.
pub const AUTO: &str = "auto";
/// The floor of what is held against no tracer at depth syscalls.
pub const BARE_SYSCALLS: &str = "bare-syscalls";

impl Arm {
    /// Not one of ours: raced in fewer rounds, since it takes longer to start and its cost is not in question.
    pub const fn is_peer(&self) -> bool {
        self.needs.is_some()
    }

    /// Why it cannot be raced here; None when it can.
    pub fn missing(&self) -> Option<String> {
        let (program, package) = self.needs?;
        process::find(program).is_none().then(|| {
            format!(
                "{}: {program} is not installed (Debian and Ubuntu: apt-get install {package})",
                self.name
            )
        })
    }
}

/// A tool at work on a process.
pub struct Attached {
    child: Child,
    output: Lines,
    errors: Lines,
    kind: Kind,
    /// From its start until it said that it was ready.
    pub took: Duration,
}

/// What a tool had to say at its end.
#[derive(Default)]
pub struct Said {
    /// Calls of malloc that it saw, where it counts.
    pub mallocs: Option<u64>,
    /// memtrace's report.
    pub report: Option<Value>,
}

impl Attached {
    pub fn to(kind: Kind, pid: u32) -> Result<Self> {
        let began = Instant::now();
        let mut command = command(kind, pid)?;
        let mut child = command
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", process::shown(&command)))?;
        let output = Lines::of(child.stdout.take().context("no standard output")?);
        let errors = Lines::of(child.stderr.take().context("no standard error")?);
        let mut attached = Self {
            child,
            output,
            errors,
            kind,
            took: Duration::ZERO,
        };
        if let Err(error) = attached.wait_until_ready(pid) {
            // What it died of may be on the other stream.
            let _ = attached.child.kill();
            let errors = std::mem::replace(&mut attached.errors, Lines::none()).rest();
            let last = errors.iter().rev().find(|line| !line.trim().is_empty());
            return Err(error.context(format!(
                "attaching ({})",
                last.map_or("no error is told", String::as_str)
            )));
        }
        attached.took = began.elapsed();
        Ok(attached)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_ready(&mut self, pid: u32) -> Result<()> {
        match self.kind {
            Kind::Bare | Kind::BareSyscalls | Kind::Bpftrace(_) => self.output.wait_for("attached"),
            Kind::Memtrace(_) => self.errors.wait_for("attached"),
            Kind::Memleak => self.output.wait_for("Attaching to"),
            Kind::Ptrace(_) => return self.wait_until_traced(pid),
            Kind::Under(_) => bail!("it cannot be attached"),
        }
        .map(drop)
    }

    /// All threads have a tracer, and it has had a moment to set its breakpoints.
    fn wait_until_traced(&mut self, pid: u32) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut all = true;
            for task in fs::read_dir(format!("/proc/{pid}/task")).context("reading the process's threads")? {
                let status = task.context("reading the process's threads")?.path().join("status");
                let text = fs::read_to_string(&status).with_context(|| format!("reading {}", status.display()))?;
                all &= !text.contains("TracerPid:\t0\n");
            }
            if all {
                thread::sleep(Duration::from_millis(300));
                return Ok(());
            }
            if self.child.try_wait().context("looking after the tracer")?.is_some() || Instant::now() > until {
                bail!("it did not attach");
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it as its user would, and takes what it has to say.
    pub fn stop(mut self) -> Result<Said> {
        drop(self.child.stdin.take());
        if !matches!(self.kind, Kind::Bare | Kind::BareSyscalls) {
            process::signal(self.child.id(), "INT")?;
        }
        wait(&mut self.child)?;
        let output = std::mem::replace(&mut self.output, Lines::none()).rest();
        let mut said = Said::default();
        match self.kind {
            Kind::Bpftrace(_) => {
                said.mallocs = output
                    .iter()
                    .find_map(|line| line.strip_prefix("@n:")?.trim().parse().ok());
            }
            Kind::Memtrace(_) => {
                let text = output.join("\n");
                let report: Value = serde_json::from_str(&text).with_context(|| {
                    let errors = std::mem::replace(&mut self.errors, Lines::none()).rest();
                    format!("reading memtrace's report ({})", errors.join("; "))
                })?;
                said.mallocs = report["calls"]["malloc"].as_u64();
                said.report = Some(report);
            }
            _ => {}
        }
        Ok(said)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Already gone where it was stopped.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Below the directory of what was built.
pub const SYSTEM_CALLS: &str = "examples/system_calls";

fn command(kind: Kind, pid: u32) -> Result<Command> {
    let binaries = workspace::target().join("release");
    let id = pid.to_string();
    Ok(match kind {
        Kind::Bare => {
            let mut command = Command::new(binaries.join("examples/bare_probes"));
            command.args([id.as_str(), "malloc", "free"]);
            command
        }
        Kind::BareSyscalls => {
            let mut command = Command::new(binaries.join(SYSTEM_CALLS));
            command.arg("bare");
            command
        }
        Kind::Memtrace(words) => {
            let mut command = Command::new(binaries.join("memtrace"));
            command.args(["--output", "json", "--pid", &id]).args(words);
            command
        }
        Kind::Bpftrace(script) => {
            let script = format!("{}{SAY}", script.replace("LIBC", &libc_of(pid)?.display().to_string()));
            with_tracefs(&["bpftrace", "-B", "none", "-p", &id, "-e", &script])
        }
        Kind::Memleak => with_tracefs(&["memleak-bpfcc", "-p", &id]),
        Kind::Ptrace(words) => {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).arg(id);
            command
        }
        Kind::Under(_) => bail!("it cannot be attached"),
    })
}

/// In a mount namespace of its own with tracefs, where this machine has not mounted it.
fn with_tracefs(words: &[&str]) -> Command {
    const MOUNT: &str =
        "mount -t tracefs tracefs /sys/kernel/tracing && mount -t debugfs debugfs /sys/kernel/debug && exec \"$@\"";
    let mut words = words.to_vec();
    if !Path::new("/sys/kernel/tracing/uprobe_events").exists() {
        words.splice(0..0, ["unshare", "--mount", "sh", "-c", MOUNT, "sh"]);
    }
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// The libc that a process maps.
fn libc_of(pid: u32) -> Result<PathBuf> {
    let file = format!("/proc/{pid}/maps");
    let maps = fs::read_to_string(&file).with_context(|| format!("reading {file}"))?;
    let line = maps.lines().find(|line| line.ends_with("/libc.so.6"));
    let path = line.and_then(|line| line.split_whitespace().last());
    Ok(path.context("the process maps no libc.so.6")?.into())
}

/// What a program's command line begins with when it is to run under such an arm.
pub fn prefix(words: &[&str], scratch: &Path) -> Vec<String> {
    let scratch = scratch.display().to_string();
    words.iter().map(|word| word.replace("SCRATCH", &scratch)).collect()
}

/// Waits for its end, which it is made to come to if need be.
fn wait(child: &mut Child) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while child.try_wait().context("waiting for a tool to end")?.is_none() {
        if Instant::now() > until {
            bail!("it did not end when it was told to");
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
