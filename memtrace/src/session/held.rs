//! System calls that glibc makes before it gets to what was asked for: setting up an arena, or a thread's cache. They are
//! held back until the slow path is entered, which says the request.
//!
//! ```text
//! malloc(64) -> arena_get2 -> mmap, munmap, mprotect        held
//!            -> tcache_init -> _int_malloc(640)             not malloc's own call
//!            -> _int_malloc(64)                             all of them were made for 64 bytes
//! ```

use std::collections::HashMap;

use memtrace_analysis::event::{Attribution, Entry, Event, EventKind};

/// Between set-up and request lie microseconds, unless the thread has to wait for a CPU.
const PATIENCE_NS: u64 = 500_000_000;

/// Whose call a held system call was made in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub entries: Vec<Entry>,
    pub slot: u64,
    pub return_address: u64,
}

#[derive(Default)]
pub struct Held {
    /// By process and thread.
    threads: HashMap<(u32, u32), (Waiting, Vec<Event>)>,
    newest_ns: u64,
}

impl Held {
    /// Holds an event back. What the thread had waiting for another call is given up on.
    pub fn hold(&mut self, event: Event, waiting: Waiting, free: &mut Vec<Event>) {
        let key = (event.pid, event.tid);
        if self.threads.get(&key).is_some_and(|(before, _)| *before != waiting) {
            self.give_up(key.0, key.1, free);
        }
        self.threads
            .entry(key)
            .or_insert_with(|| (waiting, Vec::new()))
            .1
            .push(event);
    }

    /// Whose call a thread's events wait for.
    pub fn waiting(&self, pid: u32, tid: u32) -> Option<&Waiting> {
        self.threads.get(&(pid, tid)).map(|(waiting, _)| waiting)
    }

    /// The request has become known.
    pub fn resolve(&mut self, pid: u32, tid: u32, request: u64, free: &mut Vec<Event>) {
        let Some((_, events)) = self.threads.remove(&(pid, tid)) else {
            return;
        };
        free.extend(events.into_iter().map(|mut event| {
            if let EventKind::Syscall(call) = &mut event.kind {
                call.attribution = Attribution::Proven;
                if let Some(frame) = &mut call.frame {
                    frame.request = request;
                }
            }
            event
        }));
    }

    /// The thread does something else: what it asked for stays unknown.
    pub fn give_up(&mut self, pid: u32, tid: u32, free: &mut Vec<Event>) {
        if let Some((_, events)) = self.threads.remove(&(pid, tid)) {
            free.extend(events);
        }
    }

    /// Gives up on what has waited too long by `now_ns`, a record's time.
    pub fn time_passes(&mut self, now_ns: u64, free: &mut Vec<Event>) {
        self.newest_ns = self.newest_ns.max(now_ns);
        if self.threads.is_empty() {
            return;
        }
        let newest = self.newest_ns;
        let old = |events: &[Event]| {
            events
                .first()
                .is_some_and(|event| event.time_ns.saturating_add(PATIENCE_NS) < newest)
        };
        let keys: Vec<(u32, u32)> = self
            .threads
            .iter()
            .filter(|(_, (_, events))| old(events))
            .map(|(&key, _)| key)
            .collect();
        for (pid, tid) in keys {
            self.give_up(pid, tid, free);
        }
    }

    /// Gives up on everything, or on everything of one process.
    pub fn flush(&mut self, of: Option<u32>, free: &mut Vec<Event>) {
        let keys: Vec<(u32, u32)> = self.threads.keys().copied().collect();
        for (pid, tid) in keys.into_iter().filter(|(pid, _)| of.is_none_or(|of| of == *pid)) {
            self.give_up(pid, tid, free);
        }
    }
}
