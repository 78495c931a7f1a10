//! One page that stands alone: every experiment with its figures and pictures, nothing fetched from anywhere.

use std::fmt::Write;

use anyhow::Result;

use super::super::runner::{Done, Session};
use super::super::verdict::Verdict;
use super::{svg, table};

const STYLE: &str = "\
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; }
h2 { font-size: 1.25rem; margin-top: 3rem; border-top: 1px solid #ddd; padding-top: 1rem; }
table { border-collapse: collapse; margin: 1rem 0; width: 100%; }
th { text-align: left; font-weight: 600; border-bottom: 2px solid #ccc; }
th, td { padding: .25rem .75rem .25rem 0; vertical-align: top; }
td { border-bottom: 1px solid #eee; }
td.figure { text-align: right; white-space: nowrap; }
td.measured { white-space: nowrap; }
.verdict { font-weight: 600; white-space: nowrap; }
.holds { color: #00663f; }
.does-not-hold { color: #a63c00; }
.cannot-tell { color: #5c5c5c; }
.remark { color: #5c5c5c; }
code { background: #f3f3f3; padding: .1rem .3rem; border-radius: .2rem; }
figure { margin: 1.5rem 0; }
svg { max-width: 100%; height: auto; }
dt { font-weight: 600; margin-top: .6rem; }
dd { margin: 0; }
";

/// Errors only when a picture cannot be drawn.
pub fn render(session: &Session) -> Result<String> {
    let mut out = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>memtrace lab</title>\n";
    let _ = write!(
        out,
        "<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>memtrace lab</h1>\n"
    );
    let _ = writeln!(out, "<p>{}</p>", escape(&session.machine.one_line()));
    if !session.machine.inherited.is_empty() {
        let _ = writeln!(
            out,
            "<p class=\"remark\">The environment sets {}, for the lab's programs too.</p>",
            escape(&session.machine.inherited.join(" "))
        );
    }
    if let Some(why) = &session.machine.without_tracing_because {
        let _ = writeln!(
            out,
            "<p class=\"remark\">Without tracing ({}), which would add the memory system calls and what caused each.</p>",
            escape(why)
        );
    }
    if session.machine.is_busy() {
        let _ = writeln!(
            out,
            "<p class=\"remark\">{:.1} processes wanted to run on {} processors when it began: timings will be noisy.</p>",
            session.machine.load, session.machine.processors
        );
    }
    out += "<table>\n<tr><th></th><th>experiment</th><th>verdict</th><th>in short</th></tr>\n";
    for done in &session.done {
        let _ = writeln!(
            out,
            "<tr><td class=\"figure\">{}</td><td><a href=\"#{name}\">{}</a></td><td class=\"verdict {}\">{}</td><td>{}</td></tr>",
            done.experiment.number,
            escape(done.experiment.title),
            class(&done.verdict),
            done.verdict.word(),
            escape(&table::headline(done)),
            name = done.experiment.name,
        );
    }
    out += "</table>\n";
    for done in &session.done {
        experiment(&mut out, done)?;
    }
    if !session.left_out.is_empty() {
        let names: Vec<_> = session.left_out.iter().map(|experiment| experiment.name).collect();
        let _ = writeln!(
            out,
            "<p>The run was ended early; not made: {}.</p>",
            escape(&names.join(", "))
        );
    }
    out += "</body>\n</html>\n";
    Ok(out)
}

fn experiment(out: &mut String, done: &Done) -> Result<()> {
    let experiment = done.experiment;
    let _ = writeln!(
        out,
        "<section>\n<h2 id=\"{}\">{}. {}</h2>\n<p>{}</p>",
        experiment.name,
        experiment.number,
        escape(experiment.title),
        escape(experiment.claim)
    );
    let _ = write!(
        out,
        "<p><span class=\"verdict {}\">{}</span>",
        class(&done.verdict),
        done.verdict.word()
    );
    if !done.verdict.because().is_empty() {
        let _ = write!(out, ", because {}", escape(&done.verdict.because().join("; ")));
    }
    out.push_str("</p>\n<table>\n<tr><th></th><th>claimed</th><th>here</th><th></th></tr>\n");
    for row in table::rows(done) {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"figure\">{}</td><td class=\"measured\">{}</td><td class=\"remark\">{}</td></tr>",
            escape(&row.label),
            escape(&row.claimed),
            escape(&row.measured),
            escape(&row.remark)
        );
    }
    out.push_str("</table>\n");
    for picture in done.measured.pictures.iter().filter(|picture| !picture.is_empty()) {
        let _ = writeln!(out, "<figure>{}</figure>", svg::render(picture)?);
    }
    out.push_str("<dl>\n");
    for note in &done.measured.notes {
        let _ = writeln!(out, "<dt>Note</dt><dd>{}</dd>", escape(note));
    }
    let _ = writeln!(out, "<dt>Why</dt><dd>{}</dd>", escape(experiment.why));
    let commands: Vec<_> = experiment
        .commands
        .iter()
        .map(|command| format!("<code>{}</code>", escape(command)))
        .collect();
    let _ = writeln!(out, "<dt>Alone</dt><dd>{}</dd>", commands.join(" or "));
    if let Some(adds) = experiment.root_adds {
        let _ = writeln!(out, "<dt>Tracing adds</dt><dd>{}</dd>", escape(adds));
    }
    out.push_str("</dl>\n</section>\n");
    Ok(())
}

fn class(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::DoesNotHold { .. } => "does-not-hold",
        Verdict::CannotTell { .. } => "cannot-tell",
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn nothing_from_outside_is_markup() {
        assert_eq!(escape("<b a=\"&\">"), "&lt;b a=&quot;&amp;&quot;&gt;");
    }
}
