//! Signal handlers: what a handler does is its own, also when it interrupts malloc.
//!
//! A handler ends by sigreturn, or is left for good by a jump (siglongjmp): then the stack pointer is outside of what
//! the handler's frames can take. The outermost one counts; it is told by the stack pointer that it has interrupted.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::generated::bpf_get_current_task;
use aya_ebpf::macros::tracepoint;
use aya_ebpf::programs::TracePointContext;
use memtrace_common::{Frame, SlowFrame, ThreadState, UNKNOWN_OFFSET, attribution, source};

use crate::filter::{self, Ids, Process, active_process, current_ids};
use crate::maps::kernel;
use crate::{arch, frame};

/// signal_deliver's record: sig, errno and code are ints at 8, then sa_handler.
const SA_HANDLER: usize = 24;
/// SIG_DFL and SIG_IGN: no handler runs.
const SIG_IGN: u64 = 1;
const SA_FLAGS: usize = 32;
/// The handler asks for the thread's stack for signal handlers.
const SA_ONSTACK: u64 = 0x0800_0000;

/// A signal is about to be handled, before its frame is pushed: the registers are still those interrupted.
#[tracepoint]
pub fn signal_deliver(ctx: TracePointContext) -> u32 {
    // SAFETY: the verifier checks the offsets against the size of the tracepoint's record.
    let (handler, flags) = unsafe {
        (
            *(ctx.as_ptr().byte_add(SA_HANDLER) as *const u64),
            *(ctx.as_ptr().byte_add(SA_FLAGS) as *const u64),
        )
    };
    if handler <= SIG_IGN {
        return 0;
    }
    let Some(ids) = current_ids() else { return 0 };
    let Some(process) = active_process(ids.pid) else {
        return 0;
    };
    // In a pause its end would not be seen.
    // SAFETY: a value of STATES.
    if unsafe { (*process.state).source } == source::NONE {
        return 0;
    }
    let Some(thread) = filter::known_thread(ids) else {
        return 0;
    };
    filter::after_pause(process, thread);
    let registers = frame::user_registers();
    notice_left(thread, registers.sp);
    // SAFETY: a value of THREAD_STATES, written to by its own thread alone.
    unsafe {
        if (*thread).handlers == 0 {
            let state = frame::state_of(&raw const (*thread).frame, registers.sp);
            (*thread).interrupted = if state == attribution::DEEPER || state == attribution::UNCHECKED {
                (*thread).frame
            } else {
                Frame::NONE
            };
            (*thread).interrupted_slow = if frame::slow_on_stack(&raw const (*thread).slow, registers.sp) {
                (*thread).slow
            } else {
                SlowFrame::NONE
            };
            (*thread).handler_sp = registers.sp;
            (*thread).handler_stack = if flags & SA_ONSTACK != 0 {
                stack_apart(registers.sp)
            } else {
                [0; 2]
            };
        }
        (*thread).handlers += 1;
        (*thread).frame = Frame::NONE;
        (*thread).slow = SlowFrame::NONE;
    }
    0
}

/// The current thread's stack for signal handlers, if it has one and `sp` is not on it already.
#[inline(always)]
fn stack_apart(sp: u64) -> [u64; 2] {
    // SAFETY: takes nothing and always answers.
    let task = unsafe { bpf_get_current_task() };
    let begin = task_word(task, kernel!(task_signal_stack));
    let end = begin.wrapping_add(task_word(task, kernel!(task_signal_stack_size)));
    if within([begin, end], sp) { [0; 2] } else { [begin, end] }
}

/// 0 when it cannot be read.
#[inline(always)]
fn task_word(task: u64, offset: u32) -> u64 {
    if offset == UNKNOWN_OFFSET {
        return 0;
    }
    arch::kernel_word(task.wrapping_add(u64::from(offset)))
}

#[inline(always)]
fn within(stack: [u64; 2], sp: u64) -> bool {
    sp > stack[0] && sp <= stack[1]
}

/// The outermost handler cannot be running any more with this stack pointer: it was left by a jump.
#[inline(always)]
pub fn notice_left(thread: *mut ThreadState, sp: u64) {
    // SAFETY: a value of THREAD_STATES, written to by its own thread alone.
    unsafe {
        if (*thread).handlers == 0 || (*thread).handler_sp == 0 || sp == 0 {
            return;
        }
        let stack = (*thread).handler_stack;
        let running = if stack[1] == 0 {
            sp < (*thread).handler_sp
        } else {
            within(stack, sp)
        };
        if !running {
            (*thread).handlers = 0;
            (*thread).interrupted = Frame::NONE;
        }
    }
}

/// A handler returns.
#[tracepoint]
pub fn enter_rt_sigreturn(_ctx: TracePointContext) -> u32 {
    let Some(ids) = current_ids() else { return 0 };
    if let Some(process) = active_process(ids.pid)
        // SAFETY: a value of STATES.
        && unsafe { (*process.state).source } == source::TRACEPOINTS
    {
        returns(ids, process);
    }
    0
}

/// The current thread is about to make rt_sigreturn.
#[inline(always)]
pub fn returns(ids: Ids, process: Process) {
    let Some(thread) = filter::known_thread(ids) else {
        return;
    };
    filter::after_pause(process, thread);
    let registers = frame::user_registers();
    // SAFETY: a value of THREAD_STATES, written to by its own thread alone.
    unsafe {
        if (*thread).handlers == 0 {
            return;
        }
        (*thread).handlers -= 1;
        // Handlers inside of the outermost one may have been left by jumps: where this one returns to tells.
        let back = if registers.sp == 0 {
            None
        } else {
            arch::word(registers.sp.wrapping_add(arch::SIGRETURN_SP))
        };
        if back == Some((*thread).handler_sp) {
            (*thread).handlers = 0;
        }
        if (*thread).handlers == 0 {
            (*thread).frame = (*thread).interrupted;
            (*thread).interrupted = Frame::NONE;
            (*thread).slow = (*thread).interrupted_slow;
            (*thread).interrupted_slow = SlowFrame::NONE;
        } else {
            (*thread).frame = Frame::NONE;
            (*thread).slow = SlowFrame::NONE;
        }
    }
}
