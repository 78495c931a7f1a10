//! The allocator's slow path, `_int_malloc`: kept, so that a system call in its course is tied to the request; and told
//! when a system call came before it.

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memtrace_common::{RequestRecord, SlowFrame, depth, record};

use crate::count::bump;
use crate::emit::{self, Wake};
use crate::filter::{self, current_ids};
use crate::hit::argument;
use crate::{arch, stack};

#[uprobe]
pub fn on_slow_path(ctx: ProbeContext) -> u32 {
    stack::keep_own(&ctx);
    let Some(ids) = current_ids() else { return 0 };
    let Some((process, thread)) = filter::active_thread(ids) else {
        return 0;
    };
    bump!(process, uncounted);
    // SAFETY: a value of STATES.
    if unsafe { (*process.state).depth } != depth::SLOW_PATH {
        return 0;
    }
    let Some(thread) = thread else { return 0 };
    // SAFETY: the context of a uprobe is the registers; values of STATES and THREAD_STATES, the latter written to by its own
    // thread alone.
    unsafe {
        let libc = &raw const (*process.state).libc;
        let base = arch::instruction_pointer(&*ctx.regs).wrapping_sub((*libc).slow_site);
        if (*process.state).libc_base == 0 {
            (*process.state).libc_base = base;
        }
        let slot = arch::stack_pointer(ctx.regs).wrapping_add(u64::from((*libc).slow_stack_moved));
        (*thread).calls += 1;
        let frame = SlowFrame {
            slot,
            return_address: arch::return_address(ctx.regs, slot),
            request: argument(&ctx, 1),
            call: (*thread).calls,
            epoch: (*process.state).epoch,
            _pad: 0,
        };
        (*thread).slow = frame;
        if (*thread).tell == 0 {
            return 0;
        }
        (*thread).tell -= 1;
        let Some(mut entry) = emit::reserve::<RequestRecord>(process) else {
            return 0;
        };
        let record = entry.as_mut_ptr();
        (&raw mut (*record).header).write(emit::header::<RequestRecord>(record::REQUEST, ids));
        (*record).libc_base = base;
        (&raw mut (*record).frame).write(frame);
        emit::submit(entry, Wake::Whenever);
    }
    0
}
