//! Is the current task one of those that are traced?

use aya_ebpf::bindings::bpf_pidns_info;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_get_ns_current_pid_tgid;
use memtrace_common::{ProcessState, ThreadState, active};

use crate::count::bump;
use crate::maps::{NEW_THREAD, PROCESSES, THREADS, kernel};

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

/// The state of a traced process; None when it is not traced or not yet.
#[inline(always)]
pub fn active_process(pid: u32) -> Option<*mut ProcessState> {
    let process = PROCESSES.get_ptr_mut(&pid)?;
    // SAFETY: a value of PROCESSES.
    if unsafe { (*process).active } != active::NOW {
        return None;
    }
    Some(process)
}

/// A thread's state, made when it is seen for the first time. None when the table is full, which is counted.
#[inline(always)]
pub fn thread(ids: Ids, process: *mut ProcessState) -> Option<*mut ThreadState> {
    let key = ids.thread_key();
    if let Some(thread) = THREADS.get_ptr_mut(&key) {
        return Some(thread);
    }
    let found = new_thread(key);
    if found.is_none() {
        bump!(process, lost_threads);
    }
    found
}

#[inline(always)]
fn new_thread(key: u64) -> Option<*mut ThreadState> {
    let template = NEW_THREAD.get(0)?;
    // An error means that the table is full; the look-up that follows tells.
    let _ = THREADS.insert(&key, template, 0);
    THREADS.get_ptr_mut(&key)
}
