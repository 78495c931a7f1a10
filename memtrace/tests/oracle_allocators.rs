//! Programs whose malloc is not the plain glibc's: the report names it, says how it was told, what cannot be seen, and
//! whose the system calls are all the same.

use std::path::Path;
use std::process::Command;

use memtrace_test_support::child::{Talker, counts};
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::tracer::{self, Attached, Differences, number};
use memtrace_test_support::{binary, cc, skip};
use serde_json::Value;

const PROGRAM: &str = include_str!("support/c/many.c");

/// Where Debian has libraries.
const DIRECTORY: &str = if cfg!(target_arch = "aarch64") {
    "/usr/lib/aarch64-linux-gnu"
} else {
    "/usr/lib/x86_64-linux-gnu"
};

/// File, its package, the kind that the report gives, and what it is called there.
const PRELOADED: [(&str, &str, &str, &str); 5] = [
    ("libjemalloc.so.2", "libjemalloc2", "jemalloc", "jemalloc"),
    (
        "libtcmalloc_minimal.so.4",
        "libtcmalloc-minimal4",
        "tcmalloc",
        "tcmalloc",
    ),
    ("libtcmalloc.so.4", "libgoogle-perftools4", "tcmalloc", "tcmalloc"),
    ("libmimalloc.so.2", "libmimalloc2.0", "mimalloc", "mimalloc"),
    (
        "libc_malloc_debug.so.0",
        "libc6 from 2.34 on",
        "unknown",
        "glibc's checking malloc",
    ),
];

#[test]
fn a_preloaded_allocator_is_named_and_its_system_calls_are_its_own() {
    const NAME: &str = "a_preloaded_allocator_is_named_and_its_system_calls_are_its_own";
    if !skip::root(NAME) {
        return;
    }
    let scratch = Scratch::new();
    let program = cc::build("cc", "many", PROGRAM, &[], &scratch).unwrap_or_else(|problem| panic!("{problem}"));
    for (file, package, kind, called) in PRELOADED {
        let library = Path::new(DIRECTORY).join(file);
        if !library.exists() {
            skip::skip(NAME, &format!("{file} is not installed (Debian: {package})"));
            continue;
        }
        let mut traced = tracer::spawning(&scratch, [&program]);
        traced.command.env("LD_PRELOAD", &library).env("MALLOC_CHECK_", "3");
        let report = traced.run();
        let mut differences = Differences::default();
        not_counted(&report, kind, &mut differences);
        let evidence = report["target"]["libc"]["evidence"].to_string();
        if !evidence.contains(called) || !evidence.contains("defined first by") {
            differences.add(format!("told so: {evidence}"));
        }
        if tracer::direct(&report, "other_allocator") == 0 {
            differences.add("no system call is its own".to_owned());
        }
        tracer::few_are_unknown(file, &report, &mut differences);
        differences.check(file, &report);
        // For people too.
        let mut command = Command::new(binary("memtrace"));
        command.arg("--").arg(&program).env("LD_PRELOAD", &library);
        let output = command.output().expect("starting memtrace");
        let text = String::from_utf8_lossy(&output.stdout).replace("\n          ", " ");
        assert!(text.contains(&format!("which is {called}")), "{text}");
    }
}

/// Healthy is nothing that can be said of books that are not read.
#[test]
fn a_look_at_a_process_of_another_allocator_says_so() {
    const NAME: &str = "a_look_at_a_process_of_another_allocator_says_so";
    if !skip::root(NAME) {
        return;
    }
    for (file, package, kind, _) in PRELOADED {
        let library = Path::new(DIRECTORY).join(file);
        if kind == "unknown" {
            continue;
        }
        if !library.exists() {
            skip::skip(NAME, &format!("{file} is not installed (Debian: {package})"));
            continue;
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo ready; read line"]).env("LD_PRELOAD", &library);
        let mut shell = Talker::start(&mut shell);
        shell.line_with("ready");
        let mut command = Command::new(binary("memtrace"));
        command.args(["explain", "--output", "json", "--pid", &shell.pid().to_string()]);
        let output = command.output().expect("starting memtrace");
        let look: Value = serde_json::from_slice(&output.stdout).expect("a document");
        let verdict = &look["verdict"];
        assert_eq!(verdict["kind"], "not_malloc", "{file}: {verdict:#}");
        assert!(verdict["text"].to_string().contains(file), "{file}: {verdict:#}");
    }
}

/// No call is counted, and nothing claims to be glibc's.
fn not_counted(report: &Value, kind: &str, differences: &mut Differences) {
    let found = &report["target"]["libc"]["kind"];
    if found != kind {
        differences.add(format!("the allocator: expected {kind}, memtrace says {found}"));
    }
    for counted in ["calls", "allocated", "freed", "live_blocks"] {
        if !report[counted].is_null() {
            differences.add(format!("{counted} was not counted: {}", report[counted]));
        }
    }
    let not_seen = report["coverage"]["not_seen"].to_string();
    if !not_seen.contains("no entry point is watched") {
        differences.add(format!("not said: {not_seen}"));
    }
    let proven = |finding: &&Value| finding["confidence"] == "proven";
    for finding in report["findings"].as_array().expect("a list").iter().filter(proven) {
        differences.add(format!("proven, although nothing was watched: {finding}"));
    }
}

#[test]
fn a_static_glibc_is_counted_with_symbols_and_named_without() {
    const NAME: &str = "a_static_glibc_is_counted_with_symbols_and_named_without";
    if !skip::root(NAME) {
        return;
    }
    let scratch = Scratch::new();
    for options in [&["-static"][..], &["-static-pie"]] {
        let program = cc::build("cc", "many", PROGRAM, options, &scratch).unwrap_or_else(|problem| panic!("{problem}"));
        let (report, said) = tracer::spawning(&scratch, [&program]).run_and_hear();
        let own = counts(&said, "calls");
        let mut differences = Differences::default();
        // Its start allocates a few blocks before main.
        for entry in ["malloc", "free"] {
            let (expected, found) = (own[entry], number(&report, &format!("/calls/{entry}")));
            if !(expected..=expected + 32).contains(&found) {
                differences.add(format!("{entry}: expected {expected}, memtrace says {found}"));
            }
        }
        if report["target"]["libc"]["kind"] != "glibc_static" {
            differences.add(report["target"]["libc"].to_string());
        }
        differences.check(&format!("{options:?}"), &report);

        let stripped = cc::build("cc", "bare", PROGRAM, &[options, &["-s"]].concat(), &scratch)
            .unwrap_or_else(|problem| panic!("{problem}"));
        let report = tracer::spawning(&scratch, [&stripped]).run();
        let mut differences = Differences::default();
        not_counted(&report, "glibc_static", &mut differences);
        differences.check(&format!("{options:?}, stripped"), &report);
    }
}

#[test]
fn musl_is_named_and_not_counted() {
    const NAME: &str = "musl_is_named_and_not_counted";
    if !skip::root(NAME) || !skip::program(NAME, "musl-gcc") {
        return;
    }
    let scratch = Scratch::new();
    for options in [&[][..], &["-static"]] {
        let program =
            cc::build("musl-gcc", "many", PROGRAM, options, &scratch).unwrap_or_else(|problem| panic!("{problem}"));
        let report = tracer::spawning(&scratch, [&program]).run();
        let mut differences = Differences::default();
        not_counted(&report, "musl", &mut differences);
        if tracer::direct(&report, "loader") > 0 {
            differences.add(String::from("musl's one file taken for a loader alone"));
        }
        differences.check(&format!("{options:?}"), &report);
    }
}

/// What is loaded a second time (dlmopen) is the same file: the calls of both are counted.
#[test]
fn two_libcs_in_one_process_are_counted_together() {
    const NAME: &str = "two_libcs_in_one_process_are_counted_together";
    const OTHER: &str = r#"
#include <stdlib.h>
int work(int n) { for (int i = 0; i < n; i++) free(malloc(100 + i)); return n; }
"#;
    if !skip::root(NAME) {
        return;
    }
    let scratch = Scratch::new();
    let other = cc::build("cc", "other.so", OTHER, &["-shared", "-fPIC"], &scratch)
        .unwrap_or_else(|problem| panic!("{problem}"));
    let source = format!(
        r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {{
    char c;
    void *apart = dlmopen(LM_ID_NEWLM, "{}", RTLD_NOW);
    int (*work)(int) = apart ? (int (*)(int))dlsym(apart, "work") : 0;
    if (!work || work(1) != 1) return 2;
    free(malloc(1));
    if (write(1, "ready\n", 6) != 6 || read(0, &c, 1) != 1) return 3;
    for (int i = 0; i < 500; i++) {{ free(malloc(200 + i)); if (work(2) != 2) return 4; }}
    return write(1, "done\n", 5) != 5;
}}
"#,
        other.display()
    );
    let program = cc::build("cc", "two", &source, &["-ldl"], &scratch).unwrap_or_else(|problem| panic!("{problem}"));
    let mut child = Talker::start(&mut Command::new(program));
    child.line_with("ready");
    let attached = Attached::to(child.pid(), &scratch);
    child.go_on();
    child.line_with("done");
    child.finish();
    let report = attached.finish();
    let mut differences = Differences::default();
    differences.compare(&report, "/calls/malloc", 1500);
    differences.compare(&report, "/calls/free", 1500);
    let not_seen = report["coverage"]["not_seen"].to_string();
    if !not_seen.contains("dlmopen") {
        differences.add(format!("not said: {not_seen}"));
    }
    differences.check("two libcs", &report);
}
