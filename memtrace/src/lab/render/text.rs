//! For people at a terminal.

use super::super::Experiment;
use super::super::machine::Machine;
use super::super::picture::terminal;
use super::super::runner::{Done, Session};
use super::super::verdict::Verdict;
use super::table;
use crate::report::style::Style;

/// How wide, and in which signs.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub width: usize,
    pub unicode: bool,
    pub style: Style,
    pub colour: bool,
}

/// The machine, once at the begin.
pub fn head(machine: &Machine, look: Look) -> String {
    let mut out = format!(
        "{}\n",
        look.style.heading(&format!("memtrace lab: {}", machine.one_line()))
    );
    if machine.is_busy() {
        let text = format!(
            "  {:.1} processes wanted to run on {} processors when it began: timings will be noisy",
            machine.load, machine.processors
        );
        out += &format!("{}\n", look.style.warning(&text));
    }
    if !machine.inherited.is_empty() {
        let text = format!(
            "the environment sets {}, for the lab's programs too",
            machine.inherited.join(" ")
        );
        out += &look.style.warning(&wrap(&text, 2, look.width));
    }
    if let Some(why) = &machine.without_tracing_because {
        out += &wrap(
            &format!(
                "without tracing ({why}), which would add the memory system calls and what caused each; everything else is measured"
            ),
            2,
            look.width,
        );
    }
    out.push('\n');
    out
}

/// One experiment in a line.
pub fn line(done: &Done, look: Look) -> String {
    let Experiment { number, name, .. } = done.experiment;
    let word = done.verdict.word();
    let padded = format!("{word:<18}");
    let shown = match done.verdict {
        Verdict::Holds => padded,
        Verdict::DoesNotHold { .. } | Verdict::CannotTell { .. } => look.style.warning(&padded),
    };
    let line = table::headline(done);
    let room = look.width.saturating_sub(38).max(30);
    format!("{number:>2}  {name:<14} {shown} {}\n", cut(&line, room))
}

/// One experiment in full.
pub fn full(done: &Done, look: Look) -> String {
    let Experiment {
        number,
        name,
        title,
        claim,
        why,
        commands,
        root_adds,
        ..
    } = done.experiment;
    let mut out = format!("{}\n", look.style.heading(&format!("{number} {name}: {title}")));
    out += &section("CLAIM", claim, look);
    let verdict = match done.verdict.because() {
        [] => done.verdict.word().to_string(),
        because => format!("{}, because {}", done.verdict.word(), because.join("; ")),
    };
    out += &section("VERDICT", &verdict, look);
    out.push('\n');
    out += &figures(done, look);
    out.push('\n');
    for note in &done.measured.notes {
        out += &section("NOTE", note, look);
    }
    out += &section("WHY", why, look);
    out += &section("ALONE", &commands.join("   or   "), look);
    if let Some(adds) = root_adds {
        out += &section("TRACING", &format!("adds {adds}"), look);
    }
    for picture in done.measured.pictures.iter().filter(|picture| !picture.is_empty()) {
        let style = terminal::Style {
            width: look.width.min(110),
            height: 16,
            unicode: look.unicode,
            colour: look.colour,
        };
        out.push('\n');
        out += &indent(&terminal::render(picture, style), 2);
    }
    out
}

/// How many hold, and what to look at next.
pub fn summary(session: &Session, look: Look) -> String {
    let count = |word: &str| session.done.iter().filter(|done| done.verdict.word() == word).count();
    let mut out = format!(
        "{} of {} claims hold here, {} {} not, {} cannot be told; {:.0} s\n",
        count("holds"),
        session.done.len(),
        count("does not hold here"),
        if count("does not hold here") == 1 { "does" } else { "do" },
        count("cannot tell"),
        session.seconds
    );
    if !session.left_out.is_empty() {
        let names: Vec<_> = session.left_out.iter().map(|experiment| experiment.name).collect();
        out += &wrap(&format!("ended early; not made: {}", names.join(", ")), 0, look.width);
    }
    out
}

/// What there is.
pub fn list(experiments: &[Experiment], look: Look) -> String {
    let mut out = String::new();
    let mut group = None;
    for experiment in experiments {
        if group != Some(experiment.group) {
            group = Some(experiment.group);
            let gap = if out.is_empty() { "" } else { "\n" };
            out += &format!("{gap}{}\n", look.style.heading(experiment.group.title()));
        }
        out += &format!(
            "{:>2}  {:<14} {}\n",
            experiment.number, experiment.name, experiment.title
        );
    }
    out
}

fn figures(done: &Done, look: Look) -> String {
    let rows = table::rows(done);
    let width = |cell: fn(&table::Row) -> &str| rows.iter().map(|row| cell(row).chars().count()).max().unwrap_or(0);
    let (label, claimed) = (width(|row| &row.label), width(|row| &row.claimed).max("claimed".len()));
    let measured = width(|row| &row.measured);
    let mut out = look
        .style
        .faint(&format!("  {:<label$}  {:>claimed$}  here", "", "claimed"));
    out.push('\n');
    for row in &rows {
        let remark = match row.outcome {
            super::super::verdict::Outcome::NotMet | super::super::verdict::Outcome::Noisy => {
                look.style.warning(&row.remark)
            }
            _ => look.style.faint(&row.remark),
        };
        let line = format!(
            "  {:<label$}  {:>claimed$}  {:<measured$}  {remark}",
            row.label, row.claimed, row.measured
        );
        out += line.trim_end();
        out.push('\n');
    }
    out
}

fn section(head: &str, text: &str, look: Look) -> String {
    let body = wrap(text, 10, look.width);
    format!("  {:<8}{}", head, body.trim_start())
}

/// Words in lines of at most that width, indented.
fn wrap(text: &str, indent: usize, width: usize) -> String {
    let room = width.saturating_sub(indent).max(20);
    let mut out = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            out += &format!("{:indent$}{line}\n", "");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    out + &format!("{:indent$}{line}\n", "")
}

fn indent(text: &str, by: usize) -> String {
    text.lines().map(|line| format!("{:by$}{line}\n", "")).collect()
}

fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_string();
    }
    let kept: String = text.chars().take(room.saturating_sub(3)).collect();
    format!("{}...", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_wrapped_and_indented() {
        assert_eq!(
            wrap("one two three four five six", 2, 22),
            "  one two three four\n  five six\n"
        );
        assert_eq!(cut("short", 30), "short");
        assert_eq!(cut("a rather long sentence", 12), "a rather...");
    }
}
