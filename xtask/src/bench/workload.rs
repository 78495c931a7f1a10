//! What is traced: programs that work in windows of time when they are told to, and rest between them.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result};

use crate::lines::{Lines, PATIENCE};
use crate::process;
use crate::workspace;

pub struct Workload {
    pub name: &'static str,
    pub about: &'static str,
    /// What is counted in a window.
    pub unit: &'static str,
    pub class: Class,
    pub kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// One malloc and one free for each unit of work, and nothing else of note.
    Churn,
    Program,
    /// Nothing but system calls.
    SystemCalls,
}

#[derive(Clone, Copy)]
pub enum Kind {
    /// A program of memtrace-lab that serves windows.
    Lab(&'static [&'static str]),
    Python,
    Sqlite,
    Redis,
}

pub const ALL: [Workload; 8] = [
    Workload {
        name: "pair",
        about: "malloc and free of 48 bytes, served by the thread's cache",
        unit: "pair",
        class: Class::Churn,
        kind: Kind::Lab(&["churn"]),
    },
    Workload {
        name: "mix",
        about: "1 024 blocks of 16 to 2 000 bytes, exchanged at random, which misses the thread's cache",
        unit: "pair",
        class: Class::Churn,
        kind: Kind::Lab(&["churn", "--slots", "1024", "--low", "16", "--high", "2000"]),
    },
    Workload {
        name: "threads-8",
        about: "the pair in 8 threads",
        unit: "pair",
        class: Class::Churn,
        kind: Kind::Lab(&["churn", "--threads", "8"]),
    },
    Workload {
        name: "threads-64",
        about: "the pair in 64 threads",
        unit: "pair",
        class: Class::Churn,
        kind: Kind::Lab(&["churn", "--threads", "64"]),
    },
    Workload {
        name: "python3",
        about: "python3 reads and writes JSON",
        unit: "document",
        class: Class::Program,
        kind: Kind::Python,
    },
    Workload {
        name: "sqlite3",
        about: "sqlite3 inserts rows with texts up to 1 200 bytes",
        unit: "row",
        class: Class::Program,
        kind: Kind::Sqlite,
    },
    Workload {
        name: "redis",
        about: "redis-server under redis-benchmark, SET of 500 bytes (where redis brings jemalloc along, no tool sees its mallocs)",
        unit: "request",
        class: Class::Program,
        kind: Kind::Redis,
    },
    Workload {
        name: "syscalls",
        about: "getppid and nothing else: what enabled tracepoints cost each system call",
        unit: "call",
        class: Class::SystemCalls,
        kind: Kind::Lab(&["system-calls"]),
    },
];

impl Workload {
    /// The program it needs, and its Debian package.
    pub const fn needs(&self) -> Option<(&'static str, &'static str)> {
        match self.kind {
            Kind::Lab(_) => None,
            Kind::Python => Some(("python3", "python3")),
            Kind::Sqlite => Some(("sqlite3", "sqlite3")),
            Kind::Redis => Some(("redis-server", "redis-server redis-tools")),
        }
    }
}

/// What a window came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    pub ns: f64,
    pub work: f64,
    /// Processor time of the workload's process; None where it does not run by itself.
    pub cpu_ns: Option<f64>,
    /// The longest time one of its threads took for a small portion of work.
    pub gap_ns: Option<f64>,
}

impl Window {
    /// Wall time for one unit of work.
    pub fn each_ns(&self) -> f64 {
        self.ns / self.work
    }

    /// Processor time for one unit of work.
    pub fn each_cpu_ns(&self) -> Option<f64> {
        Some(self.cpu_ns? / self.work)
    }
}

/// A workload's process.
pub struct Running {
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines,
    way: Way,
    alone: bool,
}

enum Way {
    /// A number of milliseconds in, a line `window` out.
    Windows,
    Sqlite,
    /// The port, and requests in a second as last seen.
    Redis(u16, f64),
}

const PYTHON: &str = r#"
import json, sys, time
text = json.dumps([{"name": "x" * (20 + i * 37 % 1500), "n": i, "list": list(range(i % 40))} for i in range(60)])
print("ready", flush=True)
for line in sys.stdin:
    began, work = time.monotonic_ns(), 0
    while time.monotonic_ns() < began + int(line) * 1000000:
        json.dumps(json.loads(text))
        work += 1
    print("window ns=%d work=%d" % (time.monotonic_ns() - began, work), flush=True)
"#;

const SQLITE_ROWS: f64 = 1_000.0;
const SQLITE_TABLES: &str =
    "create table numbers as with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000)
  select i from n;
create table rows(number, text);
";
/// The end of a statement is told through a file that is opened and closed for it, since standard output is buffered.
const SQLITE_INSERT: &str = "delete from rows;
insert into rows select abs(random()) % 1000000, hex(randomblob(abs(random()) % 600)) from numbers;
.output /dev/stderr
.print done
.output
";

impl Running {
    /// Starts the workload, under another program where `under` names one with its arguments.
    pub fn start(workload: &Workload, under: &[String]) -> Result<Self> {
        let (program, words): (String, Vec<String>) = match workload.kind {
            Kind::Lab(words) => (
                workspace::target().join("release/memtrace-lab").display().to_string(),
                words.iter().map(|&word| word.to_owned()).collect(),
            ),
            Kind::Python => (path("python3")?, vec!["-c".to_owned(), PYTHON.to_owned()]),
            Kind::Sqlite => (path("sqlite3")?, vec!["-batch".to_owned(), ":memory:".to_owned()]),
            Kind::Redis => return Self::redis(workload),
        };
        let mut words: Vec<String> = std::iter::once(program).chain(words).collect();
        words.splice(0..0, under.iter().cloned());
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", words[0]))?;
        let mut input = child.stdin.take();
        let sqlite = matches!(workload.kind, Kind::Sqlite);
        // Whichever stream is not listened to is read all the same, so that no writer has to wait.
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (stdout, stderr) = (
            stdout.context("no standard output")?,
            stderr.context("no standard error")?,
        );
        let (mut lines, _other) = if sqlite {
            (Lines::of(stderr), Lines::of(stdout))
        } else {
            (Lines::of(stdout), Lines::of(stderr))
        };
        let way = if sqlite {
            write(&mut input, SQLITE_TABLES)?;
            Way::Sqlite
        } else {
            lines
                .wait_for("ready")
                .with_context(|| format!("starting {}", workload.name))?;
            Way::Windows
        };
        Ok(Self {
            child,
            input,
            lines,
            way,
            alone: under.is_empty(),
        })
    }

    fn redis(workload: &Workload) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .context("looking for a free port")?
            .port();
        let mut child = Command::new(path("redis-server")?)
            .args([
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--daemonize",
                "no",
                "--port",
            ])
            .arg(port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", workload.name))?;
        let mut lines = Lines::of(child.stdout.take().context("no standard output")?);
        lines.wait_for("eady to accept connections")?;
        Ok(Self {
            child,
            input: None,
            lines,
            way: Way::Redis(port, 20_000.0),
            alone: true,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it work for a while.
    pub fn window(&mut self, length: Duration) -> Result<Window> {
        let before = self.cpu_ns()?;
        let mut window = match self.way {
            Way::Windows => self.ask(length)?,
            Way::Sqlite => self.insert(length)?,
            Way::Redis(port, rate) => {
                let window = request(port, rate * length.as_secs_f64())?;
                self.way = Way::Redis(port, window.work / window.ns * 1e9);
                window
            }
        };
        if let (Some(before), Some(after)) = (before, self.cpu_ns()?) {
            window.cpu_ns = Some(after - before);
        }
        Ok(window)
    }

    fn ask(&mut self, length: Duration) -> Result<Window> {
        self.open(length)?;
        self.close()
    }

    /// Begins a window that [`Self::close`] waits for.
    pub fn open(&mut self, length: Duration) -> Result<()> {
        write(&mut self.input, &format!("{}\n", length.as_millis()))
    }

    pub fn close(&mut self) -> Result<Window> {
        let line = self.lines.wait_for("window")?;
        let fact = |name: &str| -> Option<f64> {
            let words = line.split(' ').filter_map(|word| word.split_once('='));
            words
                .filter(|&(key, _)| key == name)
                .find_map(|(_, value)| value.parse().ok())
        };
        Ok(Window {
            ns: fact("ns").context("a window has no length")?,
            work: fact("work").context("a window has no work")?,
            cpu_ns: None,
            gap_ns: fact("gap_ns"),
        })
    }

    fn insert(&mut self, length: Duration) -> Result<Window> {
        let began = Instant::now();
        let mut work = 0.0;
        while began.elapsed() < length {
            write(&mut self.input, SQLITE_INSERT)?;
            self.lines.wait_for("done")?;
            work += SQLITE_ROWS;
        }
        Ok(Window {
            ns: began.elapsed().as_nanos() as f64,
            work,
            ..Window::default()
        })
    }

    /// Nanoseconds of processor time that the process's threads have had.
    fn cpu_ns(&self) -> Result<Option<f64>> {
        if !self.alone {
            return Ok(None);
        }
        cpu_ns(self.pid()).map(Some)
    }
}

/// Nanoseconds of processor time that the threads of a process have had, those that have ended left out.
pub fn cpu_ns(pid: u32) -> Result<f64> {
    let tasks = format!("/proc/{pid}/task");
    let mut sum = 0.0;
    for task in fs::read_dir(&tasks).with_context(|| format!("reading {tasks}"))? {
        let file = task
            .with_context(|| format!("reading {tasks}"))?
            .path()
            .join("schedstat");
        // A thread that has ended meanwhile is left out.
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let ns: f64 = text
            .split(' ')
            .next()
            .and_then(|figure| figure.parse().ok())
            .with_context(|| format!("reading {}", file.display()))?;
        sum += ns;
    }
    Ok(sum)
}

impl Drop for Running {
    fn drop(&mut self) {
        // All of them end at the end of their input, and what they run under with them; redis-server has none.
        drop(self.input.take());
        if matches!(self.way, Way::Redis(..)) {
            let _ = self.child.kill();
        }
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(5)),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn request(port: u16, requests: f64) -> Result<Window> {
    let mut benchmark = Command::new(path("redis-benchmark")?);
    benchmark
        .args([
            "-h",
            "127.0.0.1",
            "-t",
            "set",
            "-c",
            "10",
            "-d",
            "500",
            "-r",
            "10000",
            "--csv",
            "-p",
        ])
        .arg(port.to_string())
        .arg("-n")
        .arg(format!("{:.0}", requests.max(100.0)));
    let text = process::capture(&mut benchmark, "running redis-benchmark")?;
    let rate: f64 = text
        .lines()
        .find_map(|line| line.strip_prefix("\"SET\",\"")?.split('"').next()?.parse().ok())
        .with_context(|| format!("reading what redis-benchmark printed: {text}"))?;
    let work = requests.max(100.0).round();
    Ok(Window {
        ns: work / rate * 1e9,
        work,
        ..Window::default()
    })
}

fn write(input: &mut Option<ChildStdin>, text: &str) -> Result<()> {
    let input = input.as_mut().context("the program has no input")?;
    input
        .write_all(text.as_bytes())
        .context("telling the program what to do")?;
    input.flush().context("telling the program what to do")
}

/// The distribution's own program before any other of its name: a shim of a version manager is not what is to be traced.
fn path(program: &str) -> Result<String> {
    let own = std::path::Path::new("/usr/bin").join(program);
    let found = if process::is_executable(&own) {
        Some(own)
    } else {
        process::find(program)
    };
    Ok(found
        .with_context(|| format!("{program} is not installed"))?
        .display()
        .to_string())
}
