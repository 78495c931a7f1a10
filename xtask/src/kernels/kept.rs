//! What earlier guests have shown, for `--resume`: a cell is taken over as long as its kernel and everything that was in its
//! guest are the same, byte for byte, so that a run of the whole matrix can be made in pieces.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::cell::Cell;
use crate::process;

/// Of the kernel and of the guest's files, in their order.
pub fn digest(files: [&Path; 2]) -> Result<String> {
    let mut sums = Command::new("sha256sum");
    let sums = process::capture(sums.args(files), "summing up a guest")?;
    let sums: Vec<&str> = sums.lines().filter_map(|line| line.split_whitespace().next()).collect();
    Ok(sums.join(" "))
}

/// A good cell of these very inputs.
pub fn find(logs: &Path, name: &str, inputs: &str) -> Option<Cell> {
    let text = fs::read_to_string(file(logs, name)).ok()?;
    // What an older xtask has written may not be readable any more.
    let cell: Cell = serde_json::from_str(&text).ok()?;
    (cell.is_good() && cell.inputs == inputs).then_some(cell)
}

pub fn keep(logs: &Path, name: &str, cell: &Cell) -> Result<()> {
    let file = file(logs, name);
    let text = serde_json::to_string_pretty(cell).context("writing a cell as JSON")?;
    fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
}

fn file(logs: &Path, name: &str) -> PathBuf {
    logs.join(format!("{name}.json"))
}

pub fn today() -> Result<String> {
    let mut date = Command::new("date");
    let date = process::capture(date.args(["-u", "+%F"]), "asking for the date")?;
    Ok(date.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_good_cell_of_the_same_inputs_is_found_again() {
        let logs = std::env::temp_dir().join(format!("memtrace-kept-{}", std::process::id()));
        fs::create_dir_all(&logs).expect("it can be made");
        let mut cell = Cell::not_run("5.10", "amd64", String::new());
        cell.not_run = None;
        cell.inputs = "a b".to_owned();
        keep(&logs, "5.10-amd64", &cell).expect("it is kept");
        let kept = find(&logs, "5.10-amd64", "a b");
        let other = find(&logs, "5.10-amd64", "a c");
        let unknown = find(&logs, "6.1-amd64", "a b");
        cell.failed = vec!["kernel::a".to_owned()];
        keep(&logs, "5.10-amd64", &cell).expect("it is kept");
        let failed = find(&logs, "5.10-amd64", "a b");
        fs::remove_dir_all(&logs).expect("it can be removed");
        assert!(kept.is_some());
        assert_eq!((other, unknown, failed), (None, None, None));
    }
}
