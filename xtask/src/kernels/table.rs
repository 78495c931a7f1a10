//! The matrix as a table: for the terminal, for the README, and kept for later in target/kernels/matrix.json.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::cell::Cell;
use crate::ebpf::Arch;
use crate::{readme, workspace};

/// A run of the matrix.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Matrix {
    /// Of the very files that a release hands out.
    pub dist: bool,
    pub cells: Vec<Cell>,
}

impl Matrix {
    /// When the first of its cells ran.
    fn date(&self) -> &str {
        let dates = self.cells.iter().map(|cell| &*cell.date);
        dates.filter(|date| !date.is_empty()).min().unwrap_or("never")
    }

    fn file() -> PathBuf {
        workspace::target().join("kernels/matrix.json")
    }

    pub fn save(&self) -> Result<()> {
        let file = Self::file();
        let text = serde_json::to_string_pretty(self).context("writing the matrix as JSON")?;
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
    }

    /// Some kernel of this architecture was booted.
    pub fn ran(&self, arch: Arch) -> bool {
        let of_arch = |cell: &&Cell| cell.architecture == arch.debian();
        self.cells.iter().filter(of_arch).any(|cell| cell.not_run.is_none())
    }

    pub fn is_good(&self) -> bool {
        self.cells.iter().all(Cell::is_good)
    }

    /// For the terminal: aligned columns, then every skip and failure with its cells.
    pub fn text(&self) -> String {
        let mut rows = vec![HEAD.map(str::to_owned)];
        rows.extend(self.cells.iter().map(row));
        let widths = columns(&rows);
        let mut text = String::new();
        for row in &rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                _ = write!(line, "{cell:width$}  ");
            }
            text += line.trim_end();
            text.push('\n');
        }
        for (reason, cells) in reasons(&self.cells) {
            _ = writeln!(text, "{reason}  [{}]", cells.join(", "));
        }
        text
    }

    /// For the README.
    pub fn markdown(&self) -> String {
        let files = if self.dist {
            ", with the files that `cargo xtask dist` hands out"
        } else {
            ""
        };
        let mut text = format!("Last run of the whole matrix: {}{files}.\n\n", self.date());
        _ = writeln!(text, "| {} |", HEAD.join(" | "));
        _ = writeln!(text, "|{}|", HEAD.map(|_| "---").join("|"));
        for cell in &self.cells {
            _ = writeln!(text, "| {} |", row(cell).join(" | "));
        }
        let reasons = reasons(&self.cells);
        if !reasons.is_empty() {
            text.push('\n');
        }
        for (reason, cells) in reasons {
            _ = writeln!(text, "- {reason} ({})", cells.join(", "));
        }
        if self.dist {
            text += "\nTests that run the command use those very files; `kernel` and `explain_heaps` link the same source as a library.\n";
        }
        text
    }

    pub fn write_readme(&self) -> Result<()> {
        readme::put("README.md", "test-kernels", &self.markdown())
    }
}

const HEAD: [&str; 9] = [
    "kernel",
    "arch",
    "glibc",
    "passed",
    "skipped",
    "failed",
    "depths",
    "brk-steps",
    "seconds",
];

fn row(cell: &Cell) -> [String; 9] {
    let Cell {
        series,
        architecture,
        kernel,
        libc,
        passed,
        skipped,
        failed,
        depths,
        trace,
        seconds,
        not_run,
        ..
    } = cell;
    let kernel = if kernel.is_empty() { series } else { kernel };
    if not_run.is_some() {
        let dash = || "-".to_owned();
        return [
            kernel.clone(),
            architecture.clone(),
            libc.clone(),
            dash(),
            "all".to_owned(),
            dash(),
            dash(),
            dash(),
            dash(),
        ];
    }
    [
        kernel.clone(),
        architecture.clone(),
        libc.clone(),
        passed.to_string(),
        skipped.len().to_string(),
        failed.len().to_string(),
        depths.clone(),
        trace.clone(),
        format!("{seconds:.0}"),
    ]
}

fn columns(rows: &[[String; 9]]) -> [usize; 9] {
    std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
}

/// Every reason once, with the cells that gave it.
fn reasons(cells: &[Cell]) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for cell in cells {
        let not_run = cell.not_run.iter().map(|why| format!("not run: {why}"));
        let skipped = cell.skipped.iter().map(|why| format!("skipped: {why}"));
        let failed = cell.failed.iter().map(|why| format!("FAILED: {why}"));
        for reason in not_run.chain(skipped).chain(failed) {
            let name = format!("{} {}", cell.series, cell.architecture);
            match found.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, names)) => names.push(name),
                None => found.push((reason, vec![name])),
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> Matrix {
        let mut good = Cell::not_run("5.10", "amd64", String::new());
        good.not_run = None;
        good.kernel = "5.10.0-46-cloud-amd64".to_owned();
        good.libc = "2.31".to_owned();
        good.passed = 12;
        good.skipped = vec!["no cookies".to_owned()];
        good.depths = "calls, syscalls".to_owned();
        good.trace = "6/6 steps, likely".to_owned();
        good.seconds = 7.4;
        good.date = "2026-02-01".to_owned();
        let mut same = good.clone();
        same.architecture = "arm64".to_owned();
        same.date = "2026-01-31".to_owned();
        let gone = Cell::not_run("6.18", "amd64", "no longer there".to_owned());
        Matrix {
            dist: false,
            cells: vec![good, same, gone],
        }
    }

    #[test]
    fn a_reason_is_said_once_with_all_its_cells() {
        let text = matrix().text();
        assert_eq!(text.matches("no cookies").count(), 1, "{text}");
        assert!(text.contains("skipped: no cookies  [5.10 amd64, 5.10 arm64]"), "{text}");
        assert!(text.contains("not run: no longer there  [6.18 amd64]"), "{text}");
    }

    #[test]
    fn the_table_says_of_when_it_is() {
        let mut matrix = matrix();
        let first = |matrix: &Matrix| matrix.markdown().lines().next().map(str::to_owned);
        assert_eq!(
            first(&matrix).as_deref(),
            Some("Last run of the whole matrix: 2026-01-31.")
        );
        matrix.dist = true;
        assert!(first(&matrix).is_some_and(|line| line.contains("2026-01-31, with the files that")));
    }
}
