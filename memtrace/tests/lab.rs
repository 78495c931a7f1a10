//! `memtrace lab` as a user runs it: verdicts, forms of output, an early end, nothing left behind. None of this needs
//! privileges; as root, the same runs are traced as well.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};

use common::lab::{document, experiment, figure, in_memory, keeps};
use common::run::{fails, finish, memtrace, run, said};
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::{binary, glibc, skip};
use serde_json::Value;

#[test]
fn the_list_names_every_experiment_once() {
    let ran = run(&["lab", "list"]);
    said(&ran, 0, &[]);
    for number in 1..=20 {
        let lines = ran
            .stdout
            .lines()
            .filter(|line| line.trim_start().starts_with(&format!("{number} ")));
        assert_eq!(lines.count(), 1, "experiment {number} in {}", ran.stdout);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    fails(
        &["lab", "brk-stepps"],
        &["no experiment \"brk-stepps\"", "memtrace lab list"],
    );
    fails(&["lab", "21"], &["no experiment \"21\""]);
    fails(&["lab", "1", "--dir", "/no/such/place"], &["/no/such/place"]);
    fails(
        &["lab", "1", "--programs", "/no/such/program"],
        &["/no/such/program", "built and installed together"],
    );
    said(&run(&["lab", "--loader", "/lib/ld.so"]), 2, &["--library-path"]);
    said(&run(&["lab", "--file-size", "much"]), 2, &["a size looks like"]);
}

#[test]
fn more_than_a_gibibyte_is_asked_about() {
    fails(
        &["lab", "direct-io", "--file-size", "2G"],
        &["take up to 2 080 MiB of disk", "--yes"],
    );
}

#[test]
fn heap_claims_are_decided_by_figures_of_this_run() {
    let document = document(&["brk-steps", "one-step", "large-block", "leak", "ceiling", "knobs"]);
    for entry in document["experiments"].as_array().unwrap() {
        assert_ne!(entry["verdict"], "cannot_tell", "{:#}", entry["because"]);
        assert!(!entry["figures"].as_array().unwrap().is_empty(), "{}", entry["name"]);
    }
    let steps = experiment(&document, "brk-steps");
    let (count, step, growth) = (figure(steps, "steps"), figure(steps, "step"), figure(steps, "growth"));
    assert!(
        (count * step - growth).abs() < step,
        "{count} steps of {step} make {growth}"
    );
    assert_eq!(
        figure(steps, "against_rule"),
        0.0,
        "glibc's rule predicts where the break ends"
    );
    assert_eq!(figure(experiment(&document, "leak"), "lost_found"), 100.0);
}

#[test]
fn heap_claims_are_decided_under_every_glibc() {
    let releases = glibc::releases();
    let Some(programs) = glibc::lab(&releases) else {
        let why = "no lab built with an old glibc (cargo xtask test builds it)";
        return skip::skip("heap_claims_are_decided_under_every_glibc", why);
    };
    for release in &releases {
        let words = ["brk-steps", "one-step", "free-keeps", "trim", "large-block", "leak"];
        let [programs, loader, libraries] =
            [&programs, &release.loader, &release.library_path].map(|path| path.to_str().unwrap());
        let place = ["--programs", programs, "--loader", loader, "--library-path", libraries];
        let document = document(&[words.as_slice(), place.as_slice()].concat());
        let shown = release.shown();
        let (major, minor) = release.version;
        assert_eq!(document["machine"]["glibc"], format!("{major}.{minor}"), "{shown}");
        for name in words {
            let entry = experiment(&document, name);
            // From 2.43 on the thread cache's own structure is made by the first free and pins the heap.
            let expected = if name == "trim" && release.version >= (2, 43) {
                assert!(
                    entry["because"][0]
                        .as_str()
                        .unwrap()
                        .contains("thread cache's own structure")
                );
                "does_not_hold"
            } else {
                "holds"
            };
            assert_eq!(entry["verdict"], expected, "{shown}: {name}: {:#}", entry["because"]);
        }
        assert_eq!(
            figure(experiment(&document, "brk-steps"), "against_rule"),
            0.0,
            "{shown}"
        );
        assert_eq!(figure(experiment(&document, "leak"), "lost_found"), 100.0, "{shown}");
    }
}

#[test]
fn page_cache_claims_leave_no_file_behind() {
    let scratch = Scratch::new();
    let directory = scratch.path().to_str().unwrap();
    let words = ["page-cache", "fadvise", "files", "--file-size", "16M", "--dir"];
    let document = document(&[words.as_slice(), &[directory]].concat());
    let left: Vec<_> = fs::read_dir(scratch.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    if in_memory(scratch.path()) {
        return skip::skip(
            "page_cache_claims_leave_no_file_behind",
            "the temporary directory is no disk",
        );
    }
    let fadvise = experiment(&document, "fadvise");
    assert!(figure(fadvise, "before") >= 99.0, "{fadvise:#}");
    assert!(figure(fadvise, "neighbour") >= 99.0, "{fadvise:#}");
}

#[test]
fn the_files_of_a_process_are_told_with_what_is_cached() {
    let pid = std::process::id().to_string();
    let ran = run(&["explain", "--pid", &pid, "--files", "--output", "json"]);
    said(&ran, 0, &[]);
    let document: Value = serde_json::from_str(&ran.stdout).expect("the document is JSON");
    keeps(&document, "files.schema.json");
    let program = std::env::current_exe().unwrap();
    let files = document["files"].as_array().unwrap();
    let own = files
        .iter()
        .find(|file| file["path"] == program.to_str().unwrap())
        .expect("this program is mapped");
    assert!(
        own["mapped"] == true && own["cached_bytes"].as_u64().unwrap() > 0,
        "{own}"
    );
}

#[test]
fn pictures_and_the_page_stand_alone() {
    binary("memtrace-lab");
    let scratch = Scratch::new();
    let (pictures, page) = (scratch.file("pictures"), scratch.file("lab.html"));
    let ran = run(&[
        "lab",
        "1",
        "12",
        "--svg",
        pictures.to_str().unwrap(),
        "--html",
        page.to_str().unwrap(),
    ]);
    said(&ran, 0, &[]);
    for words in ["CLAIM", "VERDICT", "132 KiB", "claimed", "2 of 2 claims"] {
        assert!(ran.stdout.contains(words), "{words:?} is missing in {}", ran.stdout);
    }
    for name in ["brk-steps.svg", "ceiling.svg"] {
        let picture = fs::read_to_string(pictures.join(name)).unwrap();
        assert!(picture.starts_with("<svg") && picture.contains("MiB"), "{name}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 2);
    let foreign = page.replace("http://www.w3.org/2000/svg", "");
    assert!(
        !foreign.contains("http") && !foreign.contains("src="),
        "the page fetches something"
    );
}

#[test]
fn an_early_end_keeps_what_is_done() {
    binary("memtrace-lab");
    let scratch = Scratch::new();
    let mut child = memtrace(&[
        "lab",
        "one-step",
        "allocators",
        "runtimes",
        "--dir",
        scratch.path().to_str().unwrap(),
    ])
    .spawn()
    .expect("memtrace can be started");
    // The first experiment is printed as soon as it is made; the second one takes long.
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut before = String::new();
    while !before.contains("ALONE") {
        assert_ne!(
            out.read_line(&mut before).expect("it prints text"),
            0,
            "it ended early: {before}"
        );
    }
    let pid = i32::try_from(child.id()).unwrap();
    // SAFETY: the child has not been waited for, so the id is still its own.
    unsafe { libc::kill(pid, libc::SIGINT) };
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("it prints text");
    let ran = finish(child);
    assert_eq!(ran.code, Some(1), "an incomplete run says so: {ran:?}");
    assert!(rest.contains("ended early; not made: allocators, runtimes"), "{rest}");
    let left: Vec<_> = fs::read_dir(scratch.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
