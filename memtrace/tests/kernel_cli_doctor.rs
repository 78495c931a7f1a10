//! What the doctor says of this machine and of processes, and that its exit status says the same.

mod common;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use common::run::{Ran, Victim, finish, run, said};
use common::schema;
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::skip;
use serde_json::Value;

const NOBODY: u32 = 65534;

fn answer(ran: &Ran) -> Value {
    schema::check_doctor(&ran.stdout);
    let answer: Value = serde_json::from_str(&ran.stdout).expect("a document");
    let expected = if answer["works"] == true { 0 } else { 1 };
    assert_eq!(ran.code, Some(expected), "{answer:#}");
    answer
}

fn depth<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let depths = answer["depths"].as_array().expect("a list");
    depths.iter().find(|depth| depth["depth"] == name).expect("each depth")
}

#[test]
fn a_process_is_looked_at_and_left_alone() {
    if !skip::root("a_process_is_looked_at_and_left_alone") {
        return;
    }
    let mut victim = Victim::start("sh", &["-c", "echo up; while :; do read line < /proc/self/stat; done"]);
    victim.hear(3);
    let pid = victim.pid().to_string();
    let answer = answer(&run(&["doctor", "--pid", &pid, "--output", "json"]));
    assert_eq!(answer["target"]["pid"], victim.pid());
    assert_eq!(answer["target"]["name"], "sh");
    let probes = answer["libc"]["probes"].as_array().expect("its libc is glibc");
    for function in ["malloc", "free", "_int_malloc"] {
        let probe = probes.iter().find(|probe| probe["function"] == function);
        let probe = probe.unwrap_or_else(|| panic!("no {function}: {probes:#?}"));
        assert!(probe["expected_ns"].as_f64().unwrap() > 0.0);
    }
    assert!(answer["hit"]["ns"].as_f64().unwrap() > 0.0);
    assert!(answer["memory"]["bytes"].as_u64().unwrap() > 8 << 20);
    for name in ["calls", "slow-path", "syscalls"] {
        let depth = depth(&answer, name);
        assert_eq!(depth["works"], true, "{answer:#}");
        assert!(
            depth["hits_per_second"].is_f64() && depth["cost_share"].is_f64(),
            "{depth:#}"
        );
    }
    assert_eq!(depth(&answer, "syscalls")["hits_per_second"], 0.0);
    // It goes on as before.
    let text = run(&["doctor", "--pid", &pid]);
    said(&text, 0, &[]);
    for words in [
        "DEPTHS",
        "everything works here",
        "allocator: glibc's: ",
        "registers: ",
        "KERNEL MEMORY",
        "_int_malloc",
    ] {
        assert!(text.stdout.contains(words), "{words:?} is missing: {}", text.stdout);
    }
}

#[test]
fn without_root_it_says_what_root_would_add() {
    if !skip::root("without_root_it_says_what_root_would_add") {
        return;
    }
    // The build directory may be closed to others.
    let scratch = Scratch::new();
    let copy = scratch.file("memtrace");
    std::fs::copy(env!("CARGO_BIN_EXE_memtrace"), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.args(["doctor", "--output", "json"]).uid(NOBODY).gid(NOBODY);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let ran = finish(command.spawn().unwrap());
    let answer = answer(&ran);
    assert_eq!(answer["works"], false);
    assert_eq!(answer["capabilities"]["CAP_BPF"], false);
    assert_eq!(depth(&answer, "calls")["works"], false);
    let checks = answer["checks"].to_string();
    assert!(checks.contains("sudo") && checks.contains("CAP_SYS_ADMIN"), "{checks}");
    // What needs no right is told.
    assert!(answer["libc"]["build_id"].is_string() || answer["libc_unknown"].is_string());
    assert!(answer["hit"]["unknown"].is_string());
}

#[test]
fn nonsense_is_refused() {
    let ran = run(&["doctor", "--pid", "0"]);
    assert_eq!(ran.code, Some(2));
    common::run::fails(&["doctor", "--pid", "4194304"], &["no process 4194304"]);
}
