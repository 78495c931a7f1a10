//! Work done in windows of time, for measurements from outside: a line with a number of milliseconds opens a window, and
//! a line answers with what was done in it. Between two windows the program sleeps in read(2).
//!
//! ```text
//! ready pid=4242 threads=8
//! window ns=200013431 work=1934080 gap_ns=812344 gap_at_ns=5123456789
//! ```
//!
//! `ns` is the window's length as it was, `work` what all threads did together; `gap_ns` is the longest time that a thread
//! took for one portion of [`Worker::portion`], and `gap_at_ns` when that one ended (CLOCK_MONOTONIC). At the end of the
//! input the program ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::clock;
use crate::line;
use crate::stage;

pub const MOST_THREADS: usize = 64;

/// What one thread of a program works on.
pub trait Worker: Send {
    /// A window opens.
    fn begin(&mut self) {}

    /// Does a portion, some microseconds of work, and says how much that was.
    fn portion(&mut self) -> u64;
}

struct Gate {
    /// Counts windows; a thread works when it has not seen this one.
    opened: u64,
    at_work: usize,
}

static GATE: Mutex<Gate> = Mutex::new(Gate { opened: 0, at_work: 0 });
static CHANGED: Condvar = Condvar::new();
static OPEN: AtomicBool = AtomicBool::new(false);
static WORK: AtomicU64 = AtomicU64::new(0);
static GAP_NS: AtomicU64 = AtomicU64::new(0);
static GAP_AT_NS: AtomicU64 = AtomicU64::new(0);

/// Serves windows with one thread for each worker until the input ends.
pub fn serve<W: Worker + 'static>(workers: &mut [W]) {
    for worker in workers.iter_mut() {
        start_thread(worker);
    }
    line::print(format_args!(
        "ready pid={} threads={}",
        std::process::id(),
        workers.len()
    ));
    while let Some(milliseconds) = stage::read_number() {
        window(milliseconds, workers.len());
    }
    // The threads end with the process, wherever they wait.
}

fn window(milliseconds: u64, threads: usize) {
    for figure in [&WORK, &GAP_NS, &GAP_AT_NS] {
        figure.store(0, Ordering::Relaxed);
    }
    OPEN.store(true, Ordering::Release);
    let began = clock::now_ns();
    {
        let mut gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
        gate.opened += 1;
        gate.at_work = threads;
        CHANGED.notify_all();
    }
    clock::idle_until(began + milliseconds * 1_000_000);
    OPEN.store(false, Ordering::Release);
    let mut gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    while gate.at_work > 0 {
        gate = CHANGED.wait(gate).unwrap_or_else(PoisonError::into_inner);
    }
    drop(gate);
    let ns = clock::now_ns() - began;
    line::print(format_args!(
        "window ns={ns} work={} gap_ns={} gap_at_ns={}",
        WORK.load(Ordering::Relaxed),
        GAP_NS.load(Ordering::Relaxed),
        GAP_AT_NS.load(Ordering::Relaxed)
    ));
}

/// pthread_create itself, since std's threads allocate on their own account.
fn start_thread<W: Worker + 'static>(worker: &mut W) {
    let mut id = 0;
    // SAFETY: the worker lives until the process ends, and nobody else touches it.
    let failed = unsafe {
        libc::pthread_create(
            &raw mut id,
            core::ptr::null(),
            work_in_thread::<W>,
            core::ptr::from_mut(worker).cast(),
        )
    };
    if failed != 0 {
        line::error(format_args!(
            "memtrace-lab: starting a thread failed with error {failed}"
        ));
        // SAFETY: ends the process without running anything of ours.
        unsafe { libc::_exit(2) };
    }
}

extern "C" fn work_in_thread<W: Worker>(worker: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: see `start_thread`.
    let worker = unsafe { &mut *worker.cast::<W>() };
    let mut seen = 0;
    loop {
        let mut gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
        while gate.opened == seen {
            gate = CHANGED.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        seen = gate.opened;
        drop(gate);
        work(worker);
        let mut gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
        gate.at_work -= 1;
        CHANGED.notify_all();
    }
}

fn work<W: Worker>(worker: &mut W) {
    let (mut done, mut gap, mut gap_at) = (0, 0, 0);
    worker.begin();
    let mut before = clock::now_ns();
    while OPEN.load(Ordering::Acquire) {
        done += worker.portion();
        let now = clock::now_ns();
        if now - before > gap {
            gap = now - before;
            gap_at = now;
        }
        before = now;
    }
    WORK.fetch_add(done, Ordering::Relaxed);
    let _gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    if gap > GAP_NS.load(Ordering::Relaxed) {
        GAP_NS.store(gap, Ordering::Relaxed);
        GAP_AT_NS.store(gap_at, Ordering::Relaxed);
    }
}
