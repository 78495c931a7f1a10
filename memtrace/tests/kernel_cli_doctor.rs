//! What the doctor says of this machine and of processes, and that its exit status says the same.

mod common;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use common::run::{Ran, Victim, finish, run, said};
use common::schema;
use memtrace_test_support::kernel::shows_registers;
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::{cc, skip};
use serde_json::Value;

const READS: &str = include_str!("programs/reads.c");
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
    let scratch = Scratch::new();
    let program = cc::build("cc", "reads", READS, &[], &scratch).unwrap_or_else(|problem| panic!("{problem}"));
    let mut victim = Victim::start(program.to_str().expect("a path in UTF-8"), &[]);
    victim.hear(6);
    let pid = victim.pid().to_string();
    let answer = answer(&run(&["doctor", "--pid", &pid, "--output", "json"]));
    assert_eq!(answer["target"]["pid"], victim.pid());
    assert_eq!(answer["target"]["name"], "reads");
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
        if name == "slow-path" && !shows_registers() {
            assert_eq!(depth["works"], false, "{answer:#}");
            assert!(depth.to_string().contains("before 5.15"), "{depth:#}");
            continue;
        }
        assert_eq!(depth["works"], true, "{answer:#}");
        assert!(depth["hits_per_second"].is_f64(), "{depth:#}");
        // On a busy machine it may not have had the processor in that moment.
        assert_ne!(
            depth["cost_share"].is_f64(),
            depth["cost_unknown"].is_string(),
            "{depth:#}"
        );
    }
    // It reads a file again and again.
    assert!(
        depth(&answer, "syscalls")["syscalls_per_second"].as_f64() > Some(0.0),
        "{answer:#}"
    );
    let hits = |name| depth(&answer, name)["hits_per_second"].as_f64().unwrap();
    assert!(hits("calls") > 0.0, "{answer:#}");
    assert_eq!(depth(&answer, "syscalls")["hits_per_second"], 0.0, "{answer:#}");
    // It goes on as before.
    let text = run(&["doctor", "--pid", &pid]);
    let (code, verdict) = if shows_registers() {
        (0, "everything works here")
    } else {
        (1, "before 5.15")
    };
    said(&text, code, &[]);
    for words in [
        "DEPTHS",
        verdict,
        "allocator: glibc's: ",
        "registers: ",
        "KERNEL MEMORY",
        "_int_malloc",
    ] {
        // Lines are folded.
        let unfolded = text.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(unfolded.contains(words), "{words:?} is missing: {}", text.stdout);
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
    // By another process: a file that this one has open for writing while another test forks cannot be executed.
    let copied = Command::new("cp")
        .args([env!("CARGO_BIN_EXE_memtrace").as_ref(), &*copy])
        .status();
    assert!(copied.unwrap().success());
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
