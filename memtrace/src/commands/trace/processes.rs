//! The processes of a trace that are alive, and the news of their ends.

use std::collections::BTreeMap;
use std::io;

use memtrace_analysis::event::{Capabilities, Watching};
use tokio::sync::mpsc;

use super::attach::Known;
use super::pidfd::PidFd;
use crate::target::Target;

/// A traced process that is alive.
#[derive(Clone, Debug)]
pub struct Process {
    pub target: Target,
    pub capabilities: Capabilities,
    pub watching: Watching,
    /// It has replaced its program, and what it is now is not known yet: so many ticks have passed.
    pub unknown_since_exec: Option<u32>,
    /// Executable code has been mapped since its modules were listed.
    pub new_code: bool,
}

pub struct Processes {
    alive: BTreeMap<u32, Process>,
    ended: mpsc::UnboundedReceiver<u32>,
    tell: mpsc::UnboundedSender<u32>,
}

impl Processes {
    pub fn new() -> Self {
        let (tell, ended) = mpsc::unbounded_channel();
        Self {
            alive: BTreeMap::new(),
            ended,
            tell,
        }
    }

    /// Adds a process of which a handle was taken before anything else.
    pub fn add_with(&mut self, known: &Known, handle: PidFd) {
        let tell = self.tell.clone();
        let pid = known.target.pid;
        tokio::spawn(async move {
            // Waiting for a handle fails only when the runtime is going away, and nobody listens then.
            if handle.ended().await.is_ok() {
                let _nobody = tell.send(pid);
            }
        });
        self.insert(known);
    }

    /// Adds a process whose id cannot have come to mean another one: a child that has not been waited for, or one that
    /// a traced process has just made. One that is gone already is news at once.
    pub fn add(&mut self, known: &Known) -> io::Result<()> {
        match PidFd::open(known.target.pid) {
            Ok(handle) => self.add_with(known, handle),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                let _nobody = self.tell.send(known.target.pid);
                self.insert(known);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn insert(&mut self, known: &Known) {
        let process = Process {
            target: known.target.clone(),
            capabilities: known.capabilities.clone(),
            watching: known.watching,
            unknown_since_exec: None,
            new_code: false,
        };
        self.alive.insert(process.target.pid, process);
    }

    /// The id of the next process to end. Never returns without one.
    pub async fn next_end(&mut self) -> Option<u32> {
        self.ended.recv().await
    }

    pub fn remove(&mut self, pid: u32) -> Option<Process> {
        self.alive.remove(&pid)
    }

    pub fn get(&self, pid: u32) -> Option<&Process> {
        self.alive.get(&pid)
    }

    pub fn get_mut(&mut self, pid: u32) -> Option<&mut Process> {
        self.alive.get_mut(&pid)
    }

    pub fn is_empty(&self) -> bool {
        self.alive.is_empty()
    }

    pub fn pids(&self) -> Vec<u32> {
        self.alive.keys().copied().collect()
    }

    /// Who is traced, in a few words.
    pub fn in_words(&self) -> Option<String> {
        let mut processes = self.alive.values();
        let first = processes.next()?;
        Some(match processes.count() {
            0 => format!("{} (pid {})", first.target.name, first.target.pid),
            others => format!("{} processes", others + 1),
        })
    }
}
