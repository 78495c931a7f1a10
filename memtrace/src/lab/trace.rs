//! A run of a program with its memory system calls traced: memtrace's own eyes, used on the lab's programs.
//!
//! The programs wait at their first phase, before they do what they are about: that is where the trace begins. It ends
//! at their last line, while they still wait, so that nothing is missed and nothing has to be guessed.

use crate::page_size::page_size;
use crate::sentence;
use anyhow::{Context, Result};
use memtrace_analysis::Analyzer;
use memtrace_analysis::event::{EndReason, Event, EventKind, Start, Thresholds};
use memtrace_analysis::report::Report;

use super::interrupt::{self, Interrupted};
use super::run::{self, Command, Run, Stop};
use crate::probe::ProbePlan;
use crate::session::{self, Begin, Session};
use crate::target::Target;

/// Loads the kernel side for each run, and takes it away: an enabled tracepoint costs every system call of the machine
/// some 50 ns, which are not to be in the timings.
pub struct Tracer {
    /// A session's file descriptors are registered with it.
    runtime: tokio::runtime::Runtime,
}

/// What a trace of a run brought.
pub enum Traced {
    Seen {
        run: Run,
        report: Box<Report>,
    },
    /// Why there is none.
    Not(String),
}

/// To be called before any thread is started (see [`session::mount_if_missing`]).
pub fn open() -> Result<Tracer> {
    // SAFETY: asks for this process's own user id.
    if unsafe { libc::geteuid() } != 0 {
        anyhow::bail!("tracing needs root");
    }
    session::mount_if_missing().context("looking for the kernel's trace events")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the event loop")?;
    let tracer = Tracer { runtime };
    // What is missing is said once, at the begin.
    drop(tracer.load()?);
    Ok(tracer)
}

impl Tracer {
    fn load(&self) -> Result<Session> {
        let _inside = self.runtime.enter();
        Session::load(&session::Options::default())
    }

    /// Runs a program to its end, traced from its first phase on. An error of the program's is one; a trace that fails is
    /// no trace.
    pub fn run(&self, command: &Command) -> Result<Traced> {
        let mut session = self.load()?;
        let mut trace: Option<Result<Trace>> = None;
        let run = run::run_with(command, |stop, pid| {
            match &mut trace {
                None => trace = Some(Trace::begin(&mut session, stop, pid)),
                Some(Ok(trace)) => trace.take(&mut session, pid),
                Some(Err(_)) => {}
            }
            Ok(())
        });
        let ended = match trace {
            None => Ok(None),
            Some(Ok(trace)) => trace.end(&mut session).map(Some),
            Some(Err(error)) => Err(error),
        };
        let run = run?;
        Ok(match ended {
            Ok(Some(report)) => Traced::Seen {
                run,
                report: Box::new(report),
            },
            Ok(None) => Traced::Not("the program had no phase to begin at".to_string()),
            Err(error) if error.is::<Interrupted>() || interrupt::asked() => return Err(error),
            Err(error) => Traced::Not(format!("tracing failed: {}", sentence::of(&error))),
        })
    }
}

/// A trace under way.
struct Trace {
    pid: u32,
    analyzer: Analyzer,
}

impl Trace {
    fn begin(session: &mut Session, stop: &Stop, pid: u32) -> Result<Self> {
        let target = Target::of_pid(pid).with_context(|| format!("looking at process {pid}"))?;
        let plan = match &target.libc {
            Some(library) => {
                let bytes = library.read().with_context(|| format!("reading {}", library.shown))?;
                Some(
                    ProbePlan::for_library(&bytes)
                        .with_context(|| format!("looking for malloc in {}", library.shown))?,
                )
            }
            // Another allocator serves it: its system calls are worth seeing.
            None => None,
        };
        let capabilities = session
            .add(&target, plan.as_ref(), false, Begin::Later)
            .with_context(|| format!("attaching to process {pid}"))?;
        let mut trace = Self {
            pid,
            analyzer: Analyzer::new(),
        };
        let books = stop.look.books;
        trace.push(EventKind::Start(Box::new(Start {
            name: target.name.clone(),
            command: target.command.clone(),
            threads: target.threads,
            from_birth: false,
            allocator: target.allocator.clone(),
            break_end: stop.look.heap_end,
            page_size: page_size(),
            resident_bytes: Some(stop.look.resident as u64),
            thresholds: books.map(|books| Thresholds {
                mmap_threshold: books.mmap_threshold,
                trim_threshold: books.trim_threshold,
                top_pad: books.top_pad,
                dynamic: Some(books.dynamic),
            }),
            capabilities,
        })));
        trace.push(EventKind::Modules(target.modules));
        session.activate(pid)?;
        Ok(trace)
    }

    /// At a phase: what has come meanwhile, and the totals so far.
    fn take(&mut self, session: &mut Session, pid: u32) {
        for event in session.pending() {
            self.analyzer.push(event);
        }
        // A phase of the program's own child says nothing of the traced process.
        if pid == self.pid
            && let Some(totals) = session.totals(pid)
        {
            self.push(EventKind::Totals(Box::new(totals)));
        }
    }

    fn end(mut self, session: &mut Session) -> Result<Report> {
        let pid = self.pid;
        self.take(session, pid);
        self.push(EventKind::End {
            reason: EndReason::ProcessExited,
        });
        session.detach();

        Ok(self.analyzer.report())
    }

    fn push(&mut self, kind: EventKind) {
        self.analyzer.push(Event {
            time_ns: now_ns(),
            pid: self.pid,
            tid: self.pid,
            kind,
        });
    }
}

/// CLOCK_MONOTONIC, the clock of the kernel side's events.
fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the structure it is given; this clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
