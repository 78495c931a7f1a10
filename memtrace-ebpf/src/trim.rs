//! malloc_trim: a record when it is entered and one when it returns.

use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use memtrace_common::{ThreadState, TrimRecord, entry, record};

use crate::count::{bump, snapshot};
use crate::emit::{self, Wake};
use crate::filter::{Ids, Process};
use crate::hit::{Hit, moved_argument};
use crate::returns::Returned;
use crate::{heap, rss};

#[uprobe]
pub fn on_malloc_trim(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::MALLOC_TRIM) else {
        return 0;
    };
    let pad = moved_argument(&ctx, &hit);
    bump!(hit.process, trims);
    hit.keep(pad, 0, 0);
    let Some(thread) = hit.thread else { return 0 };
    trim(record::TRIM_BEGIN, hit.ids, hit.process, thread, hit.base(), pad, 0);
    0
}

#[uretprobe]
pub fn on_malloc_trim_return(ctx: RetProbeContext) -> u32 {
    let Some(returned) = Returned::new(&ctx, entry::MALLOC_TRIM) else {
        return 0;
    };
    // SAFETY: a frame inside a value of THREAD_STATES, and that value.
    let (pad, base) = unsafe { ((*returned.frame).request, (*returned.thread).libc_base) };
    let result: u64 = ctx.ret();
    trim(
        record::TRIM_END,
        returned.ids,
        returned.process,
        returned.thread,
        base,
        pad,
        result & 0xffff_ffff,
    );
    0
}

#[inline(always)]
fn trim(kind: u16, ids: Ids, process: Process, thread: *mut ThreadState, base: u64, pad: u64, result: u64) {
    let Some(mut entry) = emit::reserve::<TrimRecord>(process) else {
        return;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: `record` is reserved memory of that size and alignment; `thread` is a value of THREAD_STATES.
    unsafe {
        (&raw mut (*record).header).write(emit::header::<TrimRecord>(kind, ids));
        (*record).pad = pad;
        (*record).result = result;
        (*record).call = (*thread).frame.call;
        (*record).resident_pages = rss::exact_pages();
        (*record).heap = heap::read(process, base, 0);
        (*record).snapshot = snapshot(process, Some(thread));
    }
    emit::submit(entry, Wake::Whenever);
}
