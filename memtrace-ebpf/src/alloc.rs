//! The allocator's entry points: each call is counted once, and kept as the thread's frame.

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use memtrace_common::{
    Frame, SPURIOUS_SITES, ThreadState, TrimRecord, attribution, entry, exit_check, record, untouched,
};

use crate::count::{bump, size_class, snapshot};
use crate::filter::{self, Ids, Process, active_process, current_ids};
use crate::maps::THREADS;
use crate::{arch, emit, frame, heap, rss};

/// glibc refuses larger requests.
const PTRDIFF_MAX: u64 = i64::MAX as u64;
/// The memalign family hands smaller alignments to malloc (MALLOC_ALIGNMENT).
const MALLOC_ALIGNMENT: u64 = 16;
/// Flag bits of a chunk's size field.
const IS_MMAPPED: u64 = 2;
const NON_MAIN_ARENA: u64 = 4;
const FLAGS: u64 = 7;

/// A probe was hit by a traced process.
struct Hit {
    ids: Ids,
    process: Process,
    /// None when there was no room for it.
    thread: Option<*mut ThreadState>,
    regs: *const pt_regs,
    /// Load address of the libc that was called.
    base: u64,
    sp: u64,
    /// Where the return address lies.
    slot: u64,
    entry: u8,
}

impl Hit {
    #[inline(always)]
    fn new(ctx: &ProbeContext, entry: u8) -> Option<Self> {
        let ids = current_ids()?;
        let (process, thread) = filter::active_thread(ids)?;
        // SAFETY: the context of a uprobe is the registers; `process.state` is a value of STATES.
        unsafe {
            let regs = &*ctx.regs;
            let site = (*process.state).libc.site[entry as usize];
            let base = arch::instruction_pointer(regs).wrapping_sub(site);
            if (*process.state).libc_base == 0 {
                (*process.state).libc_base = base;
            }
            Some(Self {
                ids,
                process,
                thread,
                regs: ctx.regs,
                base,
                sp: arch::stack_pointer(regs),
                slot: arch::slot(regs, (*process.state).libc.stack_moved[entry as usize]),
                entry,
            })
        }
    }

    #[inline(always)]
    fn return_address(&self) -> u64 {
        // SAFETY: the registers are the context of a uprobe.
        unsafe { arch::return_address(self.regs, self.slot) }
    }

    /// Makes this call the thread's frame.
    #[inline(always)]
    fn keep(&self, request: u64, argument: u64, chunk: u64) {
        let Some(thread) = self.thread else { return };
        // Of calls that others may be inside of the return address is needed; else it is kept where that costs nothing.
        let return_address = match self.entry {
            entry::MALLOC | entry::CALLOC | entry::FREE if arch::SLOT_HOLDS_ADDRESS => 0,
            _ => self.return_address(),
        };
        // SAFETY: a value of THREADS, written to by its own thread alone.
        unsafe {
            (*thread).calls += 1;
            (*thread).libc_base = self.base;
            (*thread).frame = Frame {
                slot: self.slot,
                return_address,
                request,
                argument,
                chunk,
                call: (*thread).calls,
                entry: self.entry,
                second_hit: 0,
                _pad: [0; 6],
            };
        }
    }

    /// A new block.
    #[inline(always)]
    fn block(&self, request: u64) {
        let process = self.process;
        bump!(process, blocks[self.entry as usize]);
        bump!(process, bytes[self.entry as usize], request);
        bump!(process, request_sizes[size_class(request)]);
        let Some(thread) = self.thread else { return };
        // SAFETY: a value of THREADS, written to by its own thread alone.
        unsafe {
            (*thread).allocated_blocks += 1;
            (*thread).allocated_bytes += request;
        }
    }

    /// A block is freed whose chunk's size field is `chunk` (0: unreadable): all of it but what counts by entry point.
    #[inline(always)]
    fn freed(&self, chunk: u64) {
        let process = self.process;
        if chunk == 0 {
            bump!(process, free_unreadable);
            return;
        }
        let size = chunk & !FLAGS;
        bump!(process, freed_sizes[size_class(size)]);
        if chunk & IS_MMAPPED != 0 {
            bump!(process, freed_mapped_blocks);
            bump!(process, freed_mapped_bytes, size);
        } else if chunk & NON_MAIN_ARENA != 0 {
            bump!(process, freed_non_main_blocks);
        }
    }

    /// That return address lies in libc's own code.
    #[inline(always)]
    fn in_libc(&self, address: u64) -> bool {
        let address = address.wrapping_sub(self.base);
        // SAFETY: a value of STATES.
        let (start, end) = unsafe {
            (
                (*self.process.state).libc.text_start,
                (*self.process.state).libc.text_end,
            )
        };
        address >= start && address < end
    }

    /// The call behind `outer` is still running and has led here.
    #[inline(always)]
    fn inside(&self, outer: *const Frame) -> bool {
        // SAFETY: a frame inside a value of THREADS.
        let slot = unsafe { (*outer).slot };
        if slot < self.slot {
            return false;
        }
        let address = self.return_address();
        if slot == self.slot {
            // A jump keeps the slot and what is in it.
            return frame::returns_to(outer, address);
        }
        // Else a call, made by libc's own code, while the outer one is on the stack.
        self.in_libc(address) && frame::on_stack(outer, self.sp) == attribution::DEEPER
    }

    /// This hit is the same allocation that an outer call was counted for.
    #[inline(always)]
    fn second_hit_of_malloc(&self, request: u64) -> bool {
        let Some(thread) = self.thread else { return false };
        // SAFETY: a frame inside a value of THREADS.
        let outer = unsafe { &raw mut (*thread).frame };
        let Frame {
            slot,
            request: outer_request,
            argument,
            entry,
            second_hit,
            ..
        } = unsafe { *outer };
        if outer_request != request || second_hit != 0 {
            return false;
        }
        let aligned = match entry {
            // realloc(NULL, n) ends in malloc; realloc(p, n) calls it when the block cannot be resized.
            entry::REALLOC if argument == 0 || slot != self.slot => false,
            entry::MEMALIGN | entry::ALIGNED_ALLOC | entry::POSIX_MEMALIGN if argument <= MALLOC_ALIGNMENT => true,
            _ => return false,
        };
        if !self.inside(outer) {
            return false;
        }
        if aligned {
            bump!(self.process, second_hits_memalign);
        } else {
            bump!(self.process, second_hits);
        }
        // SAFETY: as above.
        unsafe { (*outer).second_hit = 1 };
        true
    }

    /// Up to 2.33: the first call of malloc or realloc starts again, once its hook has set the allocator up.
    #[inline(always)]
    fn first_call_again(&self, request: u64, argument: u64) -> bool {
        // SAFETY: a value of STATES; nothing else writes the field during a program's first calls.
        let (hooks, untouched) = unsafe {
            let state = self.process.state;
            ((*state).libc.hooks, &raw mut (*state).untouched)
        };
        // SAFETY: as above.
        let left = unsafe { *untouched };
        if hooks == 0 || left == 0 {
            return false;
        }
        let Some(thread) = self.thread else { return false };
        // SAFETY: a frame inside a value of THREADS.
        let before = unsafe { (*thread).frame };
        let same = before.request == request && before.argument == argument;
        // The hook of realloc takes that of malloc away with it.
        let (first, gone, again) = if self.entry == entry::REALLOC {
            (
                untouched::REALLOC,
                untouched::REALLOC | untouched::MALLOC,
                untouched::REALLOC_AGAIN,
            )
        } else {
            (untouched::MALLOC, untouched::MALLOC, untouched::MALLOC_AGAIN)
        };
        let (left, repeated) = if left & first != 0 {
            // calloc calls the hook of malloc.
            let inside =
                self.entry == entry::MALLOC && before.entry == entry::CALLOC && before.slot > self.slot && same;
            (left & !gone | if inside { 0 } else { again }, inside)
        } else if left & again != 0 {
            (
                left & !again,
                before.entry == self.entry && before.slot == self.slot && same,
            )
        } else {
            return false;
        };
        // SAFETY: as above.
        unsafe { *untouched = left };
        if repeated {
            bump!(self.process, second_hits);
        }
        repeated
    }

    /// realloc(p, 0) ends in free(p); where that is the thread's first free, it comes by once more.
    #[inline(always)]
    fn second_hit_of_free(&self, pointer: u64) -> bool {
        let Some(thread) = self.thread else { return false };
        // SAFETY: a frame inside a value of THREADS.
        let outer = unsafe { &raw mut (*thread).frame };
        let Frame {
            request,
            argument,
            entry,
            second_hit,
            ..
        } = unsafe { *outer };
        if entry != entry::REALLOC || request != 0 || argument != pointer || !self.inside(outer) {
            return false;
        }
        if second_hit == 0 {
            // SAFETY: as above.
            unsafe { (*outer).second_hit = 1 };
            bump!(self.process, second_hits);
            return true;
        }
        // SAFETY: values of STATES and THREADS.
        unsafe {
            if (*self.process.state).libc.first_free_twice == 0 || (*thread).freed != 0 {
                return false;
            }
            (*thread).freed = 1;
        }
        bump!(self.process, spurious_first_free);
        true
    }

    /// libc itself frees a thread's cache at its end.
    #[inline(always)]
    fn freed_by_thread_exit(&self) -> bool {
        // SAFETY: a value of STATES.
        let check = unsafe { (*self.process.state).libc.exit_check };
        if check == exit_check::NEVER {
            return false;
        }
        if check == exit_check::EXITING
            && let Some(thread) = self.thread
            // SAFETY: a value of THREADS.
            && unsafe { (*thread).exiting } == 0
        {
            return false;
        }
        let address = self.return_address().wrapping_sub(self.base);
        for site in 0..SPURIOUS_SITES {
            // SAFETY: a value of STATES.
            let known = unsafe { (*self.process.state).libc.spurious_free_returns[site] };
            if known != 0 && known == address {
                return true;
            }
        }
        false
    }

    /// From 2.43 a thread's first free makes the thread's cache and starts again: the same pointer and slot at once.
    #[inline(always)]
    fn first_free_again(&self, pointer: u64) -> bool {
        let Some(thread) = self.thread else { return false };
        // SAFETY: values of STATES and THREADS.
        unsafe {
            if (*self.process.state).libc.first_free_twice == 0 || (*thread).freed != 0 {
                return false;
            }
            let frame = &raw const (*thread).frame;
            let again = (*frame).entry == entry::FREE && (*frame).argument == pointer && (*frame).slot == self.slot;
            if again {
                (*thread).freed = 1;
            }
            again
        }
    }
}

/// The size field of the chunk behind a pointer, flag bits included; 0 when it cannot be read.
#[inline(always)]
fn chunk_of(pointer: u64) -> u64 {
    arch::word(pointer.wrapping_sub(8)).unwrap_or(0)
}

#[inline(always)]
fn argument(ctx: &ProbeContext, n: usize) -> u64 {
    // SAFETY: the context of a uprobe is the registers.
    unsafe { arch::argument(ctx.regs, n) }
}

/// The only argument of a function, which may have been moved to another register on the way to the site.
#[inline(always)]
fn moved_argument(ctx: &ProbeContext, hit: &Hit) -> u64 {
    // All are read, since the verifier wants each register at a fixed place.
    let registers = [argument(ctx, 0), argument(ctx, 1), argument(ctx, 2), argument(ctx, 3)];
    // SAFETY: a value of STATES.
    match unsafe { (*hit.process.state).libc.first_argument[hit.entry as usize] } {
        1 => registers[1],
        2 => registers[2],
        3 => registers[3],
        _ => registers[0],
    }
}

/// malloc, calloc and the memalign family, once it is known that they are calls of their own.
#[inline(always)]
fn allocate(hit: &Hit, request: u64, alignment: u64, refused: bool) {
    hit.keep(request, alignment, 0);
    if refused || request > PTRDIFF_MAX {
        bump!(hit.process, failed[hit.entry as usize]);
    } else {
        hit.block(request);
    }
}

#[uprobe]
pub fn on_malloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::MALLOC) else {
        return 0;
    };
    let request = moved_argument(&ctx, &hit);
    if !hit.first_call_again(request, 0) && !hit.second_hit_of_malloc(request) {
        allocate(&hit, request, 0, false);
    }
    0
}

#[uprobe]
pub fn on_calloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::CALLOC) else {
        return 0;
    };
    let (request, overflow) = product(argument(&ctx, 0), argument(&ctx, 1));
    allocate(&hit, request, 0, overflow);
    0
}

/// `a * b`, saturated, and whether it was. By halves: BPF has no 128-bit product, and the compiler makes one of what
/// it recognises as an overflow check.
#[inline(always)]
fn product(a: u64, b: u64) -> (u64, bool) {
    const LOW: u64 = u32::MAX as u64;
    if (a | b) >> 32 == 0 {
        return (a * b, false);
    }
    if a >> 32 != 0 && b >> 32 != 0 {
        return (u64::MAX, true);
    }
    // One of the two upper halves is 0, so one of these products is.
    let upper = (a >> 32) * (b & LOW) + (a & LOW) * (b >> 32);
    let lower = (a & LOW) * (b & LOW);
    let sum = upper.wrapping_add(lower >> 32);
    if upper >> 32 != 0 || sum >> 32 != 0 {
        return (u64::MAX, true);
    }
    (sum << 32 | lower & LOW, false)
}

#[uprobe]
pub fn on_memalign(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::MEMALIGN) else {
        return 0;
    };
    allocate(&hit, argument(&ctx, 1), argument(&ctx, 0), false);
    0
}

#[uprobe]
pub fn on_aligned_alloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::ALIGNED_ALLOC) else {
        return 0;
    };
    allocate(&hit, argument(&ctx, 1), argument(&ctx, 0), false);
    0
}

#[uprobe]
pub fn on_posix_memalign(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::POSIX_MEMALIGN) else {
        return 0;
    };
    let alignment = argument(&ctx, 1);
    // EINVAL unless it is a power of two times the size of a pointer.
    let refused = alignment < 8 || alignment & alignment.wrapping_sub(1) != 0;
    allocate(&hit, argument(&ctx, 2), alignment, refused);
    0
}

#[uprobe]
pub fn on_valloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::VALLOC) else {
        return 0;
    };
    allocate(&hit, moved_argument(&ctx, &hit), 0, false);
    0
}

#[uprobe]
pub fn on_pvalloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::PVALLOC) else {
        return 0;
    };
    allocate(&hit, moved_argument(&ctx, &hit), 0, false);
    0
}

#[uprobe]
pub fn on_realloc(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::REALLOC) else {
        return 0;
    };
    let (pointer, request) = (argument(&ctx, 0), argument(&ctx, 1));
    if hit.first_call_again(request, pointer) {
        return 0;
    }
    let chunk = if pointer != 0 { chunk_of(pointer) } else { 0 };
    hit.keep(request, pointer, chunk);
    if pointer != 0 && request == 0 {
        bump!(hit.process, realloc_zero);
        bump!(hit.process, realloc_zero_bytes, chunk & !FLAGS);
        hit.freed(chunk);
    } else if request > PTRDIFF_MAX {
        bump!(hit.process, failed[entry::REALLOC as usize]);
    } else if pointer == 0 {
        hit.block(request);
    } else {
        bump!(hit.process, realloc_resized);
    }
    0
}

#[uretprobe]
pub fn on_realloc_return(ctx: RetProbeContext) -> u32 {
    let Some(returned) = Returned::new(&ctx, entry::REALLOC) else {
        return 0;
    };
    // SAFETY: a frame inside a value of THREADS.
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
    // SAFETY: values of STATES and THREADS.
    unsafe {
        if (*process.state).libc.hooks != 0 {
            // A first call that passed its entry twice returns twice.
            (*returned.thread).frame.slot = 0;
            (*returned.thread).frame.entry = entry::NONE;
        }
    }
    let after: u64 = ctx.ret();
    bump!(process, realloc_returns);
    if after == 0 {
        // A request too large for anyone was counted at the entry.
        if request <= PTRDIFF_MAX {
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

#[uprobe]
pub fn on_free(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::FREE) else {
        return 0;
    };
    let pointer = moved_argument(&ctx, &hit);
    if pointer == 0 {
        bump!(hit.process, free_null);
        return 0;
    }
    if hit.second_hit_of_free(pointer) {
        return 0;
    }
    if hit.first_free_again(pointer) {
        bump!(hit.process, spurious_first_free);
        return 0;
    }
    let chunk = chunk_of(pointer);
    if hit.freed_by_thread_exit() {
        // Not the program's; but what the system is given back in its course is due to it.
        bump!(hit.process, spurious_thread_exit);
        hit.keep(0, pointer, chunk);
        return 0;
    }
    hit.keep(0, pointer, chunk);
    bump!(hit.process, blocks[entry::FREE as usize]);
    bump!(hit.process, bytes[entry::FREE as usize], chunk & !FLAGS);
    hit.freed(chunk);
    0
}

/// libc begins to free what it keeps for a thread that ends.
#[uprobe]
pub fn on_thread_exit(_ctx: ProbeContext) -> u32 {
    let Some(ids) = current_ids() else { return 0 };
    let Some((_, Some(thread))) = filter::active_thread(ids) else {
        return 0;
    };
    // SAFETY: a value of THREADS, written to by its own thread alone.
    unsafe { (*thread).exiting = 1 };
    0
}

#[uprobe]
pub fn on_malloc_trim(ctx: ProbeContext) -> u32 {
    let Some(hit) = Hit::new(&ctx, entry::MALLOC_TRIM) else {
        return 0;
    };
    let pad = moved_argument(&ctx, &hit);
    bump!(hit.process, trims);
    hit.keep(pad, 0, 0);
    let Some(thread) = hit.thread else { return 0 };
    trim(record::TRIM_BEGIN, hit.ids, hit.process, thread, hit.base, pad, 0);
    0
}

#[uretprobe]
pub fn on_malloc_trim_return(ctx: RetProbeContext) -> u32 {
    let Some(returned) = Returned::new(&ctx, entry::MALLOC_TRIM) else {
        return 0;
    };
    // SAFETY: a frame inside a value of THREADS, and that value.
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
    emit::send::<TrimRecord>(process, |record| {
        // SAFETY: `record` is reserved memory of that size and alignment; `thread` is a value of THREADS.
        unsafe {
            (&raw mut (*record).header).write(emit::header::<TrimRecord>(kind, ids));
            (*record).pad = pad;
            (*record).result = result;
            (*record).call = (*thread).frame.call;
            (*record).resident_pages = rss::exact_pages();
            (*record).heap = heap::read(process, base, 0);
            (*record).snapshot = snapshot(process, Some(thread));
        }
    });
}

/// A call that was kept at its entry has returned.
struct Returned {
    ids: Ids,
    process: Process,
    thread: *mut ThreadState,
    frame: *const Frame,
}

impl Returned {
    /// None when the frame kept is another call's, or the same function's from before the trace.
    #[inline(always)]
    fn new(ctx: &RetProbeContext, entry: u8) -> Option<Self> {
        let ids = current_ids()?;
        let process = active_process(ids.pid)?;
        let thread = THREADS.get_ptr_mut(&ids.thread_key())?;
        // SAFETY: the context of a uretprobe is the registers; `thread` is a value of THREADS.
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
