//! `memtrace lab`: the claims about malloc, mmap and the page cache, tried out here.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::args::Form;
use super::exit::{Exit, hint};
use super::lab_files::Places;
use super::{output, quantity};
use crate::lab::machine::Machine;
use crate::lab::render::text::Look;
use crate::lab::render::{json, text};
use crate::lab::{ALL, Bench, Done, Experiment, Session, Settings, Unit, Verdict, interrupt, needs, run_all, trace};
use crate::sentence;

/// More than this is not used without asking.
const ASK_ABOVE: u64 = 1 << 30;

#[derive(Debug, Args)]
pub struct LabArgs {
    /// Experiments to make, by name or number (all without any); `list` shows what there is
    #[arg(value_name = "EXPERIMENT")]
    pub experiments: Vec<String>,
    /// Form of what is printed (docs/lab.schema.json describes the document)
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Form::Text, help_heading = "Output")]
    pub output: Form,
    /// Write each picture as an SVG file into this directory
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub svg: Option<PathBuf>,
    /// Write one page with everything, pictures included, to this file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Where the page cache experiments make their files (nothing is left there); on the disk to be measured
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Size of the file that the page cache experiments read
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = file_size)]
    pub file_size: u64,
    /// Rounds of each timing; more make a noisy machine's medians steadier
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u64).range(3..=1000))]
    pub rounds: u64,
    /// Let an experiment empty the page cache of the whole machine (needs root)
    #[arg(long)]
    pub allow_drop_caches: bool,
    /// Do not ask before using more than 1 GiB
    #[arg(short, long)]
    pub yes: bool,
    /// The programs to run: memtrace-lab, by default the one beside memtrace
    #[arg(long, value_name = "PATH")]
    pub programs: Option<PathBuf>,
    /// Run the programs with another glibc: its dynamic loader ...
    #[arg(long, value_name = "PATH", requires = "library_path")]
    pub loader: Option<PathBuf>,
    /// ... and the directory of its libraries
    #[arg(long, value_name = "DIR", requires = "loader")]
    pub library_path: Option<PathBuf>,
}

pub fn run(args: &LabArgs) -> Result<Exit> {
    let terminal = io::stdout().is_terminal();
    let look = look(terminal);
    if args.experiments == ["list"] {
        if args.output != Form::Text || args.svg.is_some() || args.html.is_some() {
            bail!("the list is text: --output json, --svg and --html are for experiments that are made");
        }
        output::print(&text::list(ALL, look)).context("writing to standard output")?;
        return Ok(Exit::Success);
    }
    let chosen = choose(&args.experiments)?;
    consent(args, &chosen)?;
    let settings = settings(args)?;
    let places = Places::prepare(args.svg.as_deref(), args.html.as_deref())?;
    interrupt::watch().context("watching for Ctrl-C")?;
    let tracer = trace::open().map_err(|error| sentence::of(&error));
    let bench = Bench::new(settings, tracer);
    let machine = Machine::here(&bench)?;

    let is_text = args.output == Form::Text;
    let detailed = !args.experiments.is_empty();
    if is_text {
        output::print(&text::head(&machine, look)).context("writing to standard output")?;
    }
    let progress = Progress::new();
    let session = run_all(
        &bench,
        machine,
        &chosen,
        |index, experiment| progress.show(index, chosen.len(), experiment),
        |done| {
            progress.clear();
            if is_text {
                let shown = if detailed {
                    text::full(done, look) + "\n"
                } else {
                    text::line(done, look)
                };
                output::print(&shown).context("writing to standard output")?;
            }
            Ok(())
        },
    )?;
    progress.clear();
    deliver(args, places, &session, look, detailed)?;
    Ok(if session.left_out.is_empty() {
        Exit::Success
    } else {
        Exit::Failure
    })
}

fn deliver(args: &LabArgs, places: Places, session: &Session, look: Look, detailed: bool) -> Result<()> {
    match args.output {
        Form::Json => {
            let document = json::render(session).context("rendering the lab's JSON document")?;
            output::print(&document).context("writing to standard output")?;
        }
        Form::Text => {
            let mut rest = format!("\n{}", text::summary(session, look));
            if !detailed {
                let differs = |done: &&Done| !matches!(done.verdict, Verdict::Holds);
                for done in session.done.iter().filter(differs) {
                    rest += &format!("\n{}", text::full(done, look));
                }
            }
            output::print(&rest).context("writing to standard output")?;
        }
    }
    places.deliver(session)
}

fn choose(words: &[String]) -> Result<Vec<&'static Experiment>> {
    if words.is_empty() || words == ["all"] {
        return Ok(ALL.iter().collect());
    }
    if let Some(alone) = words.iter().find(|word| ["list", "all"].contains(&word.as_str())) {
        bail!("{alone:?} stands alone: no experiment can be named beside it");
    }
    let find = |word: &String| {
        let found = ALL
            .iter()
            .find(|experiment| experiment.name == word || word.parse() == Ok(experiment.number));
        found.ok_or_else(|| {
            hint(
                anyhow::anyhow!("there is no experiment {word:?}"),
                "`memtrace lab list` shows what there is",
            )
        })
    };
    let mut chosen: Vec<&'static Experiment> = Vec::new();
    for word in words {
        let experiment = find(word)?;
        // Once is enough, whatever it was called.
        if chosen.iter().all(|other| other.number != experiment.number) {
            chosen.push(experiment);
        }
    }
    Ok(chosen)
}

/// A file that is smaller shows nothing of disks and caches.
fn file_size(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 1 << 20;
    match quantity::size(text)? {
        size if size < LEAST => Err("the file can have 1M and more".to_owned()),
        size => Ok(size),
    }
}

/// Asks before much is used; without anybody to ask, `--yes` is needed.
fn consent(args: &LabArgs, chosen: &[&'static Experiment]) -> Result<()> {
    let needs = needs(chosen, args.file_size);
    let total = needs.memory.max(needs.files);
    if total <= ASK_ABOVE || args.yes {
        return Ok(());
    }
    let disk = format!(
        "{} of disk in {}",
        Unit::Bytes.show(needs.files as f64),
        args.dir.display()
    );
    let memory = format!("{} of memory", Unit::Bytes.show(needs.memory as f64));
    let parts = [(needs.memory, memory), (needs.files, disk)]
        .into_iter()
        .filter(|(bytes, _)| *bytes > 0);
    let parts: Vec<_> = parts.map(|(_, part)| part).collect();
    let question = format!("the experiments take up to {}", parts.join(" and "));
    if !io::stdin().is_terminal() {
        return Err(hint(
            anyhow::anyhow!(question),
            "--yes agrees to it, a smaller --file-size avoids it",
        ));
    }
    eprint!("memtrace: {question}. Go on? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).context("reading the answer")?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        bail!("nothing was done");
    }
    Ok(())
}

fn settings(args: &LabArgs) -> Result<Settings> {
    let directory = fs::canonicalize(&args.dir).with_context(|| format!("looking for {}", args.dir.display()))?;
    if !directory.is_dir() {
        bail!(
            "{} is no directory: --dir says where files can be made",
            args.dir.display()
        );
    }
    let programs = match &args.programs {
        Some(path) => path.clone(),
        None => beside("memtrace-lab")?,
    };
    let programs = fs::canonicalize(&programs).map_err(|error| {
        let error =
            anyhow::Error::new(error).context(format!("looking for the lab's programs at {}", programs.display()));
        hint(
            error,
            "memtrace-lab is built and installed together with memtrace; --programs says where else it is",
        )
    })?;
    let glibc = match (&args.loader, &args.library_path) {
        (Some(loader), Some(libraries)) => Some((canonical(loader)?, canonical(libraries)?)),
        _ => None,
    };
    Ok(Settings {
        programs,
        glibc,
        directory,
        file_size: args.file_size,
        rounds: args.rounds,
        allow_drop_caches: args.allow_drop_caches,
    })
}

fn canonical(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).with_context(|| format!("looking for {}", path.display()))
}

/// A program in memtrace's own directory.
fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("asking where memtrace itself is")?;
    Ok(own.with_file_name(name))
}

fn look(terminal: bool) -> Look {
    let style = output::style_of(terminal);
    let language = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty());
    let unicode = language.is_some_and(|value| {
        let value = value.to_ascii_lowercase();
        value.contains("utf-8") || value.contains("utf8")
    });
    Look {
        width: width(terminal),
        unicode,
        style,
        colour: style == crate::report::style::Style::COLOUR,
    }
}

/// Columns to write in; 110 where there is no terminal.
fn width(terminal: bool) -> usize {
    const USUAL: usize = 110;
    let columns = terminal.then(|| output::columns(io::stdout().as_fd())).flatten();
    columns.map_or(USUAL, |columns| columns.clamp(60, 160))
}

/// One line on standard error that is written over, for a terminal only.
struct Progress {
    shown: bool,
}

impl Progress {
    fn new() -> Self {
        Self {
            shown: io::stderr().is_terminal(),
        }
    }

    fn show(&self, index: usize, of: usize, experiment: &Experiment) {
        if self.shown {
            let line = format!("[{:>2}/{of}] {} ...", index + 1, experiment.title);
            self.write(&format!("\r\x1b[K{}", output::fit(&line, io::stderr().as_fd())));
        }
    }

    fn clear(&self) {
        if self.shown {
            self.write("\r\x1b[K");
        }
    }

    fn write(&self, text: &str) {
        // A terminal that is gone takes nothing more; the results matter, not the progress.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}
