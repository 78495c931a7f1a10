//! Is the current task one of those that are traced?

use aya_ebpf::bindings::bpf_pidns_info;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_ns_current_pid_tgid, bpf_get_smp_processor_id};
use memtrace_common::{Counters, ProcessState, ThreadState, active};

use crate::count::bump;
use crate::maps::{COUNTERS, FREE_THREADS, LAST_SEEN, PROCESSES, STATES, THREAD_STATES, THREADS, kernel};

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

/// The current thread and its process, for what happens often: a thread that is known says where its process is.
#[inline(always)]
pub fn active_thread(ids: Ids) -> Option<(Process, Option<*mut ThreadState>)> {
    if let Some(thread) = known_thread(ids) {
        // SAFETY: a value of THREAD_STATES.
        let place = unsafe { (*thread).place };
        return Some((Process::at(place, ids.pid)?, Some(thread)));
    }
    let process = active_process(ids.pid)?;
    Some((process, new_thread(ids, process)))
}

/// A thread's state, made when it is seen for the first time. None when the table is full, which is counted.
#[inline(always)]
pub fn thread(ids: Ids, process: Process) -> Option<*mut ThreadState> {
    match known_thread(ids) {
        Some(thread) => Some(thread),
        None => new_thread(ids, process),
    }
}

/// A thread's state, if it has been seen before.
#[inline(always)]
pub fn known_thread(ids: Ids) -> Option<*mut ThreadState> {
    let key = ids.thread_key();
    let last_seen = LAST_SEEN.get_ptr_mut(ids.tid & (memtrace_common::LAST_SEEN - 1))?;
    // SAFETY: values of LAST_SEEN and THREAD_STATES; a word is not torn, and whose place it is is asked of the place.
    unsafe {
        let thread = THREAD_STATES.get_ptr_mut(*last_seen)?;
        if (*thread).key == key {
            return Some(thread);
        }
        let place = *THREADS.get(key)?;
        *last_seen = place;
        THREAD_STATES.get_ptr_mut(place)
    }
}

/// To be asked before what is kept of a thread's system call or of its signal handlers: it is void where a pause lies between.
#[inline(always)]
pub fn after_pause(process: Process, thread: *mut ThreadState) {
    // SAFETY: values of STATES and THREAD_STATES, the latter written to by its own thread alone.
    unsafe {
        let pause = (*process.state).pause;
        if (*thread).pause != pause {
            (*thread).pause = pause;
            (*thread).pending = 0;
            (*thread).entered = 0;
            (*thread).handlers = 0;
        }
    }
}

#[inline(always)]
fn new_thread(ids: Ids, process: Process) -> Option<*mut ThreadState> {
    let thread = make_thread(ids.thread_key(), process.place);
    if thread.is_none() {
        bump!(process, lost_threads);
    }
    thread
}

#[inline(always)]
fn make_thread(key: u64, process: u32) -> Option<*mut ThreadState> {
    let place = FREE_THREADS.pop().ok()??;
    if THREADS.insert(key, place, 0).is_err() {
        let _ = FREE_THREADS.push(place, 0);
        return None;
    }
    let thread = THREAD_STATES.get_ptr_mut(place)?;
    // SAFETY: a value of THREAD_STATES that is this thread's alone; integers only.
    unsafe {
        thread.write_bytes(0, 1);
        (*thread).place = process;
        (*thread).key = key;
    }
    Some(thread)
}

/// The current thread ends, or begins anew.
#[inline(always)]
pub fn forget_thread(ids: Ids) {
    let key = ids.thread_key();
    // SAFETY: the place is copied.
    let Some(place) = (unsafe { THREADS.get(key) }).copied() else {
        return;
    };
    // The user side may be about to do the same.
    if THREADS.remove(key).is_err() {
        return;
    }
    if let Some(thread) = THREAD_STATES.get_ptr_mut(place) {
        // SAFETY: a value of THREAD_STATES that nobody has now.
        unsafe { (*thread).key = 0 };
    }
    let _ = FREE_THREADS.push(place, 0);
}
