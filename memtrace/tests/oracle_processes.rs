//! Processes and threads that come and go in unusual ways: each is counted by itself, and none twice.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use memtrace_test_support::child::counts;
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::tracer::{self, Differences, number};
use memtrace_test_support::{binary, cc, skip};
use serde_json::Value;

/// Runs lives.c under memtrace: the parts of the report, the first process's first, and what the program said.
fn live(program: &Path, arguments: &[&str], follow: bool, scratch: &Scratch) -> (Vec<Value>, String) {
    let mut traced = tracer::with_buffer(scratch, "64M");
    if follow {
        traced.command.arg("--follow");
    }
    traced.command.arg("--").arg(program).args(arguments);
    let (document, said) = traced.run_and_hear();
    let parts = match document["processes"].as_array() {
        Some(parts) => parts.clone(),
        None => vec![document],
    };
    (parts, said)
}

fn compare(differences: &mut Differences, part: &Value, said: &str, who: &str) {
    let own = counts(said, who);
    for entry in ["malloc", "free"] {
        differences.compare(part, &format!("/calls/{entry}"), own[entry]);
    }
    for call in ["brk", "mmap", "mprotect"] {
        differences.compare(part, &format!("/syscalls/{call}/unknown"), 0);
    }
}

fn lives(scratch: &Scratch) -> std::path::PathBuf {
    cc::compile("lives", cc::Kind::Program, None, scratch)
}

/// Children by fork, vfork and clone, in memory of their own or their parent's.
#[test]
fn children_are_counted_apart_from_their_parents_or_not_at_all() {
    const NAME: &str = "children_are_counted_apart_from_their_parents_or_not_at_all";
    if !skip::root(NAME) {
        return;
    }
    let scratch = Scratch::new();
    let program = lives(&scratch);
    for (how, born, busy) in [("orphan", 1, 1), ("vfork", 3, 1), ("clone", 1, 1)] {
        for follow in [false, true] {
            let (parts, said) = live(&program, &[how], follow, &scratch);
            let mut differences = Differences::default();
            compare(&mut differences, &parts[0], &said, "parent");
            differences.compare(&parts[0], "/threads/forks", born);
            differences.compare(&parts[0], "/threads/forks_followed", if follow { born } else { 0 });
            let children = &parts[1..];
            if children.len() as u64 != if follow { born } else { 0 } {
                differences.add(format!("{} children have a part of the report", children.len()));
            }
            let working: Vec<&Value> = children
                .iter()
                .filter(|part| number(part, "/calls/malloc") > 0)
                .collect();
            if follow {
                assert_eq!(working.len(), busy, "{how}: children that allocate");
                compare(&mut differences, working[0], &said, "child");
            }
            differences.check(&format!("{how}, follow: {follow}"), &parts[0]);
        }
    }
}

/// There is room for 256 processes.
#[test]
fn children_beyond_the_room_there_is_are_said() {
    const NAME: &str = "children_beyond_the_room_there_is_are_said";
    const ROOM: u64 = 256;
    const CHILDREN: u64 = 270;
    if !skip::root(NAME) {
        return;
    }
    let scratch = Scratch::new();
    let program = lives(&scratch);
    let (parts, said) = live(&program, &["many", &CHILDREN.to_string()], true, &scratch);
    let mut differences = Differences::default();
    compare(&mut differences, &parts[0], &said, "parent");
    differences.compare(&parts[0], "/threads/forks", CHILDREN);
    let followed = number(&parts[0], "/threads/forks_followed");
    // A child that has ended makes room.
    if followed < ROOM - 1 || parts.len() as u64 != followed + 1 {
        differences.add(format!("{followed} children followed, {} parts", parts.len()));
    }
    let not_seen = parts[0]["coverage"]["not_seen"].to_string();
    let expected = format!("{} child process", CHILDREN - followed);
    if followed < CHILDREN && !not_seen.contains(&expected) {
        differences.add(format!("not said: {not_seen}"));
    }
    for part in &parts[1..] {
        differences.compare(part, "/calls/malloc", 10);
    }
    differences.check("many children", &parts[0]);
}

#[test]
fn threads_and_processes_that_end_inside_malloc() {
    const NAME: &str = "threads_and_processes_that_end_inside_malloc";
    if !skip::root(NAME) {
        return;
    }
    let scratch = Scratch::new();
    let program = lives(&scratch);
    for (how, status) in [("dies-inside", 0), ("killed", libc::SIGSEGV as u64)] {
        let (parts, said) = live(&program, &[how], false, &scratch);
        let mut differences = Differences::default();
        compare(&mut differences, &parts[0], &said, "parent");
        differences.compare(&parts[0], "/target/exit_status", status);
        differences.compare(&parts[0], "/coverage/lost_events", 0);
        differences.check(how, &parts[0]);
    }
}

/// The thread takes the process's id. The kernel's probes of one process do not outlive that; what is missed until there
/// are new ones is said.
#[test]
fn an_exec_by_another_thread_than_the_first() {
    const NAME: &str = "an_exec_by_another_thread_than_the_first";
    if !skip::root(NAME) {
        return;
    }
    let scratch = Scratch::new();
    let program = lives(&scratch);
    let (parts, said) = live(&program, &["thread-exec"], false, &scratch);
    let mut differences = Differences::default();
    let own = counts(&said, "parent");
    differences.compare(&parts[0], "/target/execs", 1);
    differences.compare(&parts[0], "/target/exit_status", 0);
    differences.compare(&parts[0], "/target/pid", own["pid"]);
    let (malloc, free) = (number(&parts[0], "/calls/malloc"), number(&parts[0], "/calls/free"));
    // The first thread may have been stopped between two calls, or inside of one.
    if malloc < 20 || malloc - free > 1 {
        differences.add(format!("{malloc} calls of malloc, {free} of free"));
    }
    let not_seen = parts[0]["coverage"]["not_seen"].to_string();
    if !not_seen.contains("since an exec") && !not_seen.contains("between an exec and the attachment") {
        differences.add(format!("not said: {not_seen}"));
    }
    differences.check("exec by a thread", &parts[0]);
}

/// Containers of one image map one file by several mounts: with --follow, where a library is probed in all that map it,
/// each hit must count once all the same.
#[test]
fn one_library_in_two_containers_is_probed_once() {
    const NAME: &str = "one_library_in_two_containers_is_probed_once";
    const CALLS: u64 = 1000;
    if !skip::root(NAME) || !skip::program(NAME, "unshare") {
        return;
    }
    if !fs::read_to_string("/proc/filesystems").is_ok_and(|list| list.contains("\toverlay\n")) {
        return skip::skip(NAME, "this kernel has no overlayfs");
    }
    let scratch = Scratch::new();
    let source = format!(
        "#include <stdlib.h>\n#include <unistd.h>\nint main(void) {{ char c; free(malloc(1));\n\
         if (write(1, \"r\", 1) != 1 || read(0, &c, 1) != 1) return 1;\n\
         for (int i = 0; i < {CALLS}; i++) free(malloc(i)); return 0; }}\n"
    );
    let image = scratch.file("image");
    fs::create_dir(&image).expect("making a directory");
    let program =
        cc::build("cc", "image/program", &source, &[], &scratch).unwrap_or_else(|problem| panic!("{problem}"));
    let libc = memtrace_test_support::glibc::system_libc();
    for (file, name) in [
        (libc.as_path(), "libc.so.6"),
        (memtrace_test_support::glibc::system_loader(), "loader"),
    ] {
        fs::copy(file, image.join(name)).expect("copying a library");
    }
    assert!(program.is_file());
    // Two mounts of the image, a program in each, and one memtrace for both. The programs go on when it says so.
    let script = r#"
        set -e; cd "$1"; memtrace="$2"
        mkfifo ready1 ready2 go1 go2
        for i in 1 2; do
            mkdir upper$i work$i root$i
            mount -t overlay overlay -o lowerdir=image,upperdir=upper$i,workdir=work$i root$i
            root$i/loader --library-path root$i root$i/program <go$i >ready$i &
            eval "pid$i=$!"
        done
        exec 3>go1 4>go2 5<ready1 6<ready2
        head -c 1 <&5 >/dev/null; head -c 1 <&6 >/dev/null
        mkfifo talk
        "$memtrace" --pid $pid1,$pid2 --follow --output json --report-to report.json 2>talk &
        tracer=$!
        exec 7<talk
        while read -r line <&7; do case "$line" in *"attached to"*) break;; esac; done
        echo >&3; echo >&4
        wait $pid1 $pid2
        cat <&7 >&2
        wait $tracer
    "#;
    let output = Command::new("unshare")
        .args(["--mount", "bash", "-c", script, "bash"])
        .arg(scratch.path())
        .arg(binary("memtrace"))
        .stdin(Stdio::null())
        .output()
        .expect("starting unshare");
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{talk}");
    let text = fs::read_to_string(scratch.file("report.json")).expect("reading the report");
    let document: Value = serde_json::from_str(&text).expect("the report is JSON");
    let parts = document["processes"].as_array().expect("a part for each process");
    assert_eq!(parts.len(), 2, "{talk}");
    for part in parts {
        let mut differences = Differences::default();
        differences.compare(part, "/calls/malloc", CALLS);
        differences.compare(part, "/calls/free", CALLS);
        differences.check("one of two containers", part);
    }
}

/// The child of a process whose exec memtrace has not got to yet is not what its parent was before.
#[test]
fn a_child_made_right_after_an_exec_has_its_own_name() {
    const NAME: &str = "a_child_made_right_after_an_exec_has_its_own_name";
    if !(skip::root(NAME) && skip::program(NAME, "perl")) {
        return;
    }
    let mut parent = Command::new("sh")
        .args(["-c", "read word; exec perl -e 'fork; <STDIN>'"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("starting sh");
    let pid = parent.id();
    let mut memtrace = Command::new(binary("memtrace"))
        .args(["--follow", "--output", "json", "--pid", &pid.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starting memtrace");
    let mut talk = BufReader::new(memtrace.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("attached to") {
        line.clear();
        assert_ne!(talk.read_line(&mut line).unwrap(), 0, "memtrace did not attach");
    }
    let signal = |signal| {
        // SAFETY: a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(memtrace.id() as libc::pid_t, signal) }, 0);
    };
    signal(libc::SIGSTOP);
    let mut input = parent.stdin.take().unwrap();
    input.write_all(b"go\n").unwrap();
    let children = format!("/proc/{pid}/task/{pid}/children");
    // sh makes none: a child is perl's.
    while fs::read_to_string(&children).unwrap().is_empty() {
        std::thread::yield_now();
    }
    // It finds the exec, the fork and the wish to end all at once.
    signal(libc::SIGINT);
    signal(libc::SIGCONT);
    let output = memtrace.wait_with_output().unwrap();
    drop(input);
    parent.wait().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
    let names: Vec<&Value> = document["processes"]
        .as_array()
        .expect("two processes")
        .iter()
        .map(|part| &part["target"]["name"])
        .collect();
    assert_eq!(names, ["perl", "perl"]);
}
