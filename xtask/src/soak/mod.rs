//! The soak: memtrace comes to a checking target and goes, again and again, in every way that it can, and at the end nobody
//! can tell that it was there.
//!
//! ```text
//! target   memtrace-lab checking: verifies its own blocks, forks, executes, loads libraries, starts threads
//! visit    memtrace attaches at some depth, stays a while, and ends: asked to, at its time, terminated, hung up, crashed, or killed
//! traces   the lists of BPF programs and links, and of tracefs's uprobes, before and after
//! ```

mod dice;
mod target;
mod traces;

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::bench;
use crate::lines::Lines;
use crate::process::{self, Root, say};
use crate::workspace;

use dice::Dice;
use target::Target;
use traces::Traces;

#[derive(Args)]
pub struct Options {
    /// How long
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    minutes: f64,
    /// What is drawn at random follows from this (the time of day, unless given)
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Build nothing: what is run is there already
    #[arg(long, hide = true)]
    built: bool,
}

pub fn soak(options: &Options) -> Result<()> {
    if !options.minutes.is_finite() || options.minutes <= 0.0 {
        bail!("a soak takes more than {} minutes", options.minutes);
    }
    if !options.built {
        bench::build()?;
    }
    if Root::find_out()? != Root::Already {
        return bench::again_as_root();
    }
    let seed = match options.seed {
        Some(seed) => seed,
        None => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .context("reading the time")?
            .as_nanos() as u64,
    };
    say(&format!("soaking for {} minutes, seed {seed}", options.minutes));
    let before = Traces::look()?;
    let visits = run(Duration::from_secs_f64(options.minutes * 60.0), seed)?;
    let left = before.wait_until_gone()?;
    println!("{}", visits.in_words());
    if !left.is_empty() {
        bail!("left behind: {}", left.join(", "));
    }
    println!(
        "nothing is left behind: {} BPF programs, {} links and {} lines of tracefs's uprobe lists as before",
        before.programs(),
        before.links(),
        before.lines()
    );
    Ok(())
}

#[derive(Default)]
struct Visits {
    /// By the way they ended.
    ends: [u32; End::ALL.len()],
    targets: u32,
    facts: Vec<String>,
}

impl Visits {
    fn in_words(&self) -> String {
        let ends: Vec<String> = End::ALL
            .iter()
            .zip(self.ends)
            .map(|(end, times)| format!("{} {times}", end.in_words()))
            .collect();
        format!(
            "{} visits ({}); {} targets, all of them intact: {}",
            self.ends.iter().sum::<u32>(),
            ends.join(", "),
            self.targets,
            self.facts.join("; ")
        )
    }
}

/// How a visit ends.
#[derive(Clone, Copy)]
enum End {
    /// SIGINT, as by Ctrl-C.
    Asked,
    /// Its own `--for`.
    Time,
    /// SIGTERM
    Terminated,
    /// SIGHUP, as by a terminal that is lost.
    HungUp,
    /// SIGABRT, as by a crash.
    Crashed,
    /// SIGKILL once it is attached.
    Killed,
    /// SIGKILL at any moment, also while it attaches.
    KilledEarly,
}

impl End {
    const ALL: [Self; 7] = [
        Self::Asked,
        Self::Time,
        Self::Terminated,
        Self::HungUp,
        Self::Crashed,
        Self::Killed,
        Self::KilledEarly,
    ];

    const fn in_words(self) -> &'static str {
        match self {
            Self::Asked => "interrupted",
            Self::Time => "at their time",
            Self::Terminated => "terminated",
            Self::HungUp => "hung up",
            Self::Crashed => "crashed",
            Self::Killed => "killed",
            Self::KilledEarly => "killed while they attached",
        }
    }
}

/// None: as memtrace chooses.
const DEPTHS: [Option<&str>; 4] = [None, Some("syscalls"), Some("slow-path"), Some("calls")];

/// A target lives for this long, then says whether it is intact, and another one takes its place.
const LIFE: Duration = Duration::from_secs(60);

fn run(length: Duration, seed: u64) -> Result<Visits> {
    let mut dice = Dice::new(seed);
    let mut visits = Visits::default();
    let until = Instant::now() + length;
    while Instant::now() < until {
        let target = Target::start(&mut dice)?;
        let born = Instant::now();
        while Instant::now() < until && born.elapsed() < LIFE {
            let end = dice.among(&End::ALL);
            visit(target.pid(), &mut dice, end)
                .with_context(|| format!("a visit that was to end {}", end.in_words()))?;
            visits.ends[end as usize] += 1;
        }
        visits.facts.push(target.end()?);
        visits.targets += 1;
        say(&format!("{} visits so far", visits.ends.iter().sum::<u32>()));
    }
    Ok(visits)
}

fn visit(pid: u32, dice: &mut Dice, end: End) -> Result<()> {
    let mut command = Command::new(workspace::target().join("release/memtrace"));
    command.args(["--output", "json", "--pid", &pid.to_string()]);
    if let Some(depth) = dice.among(&DEPTHS) {
        command.args(["--depth", depth]);
    }
    if dice.below(3) == 0 {
        command.arg("--follow");
    }
    let stay = Duration::from_millis(50 + dice.below(1_500));
    if matches!(end, End::Time) {
        command.args(["--for", &format!("{}ms", stay.as_millis())]);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting memtrace")?;
    let mut errors = Lines::of(child.stderr.take().context("no standard error")?);
    if matches!(end, End::KilledEarly) {
        thread::sleep(Duration::from_millis(dice.below(600)));
        child.kill().context("killing memtrace")?;
        child.wait().context("waiting for memtrace")?;
        return Ok(());
    }
    errors.wait_for("attached")?;
    match end {
        End::Time => {}
        End::Asked => sign_off(&child, stay, "INT")?,
        End::Terminated => sign_off(&child, stay, "TERM")?,
        End::HungUp => sign_off(&child, stay, "HUP")?,
        End::Crashed => sign_off(&child, stay, "ABRT")?,
        End::Killed | End::KilledEarly => {
            thread::sleep(stay);
            child.kill().context("killing memtrace")?;
        }
    }
    ended(child, end, errors)
}

fn sign_off(child: &Child, stay: Duration, signal: &str) -> Result<()> {
    thread::sleep(stay);
    process::signal(child.id(), signal)
}

fn ended(mut child: Child, end: End, errors: Lines) -> Result<()> {
    let status = child.wait().context("waiting for memtrace")?;
    let wanted = match end {
        End::Asked | End::Time | End::HungUp => status.success(),
        // However it takes that signal.
        End::Terminated => true,
        End::Crashed | End::Killed | End::KilledEarly => !status.success(),
    };
    if !wanted {
        bail!("memtrace ended with {status}: {}", errors.rest().join("; "));
    }
    Ok(())
}
