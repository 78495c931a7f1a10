//! Tables in the documents that are written by the runs that measured them, each between markers of its own.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// Puts a text between a document's markers of that name, which is also the verb that writes it.
pub fn put(document: &str, name: &str, text: &str) -> Result<()> {
    let file = workspace::root().join(document);
    let old = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let new = between_markers(&old, name, text, &file)?;
    fs::write(&file, new).with_context(|| format!("writing {}", file.display()))
}

fn between_markers(old: &str, name: &str, text: &str, file: &Path) -> Result<String> {
    let begin = format!("<!-- {name}: begin (written by `cargo xtask {name} --write-readme`) -->");
    let end = format!("<!-- {name}: end -->");
    let parts = old
        .split_once(&begin)
        .and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let Some((before, after)) = parts else {
        bail!("{} lacks the markers \"{begin}\" and \"{end}\"", file.display());
    };
    Ok(format!("{before}{begin}\n{text}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_around_the_markers_stays() {
        let old =
            "a\n<!-- bench: begin (written by `cargo xtask bench --write-readme`) -->\nold\n<!-- bench: end -->\nb\n";
        let new = between_markers(old, "bench", "new\n", Path::new("README.md")).unwrap();
        assert_eq!(new, old.replace("old", "new"));
        assert!(between_markers("nothing", "bench", "new\n", Path::new("README.md")).is_err());
    }
}
