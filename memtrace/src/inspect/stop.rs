//! Stopping a process for a moment.
//!
//! PTRACE_SEIZE and PTRACE_INTERRUPT rather than SIGSTOP: when memtrace dies, by whatever means, the kernel lets go of
//! everything it traced, while a process stopped by SIGSTOP would stay so for good. The process also sees nothing of
//! it: no signal, no change of its parent's view.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::proc_file::thread_ids;

use crate::sentence;

/// A thread that sleeps where no signal reaches it may not stop for long; better to give up and say so.
const PATIENCE: Duration = Duration::from_secs(2);

/// All threads of a process, standing still until this is dropped.
pub struct Stopped {
    /// The signal each thread is owed, 0 for none.
    threads: BTreeMap<libc::pid_t, libc::c_int>,
    since: Instant,
    /// Only the thread that attached can let go.
    bound: PhantomData<*const ()>,
}

impl Stopped {
    pub fn all_threads_of(pid: u32) -> Result<Stopped> {
        let mut stopped = Stopped {
            threads: BTreeMap::new(),
            since: Instant::now(),
            bound: PhantomData,
        };
        // Threads that still run can start others; none can once all that are listed stand still.
        loop {
            let fresh: Vec<libc::pid_t> = thread_ids(pid)?
                .into_iter()
                .filter(|tid| !stopped.threads.contains_key(tid))
                .collect();
            if fresh.is_empty() {
                return Ok(stopped);
            }
            for tid in fresh {
                stopped
                    .stop(tid)
                    .with_context(|| format!("stopping thread {tid} of process {pid}"))?;
            }
        }
    }

    /// How long it has stood still so far.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    fn stop(&mut self, tid: libc::pid_t) -> Result<()> {
        match request(libc::PTRACE_SEIZE, tid, 0) {
            Ok(()) => {}
            // It ended since it was listed.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                bail!(
                    "not permitted, or another tracer holds it ({})",
                    sentence::of_error(&error)
                )
            }
            Err(error) => return Err(error.into()),
        }
        // From here on it has to be let go, whatever happens.
        self.threads.insert(tid, 0);
        request(libc::PTRACE_INTERRUPT, tid, 0).context("interrupting it")?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut status = 0;
            // SAFETY: `status` lives through the call; no other memory is handed over.
            let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
            if waited == tid {
                if libc::WIFSTOPPED(status) {
                    // A signal that arrived just now was kept from it, and must be handed on.
                    let event = status >> 16 != 0;
                    self.threads.insert(tid, if event { 0 } else { libc::WSTOPSIG(status) });
                } else {
                    self.threads.remove(&tid);
                }
                return Ok(());
            }
            if waited < 0 {
                self.threads.remove(&tid);
                return Err(std::io::Error::last_os_error()).context("waiting for it");
            }
            if Instant::now() > deadline {
                bail!("it did not stop within {} seconds", PATIENCE.as_secs());
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for (tid, signal) in &self.threads {
            // A thread that was killed meanwhile is gone already; there is nobody to tell of it.
            let _ = request(libc::PTRACE_DETACH, *tid, *signal);
        }
    }
}

fn request(what: libc::c_uint, tid: libc::pid_t, data: libc::c_int) -> Result<(), std::io::Error> {
    let null = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests take no address, and their data is a number.
    let result = unsafe { libc::ptrace(what, tid, null, libc::c_long::from(data)) };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
