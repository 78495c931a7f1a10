//! The report as one JSON document, for programs. Its schema is docs/report.schema.json.

use memtrace_analysis::report::{REPORT_VERSION, Report};
use serde::Serialize;

use super::plain::escape_json;

/// The document of a trace of several processes; that of one process is its report itself.
#[derive(Serialize)]
struct Several<'a> {
    report_version: u32,
    processes: &'a [Report],
    processes_omitted: u64,
}

/// Indented, with a line end. `omitted`: processes that there was no room for.
pub fn document(reports: &[Report], omitted: u64) -> Result<String, serde_json::Error> {
    let text = match reports {
        [report] => serde_json::to_string_pretty(report)?,
        processes => serde_json::to_string_pretty(&several(processes, omitted))?,
    };
    Ok(escape_json(&text).into_owned() + "\n")
}

/// The same in one line, as the last object of a stream of events: `{"event":"report","report":{...}}`.
pub fn last_line(reports: &[Report], omitted: u64) -> Result<String, serde_json::Error> {
    #[derive(Serialize)]
    struct Last<T> {
        event: &'static str,
        report: T,
    }
    let event = "report";
    let text = match reports {
        [report] => serde_json::to_string(&Last { event, report })?,
        processes => serde_json::to_string(&Last {
            event,
            report: several(processes, omitted),
        })?,
    };
    Ok(escape_json(&text).into_owned() + "\n")
}

const fn several(processes: &[Report], processes_omitted: u64) -> Several<'_> {
    Several {
        report_version: REPORT_VERSION,
        processes,
        processes_omitted,
    }
}
