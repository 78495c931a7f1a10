//! Records for the user side.

use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns};
use memtrace_common::{Header, LifeRecord, ThreadState};

use crate::count::{bump, snapshot};
use crate::filter::{Ids, Process};
use crate::maps::EVENTS;

/// CLOCK_MONOTONIC in nanoseconds.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: takes nothing and always answers.
    unsafe { bpf_ktime_get_ns() }
}

#[inline(always)]
pub fn header<T>(kind: u16, ids: Ids) -> Header {
    Header {
        kind,
        length: size_of::<T>() as u16,
        // SAFETY: takes nothing and always answers.
        cpu: unsafe { bpf_get_smp_processor_id() },
        time_ns: now(),
        pid: ids.pid,
        tid: ids.tid,
    }
}

/// Sends a record that `fill` writes in full; counts it as lost when the buffer is full, and says so with false.
///
/// `fill` writes through a pointer into the ring buffer, since most records are too large for the stack.
#[inline(always)]
pub fn send<T: 'static>(process: Process, fill: impl FnOnce(*mut T)) -> bool {
    match EVENTS.reserve::<T>(0) {
        Some(mut entry) => {
            fill(entry.as_mut_ptr());
            entry.submit(0);
            true
        }
        None => {
            bump!(process, lost_records);
            false
        }
    }
}

#[inline(always)]
pub fn life(kind: u16, ids: Ids, process: Process, thread: Option<*const ThreadState>, other: u32, detail: u32) {
    send::<LifeRecord>(process, |record| {
        let filled = LifeRecord {
            header: header::<LifeRecord>(kind, ids),
            other,
            detail,
            snapshot: snapshot(process, thread),
        };
        // SAFETY: `record` is the reserved memory, of that size and alignment.
        unsafe { record.write(filled) };
    });
}
