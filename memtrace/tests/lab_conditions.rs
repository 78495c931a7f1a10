//! `memtrace lab` where something stands between it and the claims: the environment's settings, another allocator, no
//! disk, places that cannot be written, an impatient user.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::lab::{document_with, experiment, in_memory};
use common::run::{fails, finish, memtrace, run, said};
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::{binary, skip};

#[test]
fn settings_of_the_environment_are_named_as_the_reason_they_are() {
    let document = document_with(&["brk-steps", "large-block"], &[("MALLOC_TOP_PAD_", "0")]);
    assert_eq!(document["machine"]["inherited"][0], "MALLOC_TOP_PAD_=0");
    let steps = experiment(&document, "brk-steps");
    assert_eq!(steps["verdict"], "does_not_hold");
    for because in steps["because"].as_array().unwrap() {
        let because = because.as_str().unwrap();
        assert!(
            because.contains("the environment sets MALLOC_TOP_PAD_=0: without it"),
            "{because}"
        );
    }
    // The padding has no part in this one.
    assert_eq!(experiment(&document, "large-block")["verdict"], "holds");
}

#[test]
fn nothing_is_said_of_glibc_where_another_allocator_serves() {
    const NAME: &str = "nothing_is_said_of_glibc_where_another_allocator_serves";
    let library = format!("/usr/lib/{}-linux-gnu/libjemalloc.so.2", std::env::consts::ARCH);
    if !Path::new(&library).exists() {
        return skip::skip(NAME, "no jemalloc to put in front (Debian: libjemalloc2)");
    }
    let words = ["brk-steps", "free-keeps", "threshold", "leak", "allocators"];
    let document = document_with(&words, &[("LD_PRELOAD", &library)]);
    for name in words {
        let entry = experiment(&document, name);
        assert_eq!(entry["verdict"], "cannot_tell", "{name}: {:#}", entry["because"]);
        let because = entry["because"][0].as_str().unwrap();
        assert!(because.contains("libjemalloc"), "{name}: {because}");
    }
}

#[test]
fn nothing_is_said_of_disks_where_there_is_none() {
    const NAME: &str = "nothing_is_said_of_disks_where_there_is_none";
    let place = Path::new("/dev/shm");
    if !place.is_dir() || !in_memory(place) {
        return skip::skip(NAME, "no tmpfs at /dev/shm");
    }
    let words = ["direct-io", "page-cache", "fadvise", "files"];
    let document = document_with(&[words.as_slice(), &["--dir", "/dev/shm"]].concat(), &[]);
    for name in words {
        let entry = experiment(&document, name);
        assert_eq!(entry["verdict"], "cannot_tell", "{name}: {:#}", entry["because"]);
        let because = entry["because"][0].as_str().unwrap();
        assert!(because.contains("kept in memory (tmpfs)"), "{name}: {because}");
    }
}

#[test]
fn places_that_cannot_be_written_are_told_before_anything_is_done() {
    let scratch = Scratch::new();
    let file = scratch.file("file");
    fs::write(&file, "kept").unwrap();
    let file = file.to_str().unwrap();
    fails(&["lab", "1", "--html", "/no/such/place.html"], &["/no/such/place.html"]);
    fails(&["lab", "1", "--html", "/"], &["writing /", "directory"]);
    fails(&["lab", "1", "--svg", file], &["making", file]);
    fails(&["lab", "1", "--dir", file], &["is no directory", "--dir"]);
    assert_eq!(fs::read_to_string(file).unwrap(), "kept");
    // Where nothing came of it, nothing is left of it.
    let (page, pictures) = (scratch.file("page.html"), scratch.file("no/such"));
    let [page, pictures] = [&page, &pictures].map(|path| path.to_str().unwrap());
    fails(
        &["lab", "1", "--html", page, "--programs", "/bin/true"],
        &["/bin/true", "lab"],
    );
    assert!(!Path::new(page).exists());
    fails(&["lab", "list", "--svg", pictures], &["the list is text"]);
    fails(&["lab", "list", "--output", "json"], &["the list is text"]);
    fails(&["lab", "1", "list"], &["stands alone"]);
    said(&run(&["lab", "15", "--file-size", "4K"]), 2, &["1M and more"]);
    fails(&["lab", "15", "--file-size", "17179869183G"], &["of disk", "--yes"]);
}

#[test]
fn an_experiment_is_made_once_whatever_it_is_called() {
    let document = document_with(&["one-step", "2", "one-step"], &[]);
    assert_eq!(document["experiments"].as_array().unwrap().len(), 1);
}

#[test]
fn two_signals_at_once_leave_no_file_behind() {
    binary("memtrace-lab");
    let (scratch, path) = (Scratch::new(), Scratch::new());
    // A runtime that says nothing and waits, so that the lab's sources lie there meanwhile.
    let java = path.file("java");
    fs::write(&java, "#!/bin/sh\nread line\n").unwrap();
    fs::set_permissions(&java, fs::Permissions::from_mode(0o755)).unwrap();
    let words = ["lab", "runtimes", "--dir", scratch.path().to_str().unwrap()];
    let child = memtrace(&words).env("PATH", path.path()).spawn();
    let child = child.expect("memtrace can be started");
    let entries = || fs::read_dir(scratch.path()).unwrap().count();
    let began = Instant::now();
    while entries() == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "no sources were written");
        std::thread::yield_now();
    }
    let pid = i32::try_from(child.id()).unwrap();
    for signal in [libc::SIGINT, libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the child has not been waited for, so the id is still its own.
        unsafe { libc::kill(pid, signal) };
    }
    let ran = finish(child);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("ended early; not made: runtimes"), "{ran:?}");
    assert_eq!(entries(), 0);
}

#[test]
fn runtimes_that_cannot_be_run_are_skipped_with_a_word() {
    let path = Scratch::new();
    let program = |name: &str, text: &str, mode| {
        fs::write(path.file(name), text).unwrap();
        fs::set_permissions(path.file(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    program("java", "#!/bin/sh\nexit 3\n", 0o755);
    program("go", "", 0o644);
    let document = document_with(&["runtimes"], &[("PATH", path.path().to_str().unwrap())]);
    let entry = experiment(&document, "runtimes");
    assert_eq!(entry["verdict"], "cannot_tell");
    let notes: Vec<&str> = entry["notes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|note| note.as_str())
        .collect();
    let [jvm, go] = notes.as_slice() else {
        panic!("{notes:?}")
    };
    assert!(
        jvm.starts_with("JVM was skipped: ") && jvm.ends_with("java failed (exit status: 3) without a word"),
        "{jvm}"
    );
    assert!(
        go.starts_with("Go was skipped: starting ") && go.ends_with("go: Permission denied"),
        "{go}"
    );
}
