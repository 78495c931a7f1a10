//! The command line. Tracing is what memtrace does when no verb is given.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use memtrace_analysis::event::Depth;

use super::doctor::DoctorArgs;
use super::explain::ExplainArgs;
use super::lab::LabArgs;
use super::quantity;

const EXAMPLES: &str = "\
Examples:
  memtrace --pid 4242                   trace a running process until Ctrl-C
  memtrace --pid 4242 --for 30s         ... for thirty seconds
  memtrace -- ./server --port 1         start a program and see it from its first allocation
  memtrace --record t.mtr --pid 4242    keep what was seen
  memtrace replay t.mtr --output json   the same report again, without root, on any machine";

const WORDS: &str = "\
What the words mean:
  block      what malloc gives out; chunk: the block with malloc's own bytes
  break      the end of the heap; the brk system call moves it
  growth     malloc takes memory from the system; step: by how much
  batch      the blocks given out between two growths
  returned   given back to the system (munmap, a lower break, madvise)
  direct     memory system calls that no allocation caused: the loader,
             thread stacks, the program's own mmap
  KiB, MiB   1024 and 1024 x 1024 bytes: memory in pages
  KB, MB     1000 and 1000000 bytes: what the program asked for

Exit status:
  0  the trace was made, also when the traced command failed (its own
     status is in the report)
  1  something went wrong, or the report is not complete
  2  the command line makes no sense
  126, 127  the command cannot be executed, was not found

The traced process is never written to and never left stopped; probes go when memtrace goes.";

#[derive(Debug, Parser)]
#[command(
    name = "memtrace",
    version,
    about = "Where a process's memory goes, which allocation made the kernel hand it out, and why it does not come back",
    after_help = EXAMPLES,
    after_long_help = format!("{EXAMPLES}\n\n{WORDS}"),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "memtrace [OPTIONS] --pid PID\n       memtrace [OPTIONS] -- COMMAND [ARGS]...\n       memtrace VERB ...",
    subcommand_help_heading = "Verbs",
    subcommand_value_name = "VERB",
    disable_help_subcommand = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Option<Verb>,
    #[command(flatten)]
    pub trace: TraceArgs,
}

impl Cli {
    /// The command line, or what is wrong with it; clap prints that, with exit status 2.
    pub fn read<I: Into<OsString> + Clone>(words: impl IntoIterator<Item = I>) -> Result<Self, clap::Error> {
        let cli = Self::try_parse_from(words)?;
        if cli.verb.is_none() && cli.trace.names_nothing() {
            let text = "what to trace is not said: --pid, --comm, --cgroup, or a command behind --";
            return Err(Self::command().error(ErrorKind::MissingRequiredArgument, text));
        }
        Ok(cli)
    }
}

/// `--max-overhead` where nothing is said.
const MAX_OVERHEAD: f64 = 0.05;

impl TraceArgs {
    /// The depth that was asked for, or that fits what is traced: a running process may be somebody's production, a command
    /// was started to be looked at, and only counts from its first allocation on tell what is live.
    pub fn depth_choice(&self) -> DepthChoice {
        let is_started_in_full = !self.command.is_empty() && self.max_overhead.is_none();
        self.depth.unwrap_or(if is_started_in_full {
            DepthChoice::Calls
        } else {
            DepthChoice::Auto
        })
    }

    pub fn overhead_limit(&self) -> f64 {
        self.max_overhead.unwrap_or(MAX_OVERHEAD)
    }

    const fn names_nothing(&self) -> bool {
        self.pid.is_empty() && self.comm.is_empty() && self.cgroup.is_empty() && self.command.is_empty()
    }
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make the report of a recorded trace again
    Replay(ReplayArgs),
    /// Show where probes would sit in a process's libc, and why there
    Probes(ProbesArgs),
    /// Try out what is claimed about malloc, mmap and the page cache, on this machine
    Lab(LabArgs),
    /// Say why a process's memory does not come back, from malloc's own books
    Explain(ExplainArgs),
    /// Say what works on this machine, what a trace would cost, and what to do where something is missing
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Trace these running processes
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = pid, allow_negative_numbers = true, help_heading = "What to trace")]
    pub pid: Vec<u32>,
    /// Trace all running processes of this name (as in /proc/PID/comm)
    #[arg(long, value_name = "NAME", help_heading = "What to trace")]
    pub comm: Vec<String>,
    /// Trace all processes now in this control group or below it (as in /proc/PID/cgroup, or its directory)
    #[arg(long, value_name = "PATH", help_heading = "What to trace")]
    pub cgroup: Vec<String>,
    /// Start the command as this user
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pid", "comm", "cgroup"], help_heading = "What to trace")]
    pub user: Option<String>,
    /// Trace children too (fork), each with a part of its own; meanwhile every process that maps the same libc is slowed
    /// down, since a child has to be probed before it runs
    #[arg(short, long, help_heading = "What to trace")]
    pub follow: bool,
    /// The command to start and trace, behind --
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["pid", "comm", "cgroup"], help_heading = "What to trace")]
    pub command: Vec<OsString>,

    /// End after this time: 30s, 500ms, 1m30s, 2h
    #[arg(long = "for", value_name = "TIME", value_parser = quantity::duration, allow_hyphen_values = true)]
    pub duration: Option<Duration>,
    /// How much is watched: the more is known, the more it costs the process. By default auto, so that a running process
    /// is not slowed down; a command that memtrace starts is counted in full (calls), unless --max-overhead is given
    #[arg(long, value_name = "DEPTH", value_enum, help_heading = "What to trace")]
    pub depth: Option<DepthChoice>,
    /// The part of the process's CPU time that the trace may take, 5% if nothing else is said. With `--depth auto` it is
    /// kept; another depth stays, and the report says what it cost
    #[arg(long, value_name = "SHARE", value_parser = quantity::share, help_heading = "What to trace")]
    pub max_overhead: Option<f64>,
    /// Keep the events in this file, for `memtrace replay`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Size of the kernel side's buffer; a larger one loses less in a storm of system calls
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = quantity::buffer, allow_hyphen_values = true)]
    pub buffer: u32,
    /// Show the kernel side's own messages on standard error
    #[arg(long)]
    pub debug_bpf: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DepthChoice {
    /// Memory system calls, thresholds and arenas, by no probe at all: each growth and return, and which function of the
    /// allocator made it. Not known: what was asked for, counts of blocks. Costs the process next to nothing
    Syscalls,
    /// And the allocator's slow path, where calls end up that no thread cache serves: each growth is tied to the request
    /// that made it necessary. Not known: counts of blocks. A process that lives in its thread caches hardly notices
    SlowPath,
    /// Every call of the allocator, counted: blocks, bytes and sizes exactly, the batch behind each growth, what is live.
    /// Costs about a microsecond a call
    Calls,
    /// The deepest that fits `--max-overhead`: every call at first, a lesser depth when that is too dear, with windows of
    /// every call as far as the limit allows, from which totals are estimated; pauses, with windows of system calls, where the
    /// process makes so many that even watching those is too dear; every call again when the storm is over
    Auto,
}

impl DepthChoice {
    pub const fn depth(self) -> Depth {
        match self {
            Self::Syscalls => Depth::Syscalls,
            Self::SlowPath => Depth::SlowPath,
            // What it begins with.
            Self::Calls | Self::Auto => Depth::Calls,
        }
    }
}

#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Form of the report (docs/report.schema.json describes the document)
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Form::Text, help_heading = "Output")]
    pub output: Form,
    /// Write the report to this file instead of standard output
    #[arg(short = 'o', long, value_name = "FILE", help_heading = "Output")]
    pub report_to: Option<PathBuf>,
    /// Also print each growth and return as it happens, one JSON object a line; the report then goes to standard
    /// error, with --output json it is the last line
    #[arg(long, help_heading = "Output")]
    pub events: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people
    Text,
    /// One document for programs, versioned; a schema in docs describes it
    Json,
}

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// A trace written by --record; - is standard input
    pub file: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
#[group(id = "library", required = true, multiple = false)]
pub struct ProbesArgs {
    /// The libc that this process maps
    #[arg(short, long, value_name = "PID", value_parser = pid, allow_negative_numbers = true)]
    pub pid: Option<u32>,
    /// A libc.so.6 on disk
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
}

/// A process id: no sign, no zero, nothing the kernel cannot have.
pub(super) fn pid(text: &str) -> Result<u32, String> {
    match text.trim().parse::<u32>() {
        Ok(pid @ 1..=4_194_304) => Ok(pid),
        _ => Err("a process id is a number from 1 to 4194304".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::read(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn tracing_needs_no_verb() {
        let cli = parse("memtrace --pid 1,2 --pid 3 --for 30s").unwrap();
        assert!(cli.verb.is_none());
        assert_eq!(cli.trace.pid, [1, 2, 3]);
        assert_eq!(cli.trace.duration, Some(Duration::from_secs(30)));
    }

    #[test]
    fn what_follows_the_dashes_is_the_command() {
        let cli = parse("memtrace --output json -- replay --pid 7").unwrap();
        assert!(cli.verb.is_none());
        assert_eq!(cli.trace.command, ["replay", "--pid", "7"]);
        assert!(cli.trace.pid.is_empty());
        assert_eq!(cli.trace.output.output, Form::Json);
    }

    #[test]
    fn a_running_process_is_spared_and_a_command_is_counted_in_full() {
        for (line, depth, limit) in [
            ("memtrace --pid 1", DepthChoice::Auto, 0.05),
            ("memtrace --pid 1 --depth calls", DepthChoice::Calls, 0.05),
            ("memtrace --pid 1 --max-overhead 1%", DepthChoice::Auto, 0.01),
            ("memtrace -- ls", DepthChoice::Calls, 0.05),
            ("memtrace --max-overhead 2% -- ls", DepthChoice::Auto, 0.02),
            (
                "memtrace --depth slow-path --max-overhead 2% -- ls",
                DepthChoice::SlowPath,
                0.02,
            ),
        ] {
            let args = parse(line).unwrap().trace;
            assert_eq!((args.depth_choice(), args.overhead_limit()), (depth, limit), "{line}");
        }
    }

    #[test]
    fn verbs_are_verbs() {
        let Some(Verb::Replay(replay)) = parse("memtrace replay t.mtr --output json").unwrap().verb else {
            panic!("replay is a verb");
        };
        assert_eq!(replay.output.output, Form::Json);
        assert!(parse("memtrace --pid 1 replay t.mtr").is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "memtrace",
            "memtrace --for 3s",
            "memtrace --pid 0",
            "memtrace --pid -1",
            "memtrace --pid x",
            "memtrace --pid 99999999999",
            "memtrace --pid 1 --for soon",
            "memtrace --pid 1 --buffer 1",
            "memtrace --pid 1 --depth deep",
            "memtrace --pid 1 --max-overhead 0",
            "memtrace --pid 1 --max-overhead 200%",
            "memtrace --pid 1 --output xml",
            "memtrace --pid 1 -- ls",
            "memtrace --user nobody --pid 1",
            "memtrace ./server",
            "memtrace probes",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
