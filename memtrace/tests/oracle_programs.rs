//! Programs that people run, held against the preloaded counter and strace.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memtrace_test_support::counter::Counter;
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::skip;
use memtrace_test_support::strace::{self, SYSCALLS};
use memtrace_test_support::tracer::{self, Differences, number};

struct Program {
    words: Vec<OsString>,
    environment: Vec<(&'static str, &'static str)>,
    directory: PathBuf,
    /// Whether two runs of it make the same system calls, so that strace can watch another run than memtrace does.
    repeatable: bool,
    /// Whether it has one thread, so that every step of the break must be explained.
    single: bool,
}

impl Program {
    fn new(directory: &Path, words: &[&str]) -> Self {
        Self {
            words: words.iter().map(OsString::from).collect(),
            environment: Vec::new(),
            directory: directory.to_owned(),
            repeatable: true,
            single: true,
        }
    }

    /// The program, in front of it `by`, at the same addresses in every run: some order their tables by them, and so
    /// make other system calls each time.
    fn at_fixed_addresses(&self, by: &Command) -> Command {
        let mut command = Command::new("setarch");
        command
            .arg("--addr-no-randomize")
            .arg(by.get_program())
            .args(by.get_args());
        self.set_up(&mut command);
        command
    }

    fn set_up(&self, command: &mut Command) {
        command
            .current_dir(&self.directory)
            .envs(self.environment.iter().copied());
    }
}

/// The three comparisons of one program.
fn check(name: &str, program: &Program) {
    counts_agree(name, program);
    if program.repeatable && skip::program(&format!("{name}, its system calls"), "strace") {
        system_calls_agree(name, program);
    }
}

fn counts_agree(name: &str, program: &Program) {
    let scratch = Scratch::new();
    let counter = Counter::build(None, &scratch);
    let mut traced = tracer::spawning(&scratch, &program.words);
    program.set_up(&mut traced.command);
    let (variable, prefix) = counter.environment();
    traced
        .command
        .env(variable, prefix)
        .env("LD_PRELOAD", counter.library());
    let report = traced.run();
    let counts = counter.counts(u32::try_from(number(&report, "/target/pid")).expect("a process id"));

    let mut differences = Differences::default();
    differences.compare_calls(&report, &counts.calls);
    differences.compare(&report, "/freed/chunk_bytes", counts.freed_chunk_bytes);
    differences.compare(&report, "/allocated/blocks", counts.new_blocks());

    tracer::few_are_unknown(name, &report, &mut differences);
    if program.single {
        let steps = report["growth"]["steps"].as_array().expect("a list of steps");
        for step in steps.iter().filter(|step| step["kind"] == "brk") {
            if step["predicted_bytes"] != step["bytes"] && step["reason"].is_null() {
                differences.add(format!("a step of the break without a reason: {step}"));
            }
        }
    }
    differences.check(name, &report);
}

fn system_calls_agree(name: &str, program: &Program) {
    let scratch = Scratch::new();
    let log = scratch.file("strace");
    let mut command = Command::new("strace");
    command
        .args(strace::arguments())
        .arg("-o")
        .arg(&log)
        .args(&program.words);
    let output = program
        .at_fixed_addresses(&command)
        .stdin(Stdio::null())
        .output()
        .expect("starting strace");
    assert!(output.status.success(), "{name} under strace: {output:?}");
    let expected = strace::count(fs::read_to_string(&log).expect("reading strace's log").lines());

    let mut traced = tracer::spawning(&scratch, &program.words);
    traced.command = program.at_fixed_addresses(&traced.command);
    let report = traced.run();
    let mut differences = Differences::default();
    for syscall in SYSCALLS {
        differences.compare(&report, &format!("/syscalls/{syscall}/count"), expected[syscall].0);
        differences.compare(&report, &format!("/syscalls/{syscall}/failed"), expected[syscall].1);
    }
    differences.check(name, &report);
}

fn ready(test: &str, needed: &str) -> bool {
    skip::root(test) && skip::program(test, needed)
}

#[test]
fn perl() {
    if !ready("perl", "perl") {
        return;
    }
    let scratch = Scratch::new();
    let script = "my %h; $h{$_} = 'x' x ($_ % 3000) for 1..20000; my @a = sort values %h; undef %h; print scalar @a;";
    let mut program = Program::new(scratch.path(), &["perl", "-e", script]);
    program.environment = vec![("PERL_HASH_SEED", "0"), ("PERL_PERTURB_KEYS", "0")];
    check("perl", &program);
}

#[test]
fn sqlite3() {
    if !ready("sqlite3", "sqlite3") {
        return;
    }
    let scratch = Scratch::new();
    let statements = "create table t(a integer primary key, b text); \
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000) \
        insert into t select i, hex(i * 7919) || 'text' from n; \
        create index u on t(b); select count(*), max(b) from t where b like '3%'; delete from t where a % 3 = 0;";
    check(
        "sqlite3",
        &Program::new(scratch.path(), &["sqlite3", ":memory:", statements]),
    );
}

#[test]
fn git() {
    if !ready("git", "git") {
        return;
    }
    let scratch = Scratch::new();
    let git = |words: &[&str]| {
        let output = Command::new("git")
            .current_dir(scratch.path())
            .args([
                "-c",
                "user.name=A",
                "-c",
                "user.email=a@example.org",
                "-c",
                "commit.gpgsign=false",
            ])
            .args(words)
            .output()
            .expect("starting git");
        assert!(output.status.success(), "git {words:?}: {output:?}");
    };
    git(&["init", "--quiet"]);
    for i in 0..20 {
        fs::write(scratch.file("file"), format!("line {i}\n").repeat(500 + i)).expect("writing a file");
        git(&["add", "file"]);
        git(&["commit", "--quiet", "--message", "another one"]);
    }
    let mut program = Program::new(scratch.path(), &["git", "log", "--stat", "--patch"]);
    // Threads that read the index ahead would make the system calls depend on timing.
    program.environment = vec![("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_PAGER", "cat")];
    check("git", &program);
}

#[test]
fn the_c_compiler() {
    if !ready("the_c_compiler", "gcc") {
        return;
    }
    let scratch = Scratch::new();
    // The driver only starts it: the work is done by the compiler proper.
    let output = Command::new("gcc")
        .arg("-print-prog-name=cc1")
        .output()
        .expect("starting gcc");
    let compiler = String::from_utf8(output.stdout).expect("a path");
    let compiler = compiler.trim();
    if !Path::new(compiler).is_absolute() {
        return skip::skip("the_c_compiler", "gcc does not say where its compiler proper is");
    }
    fs::write(scratch.file("a.c"), source()).expect("writing a source");
    check(
        "cc1",
        &Program::new(scratch.path(), &[compiler, "-quiet", "-O2", "a.c", "-o", "a.s"]),
    );
}

/// Many small functions, for a compiler to have something to hold in memory.
fn source() -> String {
    (0..60)
        .map(|i| {
            format!(
                "int f{i}(int a, int *b) {{ int s = {i}; for (int i = 0; i < a; i++) s += b[i] * {i}; return s; }}\n"
            )
        })
        .collect()
}

#[test]
fn python_with_threads() {
    const NAME: &str = "python_with_threads";
    if !ready(NAME, "python3") {
        return;
    }
    let scratch = Scratch::new();
    // Its own path: what is first in PATH may be a script that replaces itself.
    let output = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output()
        .expect("starting python3");
    let python = String::from_utf8(output.stdout).expect("a path");
    let script = "import threading, json\n\
        def work(n):\n    \
            for i in range(200):\n        \
                d = {str(k): 'x' * (k * n % 3000) for k in range(300)}\n        \
                json.loads(json.dumps(d))\n\
        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]\n\
        [t.start() for t in threads]\n\
        [t.join() for t in threads]\n";
    let mut program = Program::new(scratch.path(), &[python.trim(), "-c", script]);
    (program.repeatable, program.single) = (false, false);
    check(NAME, &program);
}

#[test]
fn a_shared_library_that_is_loaded_late() {
    const NAME: &str = "a_shared_library_that_is_loaded_late";
    if !ready(NAME, "perl") {
        return;
    }
    let scratch = Scratch::new();
    // dlopen maps and unmaps in the course of no allocation, and allocates a great deal itself.
    let script = "use POSIX; use List::Util; use Socket; use Data::Dumper; print Dumper([1..2000]) =~ tr/\\n//;";
    let mut program = Program::new(scratch.path(), &["perl", "-e", script]);
    program.environment = vec![("PERL_HASH_SEED", "0"), ("PERL_PERTURB_KEYS", "0")];
    check(NAME, &program);
}
