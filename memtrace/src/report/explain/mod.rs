//! What a look found, for people (text, SVG) and for programs (JSON).

pub mod changes;
mod heap;
pub mod map;
mod surroundings;
pub mod svg;
pub mod text;

use memtrace_analysis::glibc::look::Look;

use super::plain::escape_json;

/// One document, with a line end. Its schema is docs/explain.schema.json.
pub fn json(look: &Look) -> Result<String, serde_json::Error> {
    Ok(escape_json(&serde_json::to_string_pretty(look)?).into_owned() + "\n")
}

/// The same on one line, for a series of looks.
pub fn json_line(look: &Look) -> Result<String, serde_json::Error> {
    Ok(escape_json(&serde_json::to_string(look)?).into_owned() + "\n")
}
