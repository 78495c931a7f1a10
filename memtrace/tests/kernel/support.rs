//! Runs a C program under the tracer, with a handshake: the program says `ready`, is attached to, is told to go, says
//! `done`, is looked at, and is told to end.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use memtrace::probe::ProbePlan;
use memtrace::session::{self, Begin, Options, Session};
use memtrace::target::Target;
use memtrace_analysis::event::{Capabilities, Event, EventKind, Syscall, Totals};
use memtrace_test_support::cc::{self, Sources};

/// A program of tests/programs, running and waiting.
pub struct Program {
    pub child: Child,
    binary: PathBuf,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    /// Compiles and starts it; returns when it is ready.
    pub fn build(name: &str) -> Self {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("programs");
        std::fs::create_dir_all(&directory).unwrap();
        // Tests of one program run side by side.
        static COPIES: AtomicU32 = AtomicU32::new(0);
        let copy = COPIES.fetch_add(1, Ordering::Relaxed);
        let binary = directory.join(format!("{name}-{}-{copy}", std::process::id()));
        compile(name, &binary);
        let mut child = Command::new(&binary)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut program = Self {
            child,
            binary,
            stdin,
            stdout,
        };
        assert_eq!(program.line(), ["ready"]);
        program
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn go(&mut self) {
        self.stdin.write_all(b"g").unwrap();
    }

    /// Waits for `done` and gives the words behind it.
    pub fn done(&mut self) -> Vec<String> {
        let line = self.line();
        assert_eq!(line.first().map(String::as_str), Some("done"), "{line:?}");
        line[1..].to_vec()
    }

    pub fn line(&mut self) -> Vec<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.binary);
    }
}

fn compile(name: &str, binary: &Path) {
    if cc::copy_ahead(Sources::Tests, name, &[], binary) {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(format!("{name}.c"));
    let compiled = Command::new("cc")
        .args([
            "-O1",
            "-fno-builtin",
            "-Wall",
            "-pthread",
            "-Wno-deprecated-declarations",
            "-Wno-unused-result",
            "-o",
        ])
        .arg(binary)
        .arg(&source)
        .status()
        .expect("these tests need a C compiler (cc)");
    assert!(compiled.success(), "compiling {}", source.display());
}

/// What a trace of one program has seen.
pub struct Traced {
    pub pid: u32,
    pub plan: ProbePlan,
    pub capabilities: Capabilities,
    pub totals: Totals,
    /// See [`skipped_runs`].
    pub skipped: u64,
    pub events: Vec<Event>,
    pub said: Vec<String>,
}

/// Whether these tests can run here; says aloud why not.
pub fn can_trace() -> bool {
    // SAFETY: no preconditions.
    let excuse = if unsafe { libc::geteuid() } != 0 {
        "the kernel tests need root: cargo xtask test asks for it"
    } else if !session::has_kernel_side() {
        "the kernel tests need the kernel side: cargo xtask ebpf builds it"
    } else {
        return true;
    };
    eprintln!("skipped: {excuse}");
    if let Some(path) = std::env::var_os("MEMTRACE_SKIPS") {
        let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        writeln!(file, "{excuse}").unwrap();
    }
    false
}

/// Loads a session on a runtime of its own.
pub fn with_session<T>(body: impl FnOnce(&tokio::runtime::Runtime, &mut Session) -> T) -> T {
    with_options(&Options::default(), body)
}

pub fn with_options<T>(options: &Options, body: impl FnOnce(&tokio::runtime::Runtime, &mut Session) -> T) -> T {
    // A thread of its own, since it may enter a mount namespace.
    session::mount_if_missing().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let guard = runtime.enter();
    let mut session = Session::load(options).unwrap();
    let result = body(&runtime, &mut session);
    drop(session);
    drop(guard);
    result
}

/// Traces a program from `ready` to `done`.
pub fn trace(mut program: Program) -> Traced {
    with_session(|_, session| {
        let (target, plan) = target(program.pid());
        let capabilities = session.add(&target, Some(&plan), false, Begin::Now).unwrap();
        program.go();
        let said = program.done();
        let totals = session.totals(program.pid()).unwrap();
        let events = session.pending();
        assert!(session.unknown_records().is_empty(), "{:?}", session.unknown_records());
        let skipped = skipped_runs();
        Traced {
            pid: program.pid(),
            plan,
            capabilities,
            totals,
            skipped,
            events,
            said,
        }
    })
}

/// Runs of this process's BPF programs that the kernel has skipped, of whatever task, as the kernel counts them. Before
/// 5.12 it does not, and none were seen.
pub fn skipped_runs() -> u64 {
    let list = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    let count = |entry: std::io::Result<std::fs::DirEntry>| {
        // A file that another thread has closed meanwhile is no program.
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        let number = text.lines().find_map(|line| line.strip_prefix("recursion_misses:"))?;
        Some(number.trim().parse::<u64>().unwrap())
    };
    list.filter_map(count).sum()
}

impl Traced {
    pub fn syscalls(&self) -> Vec<&Syscall> {
        syscalls(&self.events)
    }
}

pub fn syscalls(events: &[Event]) -> Vec<&Syscall> {
    let call = |event| match event {
        &Event {
            kind: EventKind::Syscall(ref call),
            ..
        } => Some(&**call),
        _ => None,
    };
    events.iter().filter_map(call).collect()
}

/// 4 KiB; on arm64 also 16 or 64.
pub fn page() -> u64 {
    // SAFETY: no preconditions.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap()
}

/// A process and where to probe the libc it maps.
pub fn target(pid: u32) -> (Target, ProbePlan) {
    let target = Target::of_pid(pid).unwrap();
    let library = target.libc.as_ref().expect("it maps a libc");
    let plan = ProbePlan::for_library(&library.read().unwrap()).unwrap();
    (target, plan)
}
