//! What can go wrong around a live trace: each a sentence and an exit status, and the process lives on.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use common::run::{Ran, Victim, finish, memtrace, run, said};
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::{binary, skip};
use serde_json::Value;

/// Someone who may do nothing.
const NOBODY: u32 = 65_534;

fn lab() -> String {
    binary("memtrace-lab").to_str().expect("a path in UTF-8").to_owned()
}

fn alive(victim: &Victim) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", victim.pid())).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn without_privileges_it_says_which() {
    if !skip::root("without_privileges_it_says_which") {
        return;
    }
    // The build directory may be closed to others.
    let scratch = Scratch::new();
    let copy = scratch.file("memtrace");
    std::fs::copy(env!("CARGO_BIN_EXE_memtrace"), &copy).unwrap();
    let sleeper = {
        let mut command = Command::new("cat");
        command
            .uid(NOBODY)
            .gid(NOBODY)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Victim(command.spawn().unwrap())
    };
    let as_nobody = |args: &[&str]| -> Ran {
        let mut command = Command::new(&copy);
        command.args(args).uid(NOBODY).gid(NOBODY);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        finish(command.spawn().unwrap())
    };
    let pid = sleeper.pid().to_string();
    let own = as_nobody(&["--pid", &pid, "--for", "1s"]);
    said(&own, 1, &["CAP_BPF", "root"]);
    assert_eq!(own.stdout, "");
    let command = as_nobody(&["--", "true"]);
    said(&command, 1, &["CAP_BPF", "root"]);
    let others = as_nobody(&["--pid", "1", "--for", "1s"]);
    said(
        &others,
        1,
        &["process 1", "not permitted", "hint: run memtrace as root"],
    );
    assert!(alive(&sleeper));
}

#[test]
fn commands_that_cannot_be_started() {
    if !skip::root("commands_that_cannot_be_started") {
        return;
    }
    said(
        &run(&["--", "no-such-command"]),
        127,
        &["no-such-command was not found"],
    );
    said(
        &run(&["--", "/etc/passwd"]),
        126,
        &["/etc/passwd may not be executed", "chmod"],
    );
    said(
        &run(&["--user", "no-such-user", "--", "true"]),
        1,
        &["there is no user no-such-user"],
    );
}

#[test]
fn a_command_runs_as_whom_it_is_told_and_its_status_is_its_own() {
    if !skip::root("a_command_runs_as_whom_it_is_told_and_its_status_is_its_own") {
        return;
    }
    let ran = run(&["--user", "nobody", "--", "sh", "-c", "id -un; exit 3"]);
    said(&ran, 0, &[]);
    assert!(
        ran.stdout.starts_with("nobody\n"),
        "the command's output comes first: {}",
        ran.stdout
    );
    assert!(ran.stdout.contains("exited with status 3"), "{}", ran.stdout);
    let ran = run(&["--", "sh", "-c", "kill -9 $$"]);
    said(&ran, 0, &[]);
    assert!(ran.stdout.contains("ended by signal 9"), "{}", ran.stdout);
}

#[test]
fn a_document_is_kept_apart_from_what_the_command_prints() {
    if !skip::root("a_document_is_kept_apart_from_what_the_command_prints") {
        return;
    }
    let ran = run(&["--output", "json", "--", "echo", "words of the command"]);
    said(&ran, 0, &["words of the command"]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["target"]["name"], "echo");
}

#[test]
fn a_full_disk_ends_the_record_and_not_the_trace() {
    if !skip::root("a_full_disk_ends_the_record_and_not_the_trace") {
        return;
    }
    // Full from the start: nothing is traced for an hour in vain.
    said(
        &run(&["--record", "/dev/full", "--", "true"]),
        1,
        &["/dev/full", "No space left"],
    );

    // Full after a while, on a file system of 16 KiB that only this run sees.
    let scratch = Scratch::new();
    let script = "mount -t tmpfs -o size=16k none \"$1\" && \"$2\" --record \"$1/t.mtr\" -- \"$3\" mixed; status=$?; \
                  \"$2\" replay \"$1/t.mtr\" --output json --report-to \"$4\"; echo \"status $status, replay $?\"";
    let whole = scratch.file("mount");
    std::fs::create_dir(&whole).unwrap();
    let kept = scratch.file("kept.json");
    let child = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .args([
            whole.as_os_str(),
            env!("CARGO_BIN_EXE_memtrace").as_ref(),
            lab().as_ref(),
            kept.as_os_str(),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let ran = finish(child);
    said(
        &ran,
        0,
        &[
            "No space left",
            "the record ends here, the trace goes on",
            "is not complete",
            "cut short",
        ],
    );
    assert!(
        ran.stdout.contains("HEAP GROWTH"),
        "the trace has its report: {}",
        ran.stdout
    );
    assert!(ran.stdout.ends_with("status 1, replay 1\n"), "{}", ran.stdout);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(kept).unwrap()).unwrap();
    assert_eq!(
        report["coverage"]["ended"],
        Value::Null,
        "what was kept can be replayed, and shows that it has no end"
    );
}

#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    if !skip::root("a_reader_that_leaves_ends_it_quietly") {
        return;
    }
    for args in [&["--events"][..], &["--output", "json"], &[]] {
        let lab = lab();
        let mut args = args.to_vec();
        args.extend(["--", &lab, "brk-steps"]);
        let mut child = memtrace(&args).spawn().unwrap();
        drop(child.stdout.take());
        let ran = finish(child);
        // The lab's own lines go the same way in text form, and it minds; memtrace does not. It may find nobody there
        // at its first event already, before it has said that it started.
        said(&ran, 0, &[]);
        assert!(!ran.stderr.contains("roken pipe"), "{ran:#?}");
    }
}

#[test]
fn ctrl_c_ends_with_the_report() {
    if !skip::root("ctrl_c_ends_with_the_report") {
        return;
    }
    let victim = Victim::start("cat", &[]);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut child = memtrace(&["--pid", &victim.pid().to_string(), "--output", "json"])
            .spawn()
            .unwrap();
        let mut talk = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        talk.read_line(&mut line).unwrap();
        assert!(line.contains("attached to cat"), "{line}");
        let pid = i32::try_from(child.id()).unwrap();
        // SAFETY: the child has not been waited for, so the id is its own.
        unsafe { libc::kill(pid, signal) };
        let ran = finish(child);
        assert_eq!(ran.code, Some(0), "{ran:#?}");
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(report["coverage"]["ended"], "interrupted");
        assert!(alive(&victim));
    }
}

#[test]
fn a_process_that_ends_ends_the_trace() {
    if !skip::root("a_process_that_ends_ends_the_trace") {
        return;
    }
    let mut victim = Victim::start("cat", &[]);
    let mut child = memtrace(&["--pid", &victim.pid().to_string(), "--output", "json"])
        .spawn()
        .unwrap();
    let mut talk = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    talk.read_line(&mut line).unwrap();
    victim.0.kill().unwrap();
    let ran = finish(child);
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["coverage"]["ended"], "process_exited");
    assert_eq!(report["target"]["exit_status"], 9);
}

#[test]
fn rights_that_a_running_trace_does_not_need_are_given_up() {
    if !skip::root("rights_that_a_running_trace_does_not_need_are_given_up") {
        return;
    }
    // A folder that only its owner, or root's override, may write to.
    let scratch = Scratch::new();
    std::os::unix::fs::chown(scratch.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let report = scratch.file("report.json");
    let victim = Victim::start("cat", &[]);
    let pid = victim.pid().to_string();
    let mut child = memtrace(&[
        // What may change is to be changed with the right to do so.
        "--depth",
        "calls",
        "--pid",
        &pid,
        "--output",
        "json",
        "--report-to",
        report.to_str().unwrap(),
    ])
    .spawn()
    .unwrap();
    let mut talk = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    talk.read_line(&mut line).unwrap();
    assert!(line.contains("attached to cat"), "{line}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let field = |key: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap()
            .trim()
            .to_owned()
    };
    for set in ["CapEff:", "CapPrm:"] {
        let mask = u64::from_str_radix(&field(set), 16).unwrap();
        for (number, name) in [(1, "CAP_DAC_OVERRIDE"), (7, "CAP_SETUID"), (21, "CAP_SYS_ADMIN")] {
            assert_eq!(mask >> number & 1, 0, "{set} has {name}");
        }
    }
    assert_eq!(field("NoNewPrivs:"), "1");
    // SAFETY: the child has not been waited for, so the id is its own.
    unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGINT) };
    let ran = finish(child);
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!(report["coverage"]["ended"], "interrupted");
}

#[test]
fn several_processes_have_a_section_each_and_one_that_is_gone_is_left_out() {
    if !skip::root("several_processes_have_a_section_each_and_one_that_is_gone_is_left_out") {
        return;
    }
    let (one, two) = (Victim::start("cat", &[]), Victim::start("cat", &[]));
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let pids = format!("{},{},{}", one.pid(), two.pid(), gone.id());
    let ran = run(&["--pid", &pids, "--for", "300ms", "--output", "json"]);
    said(
        &ran,
        0,
        &["attached to 2 processes", &format!("process {} is left out", gone.id())],
    );
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    common::schema::check(&ran.stdout);
    let mut found: Vec<u64> = document["processes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|report| report["target"]["pid"].as_u64())
        .collect();
    found.sort_unstable();
    let mut expected = vec![u64::from(one.pid()), u64::from(two.pid())];
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert!(alive(&one) && alive(&two));
}

#[test]
fn the_kernel_side_talks_only_when_asked() {
    if !skip::root("the_kernel_side_talks_only_when_asked") {
        return;
    }
    let script = ["--follow", "--", "sh", "-c", "cat /dev/null; true"];
    let quiet = run(&script);
    said(&quiet, 0, &[]);
    assert!(!quiet.stderr.contains("kernel side"), "{quiet:#?}");
    let mut asked = vec!["--debug-bpf"];
    asked.extend(script);
    said(&run(&asked), 0, &["memtrace: kernel side: process", "made process"]);
}

#[test]
fn a_process_that_ends_while_memtrace_attaches() {
    if !skip::root("a_process_that_ends_while_memtrace_attaches") {
        return;
    }
    let scratch = Scratch::new();
    let record = scratch.file("record");
    assert!(Command::new("mkfifo").arg(&record).status().unwrap().success());
    let victim = Victim::start("cat", &[]);
    let pid = victim.pid();
    let memtrace = memtrace(&["--pid", &pid.to_string(), "--record", record.to_str().unwrap()])
        .spawn()
        .unwrap();
    // Opening a FIFO to write waits for a reader: memtrace has looked at the process by then, and has not attached.
    wait_until_opening(&memtrace);
    drop(victim);
    let reader = std::fs::File::open(&record).unwrap();
    let ran = finish(memtrace);
    drop(reader);
    said(
        &ran,
        1,
        &[&format!("process {pid} (cat) ended while memtrace was attaching to it")],
    );
    assert_eq!(ran.stdout, "");
}

/// Waits until the process sleeps in openat, as it does for nothing but a FIFO whose other end nobody holds.
fn wait_until_opening(child: &std::process::Child) {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
    let openat = format!("{} ", libc::SYS_openat);
    while !(read("syscall").starts_with(&openat) && read("stat").contains(") S ")) {
        assert!(
            !read("stat").contains(") Z "),
            "memtrace ended before it opened the record"
        );
        std::thread::yield_now();
    }
}

/// A directory with what memtrace and a program need, which is no mount of its own, and where nobody has mounted tracefs.
#[test]
fn it_traces_from_inside_a_chroot() {
    if !skip::root("it_traces_from_inside_a_chroot") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.file("root");
    for directory in ["proc", "sys", "tmp"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    for (name, from) in [("memtrace", env!("CARGO_BIN_EXE_memtrace")), ("lab", &lab())] {
        // By another process: a file that this one has open for writing while another test forks cannot be executed.
        let copied = Command::new("cp").arg(from).arg(root.join(name)).status();
        assert!(copied.unwrap().success());
    }
    // What is mounted goes with the namespace.
    let script = "set -e; cd \"$1\"
        for directory in usr lib lib64; do
            if [ -d /$directory ]; then mkdir -p $directory; mount --bind /$directory $directory; fi
        done
        mount -t proc proc proc; mount -t sysfs sysfs sys
        exec chroot . /memtrace --output json -- /lab brk-steps";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&root);
    let ran = finish(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let report: Value = serde_json::from_str(&ran.stdout).expect("a document");
    let growth = &report["growth"];
    assert!(growth["brk_steps_total"].as_u64() >= Some(6), "{growth:#}");
    assert_eq!(growth["brk_steps_matching"], growth["brk_steps_total"], "{growth:#}");
}
