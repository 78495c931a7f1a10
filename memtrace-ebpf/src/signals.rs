//! Signal handlers: what a handler does is its own, also when it interrupts malloc.

use aya_ebpf::EbpfContext;
use aya_ebpf::macros::tracepoint;
use aya_ebpf::programs::TracePointContext;
use memtrace_common::{Frame, attribution};

use crate::filter::{active_process, current_ids};
use crate::frame;
use crate::maps::THREADS;

/// signal_deliver's record: sig, errno and code are ints at 8, then sa_handler.
const SA_HANDLER: usize = 24;
/// SIG_DFL and SIG_IGN: no handler runs.
const SIG_IGN: u64 = 1;

const NO_FRAME: Frame = Frame {
    slot: 0,
    return_address: 0,
    request: 0,
    argument: 0,
    chunk: 0,
    call: 0,
    entry: 0,
    second_hit: 0,
    _pad: [0; 6],
};

/// A signal is about to be handled, before its frame is pushed: the registers are still those interrupted.
#[tracepoint]
pub fn signal_deliver(ctx: TracePointContext) -> u32 {
    // SAFETY: the verifier checks the offset against the size of the tracepoint's record.
    let handler = unsafe { *(ctx.as_ptr().byte_add(SA_HANDLER) as *const u64) };
    if handler <= SIG_IGN {
        return 0;
    }
    let Some(ids) = current_ids() else { return 0 };
    if active_process(ids.pid).is_none() {
        return 0;
    }
    let Some(thread) = THREADS.get_ptr_mut(&ids.thread_key()) else {
        return 0;
    };
    let registers = frame::user_registers();
    // SAFETY: a value of THREADS, written to by its own thread alone.
    unsafe {
        if (*thread).handlers == 0 {
            let state = frame::state_of(&raw const (*thread).frame, registers.sp);
            (*thread).interrupted = if state == attribution::DEEPER || state == attribution::UNCHECKED {
                (*thread).frame
            } else {
                NO_FRAME
            };
        }
        (*thread).handlers += 1;
        (*thread).frame = NO_FRAME;
    }
    0
}

/// A handler returns.
#[tracepoint]
pub fn enter_rt_sigreturn(_ctx: TracePointContext) -> u32 {
    let Some(ids) = current_ids() else { return 0 };
    if active_process(ids.pid).is_none() {
        return 0;
    }
    let Some(thread) = THREADS.get_ptr_mut(&ids.thread_key()) else {
        return 0;
    };
    // SAFETY: a value of THREADS, written to by its own thread alone.
    unsafe {
        if (*thread).handlers == 0 {
            return 0;
        }
        (*thread).handlers -= 1;
        if (*thread).handlers == 0 {
            (*thread).frame = (*thread).interrupted;
            (*thread).interrupted = NO_FRAME;
        } else {
            (*thread).frame = NO_FRAME;
        }
    }
    0
}
