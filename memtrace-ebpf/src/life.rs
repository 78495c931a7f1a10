//! Threads and processes that come, change and go. Raw tracepoints, since their records do not say what is needed;
//! what they point to is read at offsets that the loader found in the kernel's type information.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::generated::bpf_get_current_task;
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel};
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use aya_log_ebpf::debug;
use memtrace_common::{STATUS_UNKNOWN, ThreadState, UNKNOWN_OFFSET, record, untouched};

use crate::emit;
use crate::filter::{self, Ids, Process, active_process, current_ids};
use crate::maps::{FREE_PLACES, PROCESSES, STATES, kernel};

/// PID namespaces can be nested to this depth (MAX_PID_NS_LEVEL).
const LEVELS: u32 = 32;

/// Reads a field of a kernel structure.
#[inline(always)]
fn read<T>(structure: u64, offset: u32) -> Option<T> {
    if offset == UNKNOWN_OFFSET {
        return None;
    }
    // SAFETY: the helper refuses addresses that cannot be read.
    unsafe { bpf_probe_read_kernel(structure.wrapping_add(u64::from(offset)) as *const T) }.ok()
}

/// A task's id in memtrace's PID namespace.
#[inline(always)]
fn id_of(task: u64) -> Option<u32> {
    let inode = kernel!(namespace_inode);
    if inode == 0 {
        return read::<u32>(task, kernel!(task_pid));
    }
    let pid: u64 = read(task, kernel!(task_thread_pid))?;
    let level: u32 = read(pid, kernel!(pid_level))?;
    for at in 0..LEVELS {
        if at > level {
            break;
        }
        let number = pid
            .wrapping_add(u64::from(kernel!(pid_numbers)))
            .wrapping_add(u64::from(at) * u64::from(kernel!(upid_size)));
        let namespace: u64 = read(number, kernel!(upid_ns))?;
        let inum: u32 = read(namespace, kernel!(namespace_inum))?;
        if u64::from(inum) == inode {
            return read::<u32>(number, kernel!(upid_nr));
        }
    }
    None
}

/// The state of a thread, to be read.
#[inline(always)]
fn known(ids: Ids) -> Option<*const ThreadState> {
    filter::known_thread(ids).map(<*mut ThreadState>::cast_const)
}

/// A task was made by the current one and does not run yet. Arguments: the new task, the flags of clone.
#[raw_tracepoint]
pub fn task_newtask(ctx: RawTracePointContext) -> i32 {
    let Some(ids) = current_ids() else { return 0 };
    let Some(process) = active_process(ids.pid) else {
        return 0;
    };
    let child: u64 = ctx.arg(0);
    // SAFETY: takes nothing and always answers.
    let parent = unsafe { bpf_get_current_task() };
    let (Some(child_tgid), Some(parent_tgid)) = (
        read::<u32>(child, kernel!(task_tgid)),
        read::<u32>(parent, kernel!(task_tgid)),
    ) else {
        return 0;
    };
    let Some(id) = id_of(child) else { return 0 };
    let thread = known(ids);
    if child_tgid == parent_tgid {
        emit::life(record::THREAD_START, ids, process, thread, id, 0);
        return 0;
    }
    let traced = follow(process, id);
    debug!(
        &ctx,
        "process {} made process {}, traced: {}",
        ids.pid,
        id,
        u32::from(traced)
    );
    emit::life(record::FORK, ids, process, thread, id, u32::from(traced));
    0
}

/// Traces the child as its parent is traced, if that is wanted and there is room.
#[inline(always)]
fn follow(parent: Process, child: u32) -> bool {
    // SAFETY: values of STATES; the child's place belongs to nobody else.
    unsafe {
        if (*parent.state).follow == 0 {
            return false;
        }
        let Ok(Some(place)) = FREE_PLACES.pop() else {
            return false;
        };
        let Some(state) = STATES.get_ptr_mut(place) else {
            return false;
        };
        emit::copy(state, parent.state);
        (*state).pid = child;
        if PROCESSES.insert(child, place, 0).is_ok() {
            return true;
        }
        // There are as many places as fit into that table: it is full of ids whose processes have not been removed.
        let _ = FREE_PLACES.push(place, 0);
        false
    }
}

/// The current process has a new program. Arguments: the task, its thread id before (it takes that of the process).
#[raw_tracepoint]
pub fn sched_process_exec(ctx: RawTracePointContext) -> i32 {
    let Some(ids) = current_ids() else { return 0 };
    let Some(process) = active_process(ids.pid) else {
        return 0;
    };
    let before: u64 = ctx.arg(1);
    filter::forget_thread(ids);
    if kernel!(namespace_inode) == 0 {
        let old = Ids {
            pid: ids.pid,
            tid: before as u32,
        };
        filter::forget_thread(old);
    }
    // SAFETY: a value of STATES.
    unsafe {
        (*process.state).libc_base = 0;
        (*process.state).untouched = untouched::ALL;
    }
    debug!(&ctx, "process {} replaced its program", ids.pid);
    let by_another = before as u32 != bpf_get_current_pid_tgid() as u32;
    emit::life(record::EXEC, ids, process, None, 0, u32::from(by_another));
    0
}

/// A thread ends; the last one takes its process along. The kernel has by then taken it off `signal->live`.
#[raw_tracepoint]
pub fn sched_process_exit(ctx: RawTracePointContext) -> i32 {
    let _ = ctx.as_ptr();
    let Some(ids) = current_ids() else { return 0 };
    let Some(process) = active_process(ids.pid) else {
        return 0;
    };
    emit::life(record::THREAD_EXIT, ids, process, known(ids), 0, 0);
    filter::forget_thread(ids);
    // SAFETY: takes nothing and always answers.
    let task = unsafe { bpf_get_current_task() };
    let live = read::<u64>(task, kernel!(task_signal)).and_then(|signal| read::<u32>(signal, kernel!(signal_live)));
    if live == Some(0) {
        let status = read::<u32>(task, kernel!(task_exit_code)).unwrap_or(STATUS_UNKNOWN);
        emit::life(record::PROCESS_EXIT, ids, process, None, 0, status);
    }
    0
}
