//! Lines of the lab's programs: `phase=NAME key=value ...` or `KIND key=value ...`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// One line, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// "phase", or what kind of row it is.
    pub kind: String,
    /// The phase's name; empty for a row.
    pub name: String,
    values: BTreeMap<String, String>,
}

impl Line {
    /// None for what is not such a line (a runtime's own output).
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let first = words.next()?;
        let (kind, name) = match first.split_once('=') {
            Some(("phase", name)) => ("phase", name),
            Some(_) => return None,
            None => (first, ""),
        };
        let values = words.map(|word| {
            word.split_once('=')
                .map(|(key, value)| (key.to_string(), value.to_string()))
        });
        Some(Self {
            kind: kind.to_string(),
            name: name.to_string(),
            values: values.collect::<Option<_>>()?,
        })
    }

    pub fn is_phase(&self) -> bool {
        self.kind == "phase"
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    pub fn number(&self, key: &str) -> Result<f64> {
        let text = self
            .text(key)
            .with_context(|| format!("a line {} {} has no {key}", self.kind, self.name))?;
        text.parse()
            .with_context(|| format!("{key}={text} in a line {} {} is no number", self.kind, self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_and_rows_are_told_from_other_output() {
        let phase = Line::parse("phase=freed pid=7 brk=-4096").unwrap();
        assert!(phase.is_phase());
        assert_eq!((phase.name.as_str(), phase.number("brk").unwrap()), ("freed", -4096.0));
        let row = Line::parse("pair size=48 ns=10.4").unwrap();
        assert_eq!((row.kind.as_str(), row.number("ns").unwrap()), ("pair", 10.4));
        assert_eq!(Line::parse("OpenJDK 64-Bit Server VM warning: sharing"), None);
        assert!(row.number("absent").unwrap_err().to_string().contains("absent"));
    }
}
