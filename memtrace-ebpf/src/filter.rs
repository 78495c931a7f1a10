//! Is the current task one of those that are traced?

use aya_ebpf::bindings::bpf_pidns_info;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_ns_current_pid_tgid, bpf_get_smp_processor_id};
use memtrace_common::{Counters, ProcessState, ThreadState, active};

use crate::count::bump;
use crate::maps::{COUNTERS, NEW_THREAD, PROCESSES, STATES, THREADS, kernel};

/// Process and thread id, as memtrace sees them in its PID namespace.
#[derive(Clone, Copy)]
pub struct Ids {
    pub pid: u32,
    pub tid: u32,
}

impl Ids {
    /// Key of [`THREADS`].
    #[inline(always)]
    pub fn thread_key(self) -> u64 {
        u64::from(self.pid) << 32 | u64::from(self.tid)
    }
}

/// The current task's ids; None when it is not in memtrace's PID namespace.
#[inline(always)]
pub fn current_ids() -> Option<Ids> {
    let inode = kernel!(namespace_inode);
    if inode == 0 {
        let both = bpf_get_current_pid_tgid();
        return Some(Ids {
            pid: (both >> 32) as u32,
            tid: both as u32,
        });
    }
    let device = kernel!(namespace_device);
    let mut info = bpf_pidns_info { pid: 0, tgid: 0 };
    // SAFETY: the buffer is as large as the helper is told.
    let failed =
        unsafe { bpf_get_ns_current_pid_tgid(device, inode, &raw mut info, size_of::<bpf_pidns_info>() as u32) };
    if failed != 0 {
        return None;
    }
    Some(Ids {
        pid: info.tgid,
        tid: info.pid,
    })
}

/// A process that is traced.
#[derive(Clone, Copy)]
pub struct Process {
    pub place: u32,
    /// A value of STATES.
    pub state: *mut ProcessState,
    /// A value of COUNTERS: this CPU's shard.
    pub counters: *mut Counters,
}

impl Process {
    /// The process at a place, if it is that one and its trace has begun.
    #[inline(always)]
    fn at(place: u32, pid: u32) -> Option<Self> {
        let state = STATES.get_ptr_mut(place)?;
        // SAFETY: a value of STATES.
        if unsafe { (*state).active != active::NOW || (*state).pid != pid } {
            return None;
        }
        // SAFETY: takes nothing and always answers.
        let shard = unsafe { bpf_get_smp_processor_id() } & (kernel!(shards) - 1);
        let counters = COUNTERS.get_ptr_mut(place * kernel!(shards) + shard)?;
        Some(Self { place, state, counters })
    }
}

/// A traced process by its id; None when it is not traced or not yet.
#[inline(always)]
pub fn active_process(pid: u32) -> Option<Process> {
    // SAFETY: the place is copied.
    let place = unsafe { *PROCESSES.get(pid)? };
    Process::at(place, pid)
}

/// The current thread and its process, for what happens often: one look-up is enough for a thread that is known.
#[inline(always)]
pub fn active_thread(ids: Ids) -> Option<(Process, Option<*mut ThreadState>)> {
    if let Some(thread) = THREADS.get_ptr_mut(ids.thread_key()) {
        // SAFETY: a value of THREADS.
        let place = unsafe { (*thread).place };
        return Some((Process::at(place, ids.pid)?, Some(thread)));
    }
    let process = active_process(ids.pid)?;
    Some((process, new_thread(ids, process)))
}

/// A thread's state, made when it is seen for the first time. None when the table is full, which is counted.
#[inline(always)]
pub fn thread(ids: Ids, process: Process) -> Option<*mut ThreadState> {
    match THREADS.get_ptr_mut(ids.thread_key()) {
        Some(thread) => Some(thread),
        None => new_thread(ids, process),
    }
}

#[inline(always)]
fn new_thread(ids: Ids, process: Process) -> Option<*mut ThreadState> {
    let key = ids.thread_key();
    let template = NEW_THREAD.get(0)?;
    // An error means that the table is full; the look-up that follows tells.
    let _ = THREADS.insert(key, template, 0);
    let Some(thread) = THREADS.get_ptr_mut(key) else {
        bump!(process, lost_threads);
        return None;
    };
    // SAFETY: a value of THREADS.
    unsafe { (*thread).place = process.place };
    Some(thread)
}
