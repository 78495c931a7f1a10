//! Where results go: standard output or a file, in the form asked for.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use anyhow::Context;
use memtrace_analysis::report::Report;

use super::args::{Form, OutputArgs};
use super::exit::say;
use crate::report::style::Style;
use crate::report::{json, text};

/// What the command line says of results, and standard output as it was when memtrace was started.
pub struct Output<'a> {
    args: &'a OutputArgs,
    stdout: File,
    /// The file that is to hold the report: opened before the trace, so that a path that cannot be written is said
    /// before and not after it, and while memtrace may still write wherever root may.
    report: Option<(&'a Path, File)>,
}

impl<'a> Output<'a> {
    pub fn new(args: &'a OutputArgs) -> anyhow::Result<Self> {
        // Closed on exec, as all that std opens: a command that is started does not inherit it.
        let stdout = io::stdout().as_fd().try_clone_to_owned();
        let stdout = stdout.context("looking at standard output")?.into();
        let report = args.report_to.as_deref().map(open_for_report).transpose()?;
        Ok(Self { args, stdout, report })
    }

    /// Growths and returns are printed as they happen.
    pub const fn streams(&self) -> bool {
        self.args.events
    }

    /// Keeps standard output for documents that a program reads: what a command that is started prints there goes to
    /// standard error instead. For people both share standard output, as with time or strace.
    pub fn keep_from_command(&self) -> anyhow::Result<()> {
        let read_by_program = self.args.events || (self.args.output == Form::Json && self.args.report_to.is_none());
        if !read_by_program {
            return Ok(());
        }
        // SAFETY: both descriptors are open; ours for data is another one.
        let result = unsafe { libc::dup2(io::stderr().as_raw_fd(), io::stdout().as_raw_fd()) };
        if result < 0 {
            return Err(io::Error::last_os_error()).context("keeping standard output apart from the command's");
        }
        Ok(())
    }

    /// A line of the stream of events.
    pub fn stream(&self, lines: &str) -> anyhow::Result<()> {
        (&self.stdout)
            .write_all(lines.as_bytes())
            .context("writing an event to standard output")
    }

    /// Writes the reports as the command line asks.
    ///
    /// Beside a stream of events, standard output has room for JSON only: one line more. Text goes to standard error.
    /// `omitted`: processes that there was no room for.
    pub fn deliver(&self, reports: &[Report], omitted: u64) -> anyhow::Result<()> {
        let args = self.args;
        let streaming = args.events && args.report_to.is_none();
        let style = match (&args.report_to, streaming) {
            (Some(_), _) => Style::PLAIN,
            (None, true) => style_of(io::stderr().is_terminal()),
            (None, false) => style_of(self.stdout.is_terminal()),
        };
        let rendered = match (args.output, streaming) {
            (Form::Text, _) => text::render(reports, style),
            (Form::Json, false) => json::document(reports, omitted).context("rendering the report as JSON")?,
            (Form::Json, true) => json::last_line(reports, omitted).context("rendering the report as JSON")?,
        };
        if omitted > 0 {
            say(&format!(
                "{omitted} processes that had ended earlier are left out of the report, which holds the last ones"
            ));
        }
        match &self.report {
            Some((path, file)) => {
                replace(file, &rendered).with_context(|| format!("writing the report to {}", path.display()))
            }
            None if streaming && args.output == Form::Text => io::stderr()
                .write_all(rendered.as_bytes())
                .context("writing the report to standard error"),
            None => (&self.stdout)
                .write_all(rendered.as_bytes())
                .context("writing the report to standard output"),
        }
    }
}

/// The file is made or opened, and keeps what it holds until there is a report.
fn open_for_report(path: &Path) -> anyhow::Result<(&Path, File)> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    let file = options
        .open(path)
        .with_context(|| format!("opening {} for the report", path.display()))?;
    Ok((path, file))
}

/// Puts this into a file instead of what it held.
pub fn replace(mut file: &File, content: &str) -> io::Result<()> {
    // A pipe or a terminal has nothing to be taken away.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(content.as_bytes())
}

/// Text for people on standard output; an error when whoever reads it is gone.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("writing to standard output")
}

/// Columns of the terminal behind a descriptor; None where there is none, or it does not say.
pub fn columns(of: BorrowedFd) -> Option<usize> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: writes the structure it is given.
    let asked = unsafe { libc::ioctl(of.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (asked == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// A line that is to be written over has to fit the terminal: what wraps stays behind.
pub fn fit(line: &str, terminal: BorrowedFd) -> String {
    match columns(terminal) {
        Some(columns) => cut(line, columns),
        None => line.to_owned(),
    }
}

/// Terminals wrap a line that fills the last column, some of them.
fn cut(line: &str, columns: usize) -> String {
    line.chars().take(columns.saturating_sub(1)).collect()
}

/// Colour as the environment wants it, for a stream that is a terminal or not.
pub fn style_of(is_terminal: bool) -> Style {
    let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    Style::choose(
        is_terminal,
        variable("NO_COLOR").as_deref(),
        variable("TERM").as_deref(),
    )
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn a_line_leaves_the_last_column_free() {
        assert_eq!(cut("12345678", 5), "1234");
        assert_eq!(cut("1234", 5), "1234");
        assert_eq!(cut("1234", 0), "");
    }
}
