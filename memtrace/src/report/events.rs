//! The stream of events: one JSON object a line, each about one growth, return, malloc_trim or change of the threshold.

use memtrace_analysis::stream::News;
use serde::Serialize;

use super::plain::escape_json;

#[derive(Serialize)]
struct Line<'a> {
    pid: u32,
    #[serde(flatten)]
    news: &'a News,
}

/// `{"pid":4242,"event":"growth",...}` and a line end.
pub fn line(pid: u32, news: &News) -> Result<String, serde_json::Error> {
    let text = serde_json::to_string(&Line { pid, news })?;
    Ok(escape_json(&text).into_owned() + "\n")
}
