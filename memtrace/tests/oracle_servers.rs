//! Servers that people run, on a port of their own: a master with forked workers, and one with another allocator.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use memtrace_test_support::counter::Counter;
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::skip;
use memtrace_test_support::tracer::{self, Attached, Differences};
use serde_json::Value;

/// Calls by entry point's name.
type Calls = BTreeMap<String, u64>;

/// A port that nobody listens at.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of the loopback");
    listener.local_addr().expect("its number").port()
}

/// Sends `question` and reads until the other side closes; None where nobody listens yet.
fn ask(port: u16, question: &str) -> Option<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.write_all(question.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

/// Asks until there is an answer that contains `expected`; `server` must not end meanwhile.
fn wait_for(server: &mut Child, port: u16, question: &str, expected: &str) {
    loop {
        if ask(port, question).is_some_and(|answer| answer.contains(expected)) {
            return;
        }
        let status = server.try_wait().expect("looking after a server");
        assert_eq!(status, None, "the server ended before it listened");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn signal(pid: u32, signal: i32) {
    let pid = i32::try_from(pid).expect("a process id");
    // SAFETY: no preconditions; the id is that of a child that has not been waited for, or of a child of it.
    let result = unsafe { libc::kill(pid, signal) };
    assert_eq!(result, 0, "sending signal {signal} to {pid}");
}

/// Ended with the test, also when that fails.
struct Server {
    child: Child,
    /// Whom to tell to end: the server itself, which memtrace may have started.
    pid_file: Option<PathBuf>,
}

impl Server {
    fn master(&self) -> u32 {
        let file = self.pid_file.as_ref().expect("this server writes its id");
        let text = fs::read_to_string(file).expect("reading a server's id");
        text.trim().parse().expect("a process id")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // memtrace leaves its command running, so that is ended first.
        if self.pid_file.as_ref().is_some_and(|file| file.exists()) {
            signal(self.master(), libc::SIGKILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// nginx with two workers, under a name of its own.
struct Nginx {
    words: Vec<PathBuf>,
    pid_file: PathBuf,
    port: u16,
}

const GET: &str = "GET /page HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n";

impl Nginx {
    fn new(program: &Path, scratch: &Scratch) -> Self {
        let at = scratch.path().display();
        let port = free_port();
        let configuration = scratch.file("nginx.conf");
        fs::write(scratch.file("page"), "words ".repeat(20_000)).expect("writing a page");
        fs::write(
            &configuration,
            format!(
                "daemon off; user root; worker_processes 2; pid {at}/pid; error_log {at}/errors;\n\
                 events {{ worker_connections 64; }}\n\
                 http {{ access_log off; client_body_temp_path {at}/b; proxy_temp_path {at}/p;\n\
                 fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
                 gzip on; gzip_types *; server {{ listen 127.0.0.1:{port}; root {at}; }} }}\n"
            ),
        )
        .expect("writing a configuration");
        Self {
            words: vec![program.to_owned(), "-c".into(), configuration],
            pid_file: scratch.file("pid"),
            port,
        }
    }

    fn serve(&self, pages: usize) {
        for _ in 0..pages {
            let answer = ask(self.port, GET).expect("a page");
            assert!(answer.contains("200 OK"), "{answer}");
        }
    }
}

fn nginx_of(test: &str) -> Option<PathBuf> {
    let places = ["/usr/sbin/nginx", "/usr/bin/nginx"].map(PathBuf::from);
    let found = places.into_iter().find(|path| path.is_file());
    if found.is_none() {
        skip::skip(test, "nginx is not installed (Debian: nginx-light)");
    }
    found
}

fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let list = fs::read_to_string(&path).unwrap_or_else(|error| panic!("reading {path}: {error}"));
    list.split_whitespace()
        .map(|pid| pid.parse().expect("a process id"))
        .collect()
}

/// The parts of a document about several processes, by their ids.
fn parts(document: &Value) -> BTreeMap<u32, &Value> {
    let parts = document["processes"].as_array().expect("a part for each process");
    parts
        .iter()
        .map(|part| {
            let pid = part["target"]["pid"].as_u64().expect("a process id");
            (u32::try_from(pid).expect("a process id"), part)
        })
        .collect()
}

fn compare(name: &str, part: &Value, calls: &Calls) {
    let mut differences = Differences::default();
    differences.compare_calls(part, calls);
    tracer::few_are_unknown(name, part, &mut differences);
    differences.check(name, part);
}

#[test]
fn nginx_and_its_workers_from_their_birth() {
    const NAME: &str = "nginx_and_its_workers_from_their_birth";
    if !skip::root(NAME) {
        return;
    }
    let Some(program) = nginx_of(NAME) else { return };
    let scratch = Scratch::new();
    let counter = Counter::build(None, &scratch);
    let nginx = Nginx::new(&program, &scratch);
    let mut traced = tracer::with_buffer(&scratch, "64M");
    let (variable, prefix) = counter.environment();
    traced
        .command
        .env(variable, prefix)
        .env("LD_PRELOAD", counter.library());
    traced.command.arg("--follow").arg("--").args(&nginx.words);
    let (child, report) = traced.start();
    let mut server = Server {
        child,
        pid_file: Some(nginx.pid_file.clone()),
    };
    wait_for(&mut server.child, nginx.port, GET, "200 OK");
    nginx.serve(50);
    let master = server.master();
    let workers = children(master);
    assert_eq!(workers.len(), 2);
    signal(master, libc::SIGQUIT);
    let status = server.child.wait().expect("waiting for memtrace");
    assert!(status.success(), "memtrace ended with {status}");
    let document = report.read();
    let parts = parts(&document);
    for pid in workers.into_iter().chain([master]) {
        let part = parts.get(&pid).unwrap_or_else(|| panic!("no part about {pid}"));
        compare(&format!("nginx {pid}"), part, &counter.counts(pid).calls);
    }
    assert_eq!(parts.len(), 3, "a part for each process and no more");
}

/// The counts of a process that is at rest.
fn so_far(counter: &Counter, pids: &[u32]) -> BTreeMap<u32, Calls> {
    pids.iter().map(|&pid| (pid, counter.counts(pid).calls)).collect()
}

fn since(before: &Calls, now: &Calls) -> Calls {
    now.iter()
        .map(|(entry, calls)| (entry.clone(), calls - before[entry]))
        .collect()
}

#[test]
fn nginx_attached_to_while_it_runs_and_its_workers_of_later() {
    const NAME: &str = "nginx_attached_to_while_it_runs_and_its_workers_of_later";
    if !skip::root(NAME) {
        return;
    }
    let Some(program) = nginx_of(NAME) else { return };
    let scratch = Scratch::new();
    let counter = Counter::build(None, &scratch);
    // A name that no other process has.
    let name = format!("ngx{}", std::process::id());
    let copy = scratch.file(&name);
    fs::copy(&program, &copy).expect("copying nginx");
    for by_name in [false, true] {
        let nginx = Nginx::new(&copy, &scratch);
        let (variable, prefix) = counter.environment();
        let child = Command::new(&nginx.words[0])
            .args(&nginx.words[1..])
            .env(variable, prefix)
            .env("LD_PRELOAD", counter.library())
            .stdin(Stdio::null())
            .spawn()
            .expect("starting nginx");
        let mut server = Server {
            child,
            pid_file: Some(nginx.pid_file.clone()),
        };
        wait_for(&mut server.child, nginx.port, GET, "200 OK");
        let master = server.master();
        let mut all = children(master);
        assert_eq!(all.len(), 2);
        all.push(master);
        let pids: Vec<String> = all.iter().map(u32::to_string).collect();
        let whom = if by_name {
            ["--comm".to_owned(), name.clone()]
        } else {
            ["--pid".to_owned(), pids.join(",")]
        };
        at_rest(&all);
        let before = so_far(&counter, &all);
        let attached = Attached::with("calls", &scratch, whom.iter().map(String::as_str).chain(["--follow"]));
        nginx.serve(50);
        // New workers take the place of the old ones, which end.
        signal(master, libc::SIGHUP);
        let later = loop {
            let now = children(master);
            if now.len() == 2 && now.iter().all(|pid| !all.contains(pid)) {
                break now;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        wait_for(&mut server.child, nginx.port, GET, "200 OK");
        nginx.serve(20);
        signal(master, libc::SIGQUIT);
        let status = server.child.wait().expect("waiting for nginx");
        assert!(status.success(), "nginx ended with {status}");
        let document = attached.finish();
        let parts = parts(&document);
        for (pid, before) in &before {
            let part = parts.get(pid).unwrap_or_else(|| panic!("no part about {pid}"));
            let calls = since(before, &counter.counts(*pid).calls);
            compare(&format!("nginx {pid}, attached to"), part, &calls);
        }
        for pid in later {
            let part = parts.get(&pid).unwrap_or_else(|| panic!("no part about {pid}"));
            compare(
                &format!("nginx {pid}, a later worker"),
                part,
                &counter.counts(pid).calls,
            );
        }
    }
}

/// Waits until each of these processes sleeps in the kernel.
fn at_rest(pids: &[u32]) {
    let sleeps = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("reading a server's state");
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" S"))
    };
    while !pids.iter().all(sleeps) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn redis_and_its_allocator_under_load() {
    const NAME: &str = "redis_and_its_allocator_under_load";
    if !skip::root(NAME) || !skip::program(NAME, "redis-server") || !skip::program(NAME, "redis-benchmark") {
        return;
    }
    let scratch = Scratch::new();
    let port = free_port().to_string();
    let number: u16 = port.parse().expect("a port");
    let pid_file = scratch.file("pid");
    let mut traced = tracer::with_buffer(&scratch, "64M");
    traced
        .command
        .args(["--", "redis-server", "--bind", "127.0.0.1", "--port", &port])
        .args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--dir"])
        .arg(scratch.path())
        .arg("--pidfile")
        .arg(&pid_file);
    let (child, report) = traced.start();
    let mut server = Server {
        child,
        pid_file: Some(pid_file),
    };
    wait_for(&mut server.child, number, "PING\r\nQUIT\r\n", "PONG");
    let status = Command::new("redis-benchmark")
        .args(["-p", &port, "-n", "5000", "-c", "10", "-d", "300", "-r", "5000", "-q"])
        .args(["-t", "set,get,lpush,hset,sadd"])
        .stdout(Stdio::null())
        .status()
        .expect("starting redis-benchmark");
    assert!(status.success(), "redis-benchmark ended with {status}");
    let _closed = ask(number, "SHUTDOWN NOSAVE\r\n");
    let status = server.child.wait().expect("waiting for memtrace");
    assert!(status.success(), "memtrace ended with {status}");
    let report = report.read();
    let mut differences = Differences::default();
    tracer::few_are_unknown("redis-server", &report, &mut differences);
    let allocator = &report["target"]["libc"];
    // Debian links jemalloc; where another one is linked, it must be named as well.
    let evidence = allocator["evidence"].as_str().unwrap_or_default();
    match allocator["kind"].as_str() {
        Some("jemalloc") if evidence.contains("jemalloc") => {
            if !report["calls"].is_null() {
                differences.add(format!("calls of glibc's malloc: {}", report["calls"]));
            }
            if tracer::direct(&report, "other_allocator") == 0 {
                differences.add("no system call is jemalloc's".to_owned());
            }
        }
        Some("glibc") if evidence.contains("libc.so.6") => {}
        _ => differences.add(format!("the allocator of redis: {allocator}")),
    }
    differences.check("redis-server", &report);
}
