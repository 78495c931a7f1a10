//! The files a process holds, and what of each is in the page cache: as text and as JSON.

use memtrace_analysis::files::{HeldFile, MachineFiles, Residency};
use serde::Serialize;

use super::plain::clean;
use super::style::Style;
use super::units;

pub const FILES_VERSION: u32 = 1;

/// Sizes of one column, and the name behind them.
struct Row {
    cells: [String; 4],
    name: String,
}

pub fn text(pid: u32, files: &[HeldFile], machine: MachineFiles, style: Style) -> String {
    let heading = format!("files of process {pid} in the page cache");
    let mut out = format!("{}\n\n", style.heading(&heading));
    let rows: Vec<Row> = files.iter().map(row).collect();
    let heads = ["cached", "of", "share", "dirty"];
    let widths: [usize; 4] = std::array::from_fn(|column| {
        rows.iter()
            .map(|row| row.cells[column].chars().count())
            .chain([heads[column].len()])
            .max()
            .unwrap_or(0)
    });
    let line = |cells: [&str; 4], name: &str| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}"));
        format!("  {}  {name}", padded.collect::<Vec<_>>().join("  "))
            .trim_end()
            .to_owned()
            + "\n"
    };
    out += &style.faint(&line(heads, "file"));
    for row in &rows {
        out += &line(row.cells.each_ref().map(String::as_str), &row.name);
    }
    let sum = |value: fn(&Residency) -> u64| {
        files
            .iter()
            .filter_map(|file| file.residency.as_ref().ok())
            .map(value)
            .sum()
    };
    out += &format!(
        "\n  {} of {} cached in {}\n",
        units::pages(sum(|residency| residency.cached)),
        units::pages(sum(Residency::whole)),
        units::plural(files.len() as u64, "file")
    );
    out += &format!(
        "  the whole machine: Dirty {}, Writeback {}; clean pages of files can be taken back at once\n",
        units::pages(machine.dirty),
        units::pages(machine.writeback)
    );
    out
}

fn row(file: &HeldFile) -> Row {
    let held = match (file.how.mapped, file.how.descriptors.is_empty()) {
        (true, false) => " (open, mapped)",
        (true, true) => " (mapped)",
        (false, _) => "",
    };
    let name = format!("{}{held}", clean(&file.shown));
    match &file.residency {
        Ok(residency) => Row {
            cells: [
                units::pages(residency.cached),
                units::pages(residency.whole()),
                format!("{:.0} %", residency.share() * 100.0),
                residency.waiting().map_or_else(|| "unknown".to_owned(), units::pages),
            ],
            name,
        },
        Err(why) => Row {
            cells: ["unknown", "", "", ""].map(str::to_owned),
            name: format!("{name}: {}", clean(why)),
        },
    }
}

#[derive(Serialize)]
struct Document<'a> {
    files_version: u32,
    pid: u32,
    /// Of the whole machine.
    dirty_bytes: u64,
    writeback_bytes: u64,
    files: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    path: &'a str,
    descriptors: &'a [u32],
    mapped: bool,
    file_bytes: Option<u64>,
    cached_bytes: Option<u64>,
    dirty_bytes: Option<u64>,
    writeback_bytes: Option<u64>,
    unknown_because: Option<&'a str>,
}

/// One document; sizes are bytes, null where they are not known.
pub fn json(pid: u32, files: &[HeldFile], machine: MachineFiles) -> serde_json::Result<String> {
    let document = Document {
        files_version: FILES_VERSION,
        pid,
        dirty_bytes: machine.dirty,
        writeback_bytes: machine.writeback,
        files: files.iter().map(entry).collect(),
    };
    serde_json::to_string_pretty(&document).map(|text| text + "\n")
}

fn entry(file: &HeldFile) -> Entry<'_> {
    let HeldFile { shown, how, residency } = file;
    let known = residency.as_ref().ok();
    Entry {
        path: shown,
        descriptors: &how.descriptors,
        mapped: how.mapped,
        file_bytes: known.map(|residency| residency.file),
        cached_bytes: known.map(|residency| residency.cached),
        dirty_bytes: known.and_then(|residency| residency.dirty),
        writeback_bytes: known.and_then(|residency| residency.writeback),
        unknown_because: residency.as_ref().err().map(String::as_str),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtrace_analysis::files::Holding;

    fn files() -> Vec<HeldFile> {
        let holding = |descriptors: &[u32], mapped| Holding {
            descriptors: descriptors.to_vec(),
            mapped,
        };
        vec![
            HeldFile {
                shown: "/var/db/table".to_owned(),
                how: holding(&[3], true),
                residency: Ok(Residency {
                    file: 8 << 20,
                    cached: 4 << 20,
                    dirty: Some(4096),
                    writeback: Some(0),
                    page: 4096,
                }),
            },
            HeldFile {
                shown: "/secret\u{1b}[31m".to_owned(),
                how: holding(&[4], false),
                residency: Err("opening it: permission denied".to_owned()),
            },
        ]
    }

    const MACHINE: MachineFiles = MachineFiles {
        dirty: 1 << 20,
        writeback: 0,
    };

    #[test]
    fn text_shows_shares_and_reasons_and_no_control_characters() {
        let text = text(7, &files(), MACHINE, Style::PLAIN);
        for words in [
            "50 %",
            "4 KiB",
            "/var/db/table (open, mapped)",
            "permission denied",
            "Dirty 1 024 KiB",
        ] {
            assert!(text.contains(words), "{words:?} is missing in {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn json_has_nulls_for_what_is_not_known() {
        let value: serde_json::Value = serde_json::from_str(&json(7, &files(), MACHINE).unwrap()).unwrap();
        assert_eq!(value["files_version"], 1);
        assert_eq!(value["files"][0]["cached_bytes"], 4 << 20);
        assert!(value["files"][1]["cached_bytes"].is_null());
        assert_eq!(value["files"][1]["unknown_because"], "opening it: permission denied");
    }
}
