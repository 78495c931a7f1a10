//! memtrace itself.

use std::ffi::OsStr;
use std::process::{Command, Output};

use serde_json::Value;

use crate::binary;

/// `memtrace --output json -- WORDS`
pub fn trace<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(binary("memtrace"));
    command.args(["--output", "json", "--"]).args(words);
    command
}

/// Runs it, and returns the one report it prints after the lines of the traced program, which shares its stdout.
pub fn report(command: &mut Command) -> Value {
    let output = command.output().expect("starting memtrace");
    parse(&output)
}

pub fn parse(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let talk = String::from_utf8_lossy(&output.stderr);
    let begin = text
        .find("{")
        .unwrap_or_else(|| panic!("memtrace printed no report ({}): {talk}", output.status));
    serde_json::from_str(&text[begin..]).unwrap_or_else(|error| panic!("no JSON ({error}): {text}\n{talk}"))
}

/// A number of the report by its keys: `number(&report, "/freed/blocks")`.
pub fn number(report: &Value, pointer: &str) -> u64 {
    report
        .pointer(pointer)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("the report has no number at {pointer}: {report:#}"))
}
