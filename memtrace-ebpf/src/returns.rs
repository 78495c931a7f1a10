//! Returns of calls that were kept at their entry.

use aya_ebpf::macros::uretprobe;
use aya_ebpf::programs::RetProbeContext;
use memtrace_common::{Frame, MOST_BYTES, ThreadState, depth, entry};

use crate::count::bump;
use crate::filter::{self, Ids, Process, active_process, current_ids};
use crate::hit::{FLAGS, IS_MMAPPED, chunk_of};
use crate::{arch, stack};

/// A call that was kept at its entry has returned.
pub struct Returned {
    pub ids: Ids,
    pub process: Process,
    pub thread: *mut ThreadState,
    pub frame: *const Frame,
}

impl Returned {
    /// None when the frame kept is another call's, or the same function's from before the trace.
    #[inline(always)]
    pub fn new(ctx: &RetProbeContext, entry: u8) -> Option<Self> {
        stack::keep_own(ctx);
        let ids = current_ids()?;
        let process = active_process(ids.pid)?;
        let thread = filter::known_thread(ids)?;
        // SAFETY: the context of a uretprobe is the registers; `thread` is a value of THREAD_STATES.
        unsafe {
            let frame = &raw const (*thread).frame;
            if (*frame).entry != entry || (*frame).slot != arch::slot_after_return(&*ctx.regs) {
                return None;
            }
            Some(Self {
                ids,
                process,
                thread,
                frame,
            })
        }
    }
}

#[uretprobe]
pub fn on_realloc_return(ctx: RetProbeContext) -> u32 {
    let Some(returned) = Returned::new(&ctx, entry::REALLOC) else {
        return 0;
    };
    // SAFETY: a frame inside a value of THREAD_STATES.
    let (before, request, chunk) = unsafe {
        (
            (*returned.frame).argument,
            (*returned.frame).request,
            (*returned.frame).chunk,
        )
    };
    if before == 0 || request == 0 {
        return 0;
    }
    let process = returned.process;
    // SAFETY: a value of STATES.
    if unsafe { (*process.state).depth } != depth::CALLS {
        return 0;
    }
    // SAFETY: values of STATES and THREAD_STATES.
    unsafe {
        // Where another thread had taken the hook away meanwhile.
        (*returned.thread).again = entry::NONE;
        if (*process.state).libc.hooks[1].variable != 0 {
            // A first call that passed its entry twice returns twice.
            (*returned.thread).frame.slot = 0;
            (*returned.thread).frame.entry = entry::NONE;
        }
    }
    let after: u64 = ctx.ret();
    bump!(process, realloc_returns);
    if after == 0 {
        // A request too large for anyone was counted at the entry.
        if request <= MOST_BYTES {
            bump!(process, realloc_failed);
        }
        return 0;
    }
    if after == before {
        bump!(process, realloc_in_place);
    } else {
        bump!(process, realloc_moved);
    }
    let new_chunk = chunk_of(after);
    if new_chunk != 0 && chunk != 0 {
        if new_chunk & !FLAGS > chunk & !FLAGS {
            bump!(process, realloc_grown);
        } else if new_chunk & !FLAGS < chunk & !FLAGS {
            bump!(process, realloc_shrunk);
        }
        if new_chunk & chunk & IS_MMAPPED != 0 {
            bump!(process, realloc_mapped);
        }
    }
    0
}
