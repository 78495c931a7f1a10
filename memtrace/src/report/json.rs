//! The report as one JSON document, for programs. Its schema is docs/report.schema.json.

use memtrace_analysis::report::{REPORT_VERSION, Report};
use serde::Serialize;

use super::plain::escape_json;

/// The document of a trace of several processes; that of one process is its report itself.
#[derive(Serialize)]
struct Several<'a> {
    report_version: u32,
    processes: &'a [Report],
}

/// Indented, with a line end.
pub fn document(reports: &[Report]) -> Result<String, serde_json::Error> {
    let text = match reports {
        [report] => serde_json::to_string_pretty(report)?,
        processes => serde_json::to_string_pretty(&several(processes))?,
    };
    Ok(escape_json(&text).into_owned() + "\n")
}

/// The same in one line, as the last object of a stream of events: `{"event":"report","report":{...}}`.
pub fn last_line(reports: &[Report]) -> Result<String, serde_json::Error> {
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
            report: several(processes),
        })?,
    };
    Ok(escape_json(&text).into_owned() + "\n")
}

const fn several(processes: &[Report]) -> Several<'_> {
    Several {
        report_version: REPORT_VERSION,
        processes,
    }
}
