//! The renderers, against reports made by hand.

mod common;

use common::{fixture, golden, schema};
use memtrace::report::{json, style::Style, text};

#[test]
fn a_plain_trace_reads_well() {
    golden::check("brk-steps.txt", &text::render(&[fixture::brk_steps()], Style::PLAIN));
}

#[test]
fn trouble_is_said_and_harmless_to_a_terminal() {
    let text = text::render(&[fixture::troubled()], Style::PLAIN);
    assert!(!text.contains('\x1b'));
    golden::check("troubled.txt", &text);
}

#[test]
fn what_was_not_counted_is_not_said() {
    golden::check(
        "syscalls-only.txt",
        &text::render(&[fixture::syscalls_only()], Style::PLAIN),
    );
}

/// Where others trace system calls already, what memtrace adds could not be told from nothing.
#[test]
fn nothing_added_to_system_calls_is_said_as_that() {
    for (added, longer) in [(Some(0.4), false), (Some(61.3), true), (None, false)] {
        let mut report = fixture::brk_steps();
        report.cost.as_mut().expect("a cost").syscall_ns = added;
        let text = text::render(&[report], Style::PLAIN);
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ");
        assert_eq!(text.contains("ns longer"), longer, "{added:?}: {text}");
        let others = text.contains("others trace system calls on this machine already");
        assert_eq!(others, added == Some(0.4), "{added:?}: {text}");
    }
}

#[test]
fn several_processes_have_a_part_each() {
    let reports = [fixture::brk_steps(), fixture::troubled()];
    let text = text::render(&reports, Style::PLAIN);
    assert_eq!(text.matches("memtrace: ").count(), 2);
    let document: serde_json::Value = serde_json::from_str(&json::document(&reports, 0).unwrap()).unwrap();
    assert_eq!(document["report_version"], 1);
    assert_eq!(document["processes"][0]["calls"]["malloc"], 10_002);
    assert_eq!(document["processes"][1]["coverage"]["lost_events"], 3);
}

#[test]
fn one_process_is_the_document_itself() {
    let report = fixture::brk_steps();
    let document = json::document(std::slice::from_ref(&report), 0).unwrap();
    let back: memtrace_analysis::report::Report = serde_json::from_str(&document).unwrap();
    assert_eq!(back, report);
    let last: serde_json::Value = serde_json::from_str(&json::last_line(&[report], 0).unwrap()).unwrap();
    assert_eq!(last["event"], "report");
    assert_eq!(last["report"]["target"]["pid"], 4242);
}

#[test]
fn documents_keep_the_schema() {
    schema::check(&json::document(&[fixture::brk_steps()], 0).unwrap());
    schema::check(&json::document(&[fixture::troubled()], 0).unwrap());
    schema::check(&json::document(&[fixture::syscalls_only()], 0).unwrap());
    schema::check(&json::document(&[fixture::brk_steps(), fixture::troubled()], 0).unwrap());
}

#[test]
fn colour_changes_no_word() {
    let reports = [fixture::troubled()];
    let coloured = text::render(&reports, Style::COLOUR);
    let mut stripped = coloured.clone();
    for code in ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[33m"] {
        stripped = stripped.replace(code, "");
    }
    assert_ne!(coloured, stripped);
    assert_eq!(stripped, text::render(&reports, Style::PLAIN));
}
