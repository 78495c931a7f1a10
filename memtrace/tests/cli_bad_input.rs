//! Bad input: a clear sentence, an exit status, nothing on standard output. None of this needs privileges.

mod common;

use std::fs;
use std::process::{Command, Stdio};

use common::run::{Victim, fails, finish, memtrace, run, said};
use memtrace::trace_file::{Header, Writer};
use memtrace_analysis::codec::ENCODING_VERSION;
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::skip;

#[test]
fn a_command_line_without_sense_is_refused() {
    for (line, words) in [
        ("", "what to trace"),
        ("--for 10s", "what to trace"),
        ("--pid 0", "a process id is a number"),
        ("--pid -7", "a process id is a number"),
        ("--pid 4242 --for -1s", "a duration looks like 30s"),
        ("--pid 4242 --for soon", "a duration looks like 30s"),
        ("--pid 4242 --for 0s", "no time at all"),
        ("--pid 4242 --for 10parsecs", "'parsecs' is no unit of time"),
        ("--pid 4242 --buffer tiny", "a size looks like"),
        ("--pid 4242 --output xml", "text, json"),
        ("--pid 4242 -- ls", "cannot be used with"),
        ("ls -l", "memtrace [OPTIONS] -- COMMAND"),
        ("replay", "FILE"),
    ] {
        let args: Vec<&str> = line.split_whitespace().collect();
        let ran = run(&args);
        said(&ran, 2, &[words]);
        assert_eq!(ran.stdout, "", "{line}");
    }
}

#[test]
fn a_process_that_does_not_exist() {
    // A process that has just ended leaves an id that nobody has.
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let pid = child.id().to_string();
    fails(&["--pid", &pid], &["there is no process", &pid]);
    fails(&["probes", "--pid", &pid], &["there is no process", &pid]);
}

#[test]
fn a_name_that_nobody_has() {
    fails(&["--comm", "no-such-name"], &["no process is named no-such-name"]);
    fails(&["--cgroup", "no/such/group"], &["no/such/group"]);
}

#[test]
fn a_thread_of_the_kernel() {
    let name = fs::read_to_string("/proc/2/comm").unwrap_or_default();
    if name.trim() != "kthreadd" {
        return skip::skip("a_thread_of_the_kernel", "process 2 is not one here (a PID namespace)");
    }
    for verb in [
        &["--pid", "2"][..],
        &["explain", "--pid", "2"],
        &["explain", "--files", "--pid", "2"],
    ] {
        fails(verb, &["process 2 (kthreadd) is a thread of the kernel"]);
    }
}

#[test]
fn a_process_that_has_ended_and_was_not_waited_for() {
    let child = Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    // A zombie has no memory: its list of mappings is empty from the moment it is one.
    while !fs::read_to_string(format!("/proc/{pid}/stat"))
        .unwrap()
        .contains(") Z ")
    {
        std::thread::yield_now();
    }
    let pid = pid.to_string();
    let pid = pid.as_str();
    for verb in [
        &["--pid", pid][..],
        &["explain", "--pid", pid],
        &["explain", "--files", "--pid", pid],
    ] {
        fails(verb, &["has ended already", "zombie"]);
    }
    finish(child);
}

#[test]
fn a_thread_that_is_no_process() {
    let mut victim = Victim::start(
        "python3",
        &[
            "-c",
            "import threading\nthreading.Thread(target=input).start()\nprint('up', flush=True)",
        ],
    );
    victim.hear(3);
    let pid = victim.pid();
    let tid = fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .find(|tid| *tid != pid.to_string())
        .expect("it has a second thread");
    fails(&["--pid", &tid], &["is a thread of process", &pid.to_string()]);
}

#[test]
fn memtrace_does_not_trace_itself() {
    let mut child = memtrace(&["--comm", "memtrace-self"]);
    said(&finish(child.spawn().unwrap()), 1, &["no process is named"]);
}

#[test]
fn files_that_are_no_traces() {
    let scratch = Scratch::new();
    let foreign = file(&scratch, "foreign", b"\x7fELF and so on, long enough to hold a header");
    let empty = file(&scratch, "empty", b"");
    let newer = file(&scratch, "newer", b"\x89MTR\r\n\x1a\n\x09\0\0\0\0\0\0\0\0\0\0\0");
    let cut = file(&scratch, "cut", b"\x89MTR\r\n");
    fails(&["replay", &foreign], &[&foreign, "no trace recorded by memtrace"]);
    fails(&["replay", &empty], &[&empty, "no trace recorded by memtrace"]);
    fails(&["replay", &newer], &[&newer, "format 9", "up to 1"]);
    fails(&["replay", &cut], &[&cut, "cut short"]);
    fails(&["replay", "/nowhere/t.mtr"], &["/nowhere/t.mtr", "No such file"]);
    fails(&["replay", "/"], &["/", "directory"]);
}

#[test]
fn files_that_are_no_libraries() {
    let scratch = Scratch::new();
    let text = file(&scratch, "text", b"not a library");
    fails(&["probes", "--file", &text], &[&text, "not an ELF file"]);
    fails(&["probes", "--file", "/nowhere.so"], &["/nowhere.so", "No such file"]);
    // An ELF file without malloc.
    fails(&["probes", "--file", "/proc/self/exe"], &["malloc"]);
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let mut child = memtrace(&["probes", "--file", "/proc/self/exe"]).spawn().unwrap();
    drop(child.stdout.take());
    // Whatever it has to say goes to standard error; a closed standard output must not make it panic.
    let ran = finish(child);
    assert!(!ran.stderr.contains("panicked"), "{ran:#?}");

    let mut child = memtrace(&["--help"]).spawn().unwrap();
    drop(child.stdout.take());
    let ran = finish(child);
    assert!(!ran.stderr.contains("panicked"), "{ran:#?}");
}

fn file(scratch: &Scratch, name: &str, bytes: &[u8]) -> String {
    let path = scratch.file(name);
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The depth of a pause came with the second.
#[test]
fn a_trace_whose_events_are_encoded_as_they_were_before_is_refused() {
    let scratch = Scratch::new();
    let file = scratch.file("old");
    let header = Header {
        memtrace: "0.0.9".to_owned(),
        architecture: "x86_64".to_owned(),
        kernel: "6.1.0".to_owned(),
        recorded_unix_s: 1_700_000_000,
        encoding: 1,
    };
    let bytes = Writer::new(Vec::new(), &header).unwrap().finish().unwrap();
    fs::write(&file, bytes).unwrap();
    let reads = format!("reads encoding {ENCODING_VERSION}");
    fails(
        &["replay".as_ref(), file.as_os_str()],
        &["its events have encoding 1", &reads, "written by memtrace 0.0.9"],
    );
}
