//! Records for the user side.

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_RING_SIZE};
use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns};
use aya_ebpf::maps::ring_buf::RingBufEntry;
use memtrace_common::{Header, LifeRecord, ThreadState, record};

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

/// Copies word by word. A plain assignment becomes a call of memmove, a loop over bytes, where the compiler cannot tell that
/// the two do not overlap: most of what the verifier had to follow, and dear at run time.
///
/// # Safety
/// Both are valid for the access, and aligned to words of which `T` consists.
#[inline(always)]
pub unsafe fn copy<T: Copy>(to: *mut T, from: *const T) {
    const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() == 8) };
    let (to, from) = (to.cast::<u64>(), from.cast::<u64>());
    for word in 0..size_of::<T>() / 8 {
        // SAFETY: the caller vouches for it.
        unsafe { to.add(word).write_volatile(from.add(word).read()) };
    }
}

/// Fills with zeros, likewise.
///
/// # Safety
/// As above.
#[inline(always)]
pub unsafe fn clear<T: Copy>(what: *mut T) {
    const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() == 8) };
    for word in 0..size_of::<T>() / 8 {
        // SAFETY: the caller vouches for it.
        unsafe { what.cast::<u64>().add(word).write_volatile(0) };
    }
}

/// When the user side has to know of a record.
#[derive(Clone, Copy)]
pub enum Wake {
    /// It looks by itself every now and then, and is woken only where records pile up: to wake it costs the traced
    /// process more than the record, an interrupt and a switch of tasks for each.
    Whenever,
    /// It has to act while the process is still as it is.
    AtOnce,
}

/// Records that pile up are told each time that they fill another one of so many parts of the buffer.
const PARTS: u64 = 16;

#[inline(always)]
fn flags<T>(wake: Wake) -> u64 {
    let part = EVENTS.query(u64::from(BPF_RB_RING_SIZE)) / PARTS;
    let waiting = EVENTS.query(u64::from(BPF_RB_AVAIL_DATA));
    // Other processors' records may have come between; one that is told of too late is found at the next look.
    let told = part == 0 || waiting >= part && waiting % part < 2 * size_of::<T>() as u64;
    match wake {
        Wake::Whenever if !told => u64::from(BPF_RB_NO_WAKEUP),
        _ => u64::from(BPF_RB_FORCE_WAKEUP),
    }
}

/// Room for a record, which is to be written in full and submitted; None, and counted as lost, when the buffer is full.
///
/// A record is written through a pointer into the ring buffer, since most are too large for the stack; and where it is needed,
/// not in a closure: what two programs share the compiler makes a function of, whose frame comes on top of the program's.
#[inline(always)]
pub fn reserve<T: 'static>(process: Process) -> Option<RingBufEntry<T>> {
    let entry = EVENTS.reserve::<T>(0);
    if entry.is_none() {
        bump!(process, lost_records);
    }
    entry
}

#[inline(always)]
pub fn submit<T: 'static>(entry: RingBufEntry<T>, wake: Wake) {
    entry.submit(flags::<T>(wake));
}

#[inline(always)]
pub fn life(kind: u16, ids: Ids, process: Process, thread: Option<*const ThreadState>, other: u32, detail: u32) {
    let wake = match kind {
        record::THREAD_START | record::THREAD_EXIT => Wake::Whenever,
        _ => Wake::AtOnce,
    };
    let Some(mut entry) = reserve::<LifeRecord>(process) else {
        return;
    };
    entry.write(LifeRecord {
        header: header::<LifeRecord>(kind, ids),
        other,
        detail,
        snapshot: snapshot(process, thread),
    });
    submit(entry, wake);
}
