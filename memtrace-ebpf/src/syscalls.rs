//! Memory system calls: the arguments are kept at entry, the record is made at exit, when the result is known.
//!
//! ```text
//! enter_syscall, exit_syscall   at the tracepoints of each memory system call
//! sys_enter, sys_exit           at those that all system calls pass: for windows in a pause, and to count calls
//! ```

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::generated::{bpf_probe_read_kernel as read_kernel, bpf_probe_read_user as read_user};
use aya_ebpf::macros::{raw_tracepoint, tracepoint};
use aya_ebpf::programs::{RawTracePointContext, TracePointContext};
use aya_log_ebpf::warn;
use memtrace_common::{
    Frame, HeapState, MORE_STACK_WORDS, MOST_STACK_WORDS, STACK_WORDS, Snapshot, SyscallRecord, ThreadState,
    attribution, depth, following, record, source, syscall,
};

use crate::arch::Call;
use crate::count::{self, bump, snapshot};
use crate::emit::{self, Wake};
use crate::filter::{self, Ids, Process, active_process, current_ids};
use crate::frame::UserRegisters;
use crate::{arch, frame, heap, rss, signals};

/// The bit of mmap's third argument.
const PROT_EXEC: u64 = 4;
/// Where the tracepoints' records have the number of the system call, behind the common fields; then come its arguments
/// (entry), or its result (exit).
const NUMBER: usize = 8;
const FIELDS: usize = 16;

/// Which memory system call a record is of. One program serves all of their tracepoints, since verifying takes the kernel
/// longer than anything else at the start.
#[inline(always)]
fn call_of(ctx: &TracePointContext) -> Option<Call> {
    // SAFETY: the verifier checks the offset against the size of the tracepoint's record.
    let number = unsafe { *(ctx.as_ptr().byte_add(NUMBER) as *const u32) };
    arch::call(number)
}

/// The current process, if it is traced, and its memory system calls by that source.
#[inline(always)]
fn seen_by(wanted: u32) -> Option<(Ids, Process)> {
    let ids = current_ids()?;
    let process = active_process(ids.pid)?;
    // SAFETY: a value of STATES.
    (unsafe { (*process.state).source } == wanted).then_some((ids, process))
}

/// `read` puts the arguments where it is told.
#[inline(always)]
fn enter<C: EbpfContext>(ctx: &C, ids: Ids, process: Process, call: u8, read: impl FnOnce(*mut [u64; 6])) {
    let Some(thread) = filter::thread(ids, process) else {
        warn!(
            ctx,
            "the table of threads is full: no room for {} of process {}", ids.tid, ids.pid
        );
        return;
    };
    filter::after_pause(process, thread);
    // SAFETY: a value of THREAD_STATES, written to by its own thread alone.
    unsafe {
        if (*thread).pending != 0 {
            skipped(process, (*thread).pending - 1);
        }
        (*thread).entered = 1;
        read(&raw mut (*thread).pending_args);
        (*thread).pending_enter_ns = emit::now();
        let may_be_arena = (*thread).frame.slot != 0 || (*process.state).depth != depth::CALLS;
        (*thread).pending_arena = if call == syscall::MUNMAP && may_be_arena {
            let base = if (*process.state).depth == depth::CALLS {
                (*thread).libc_base
            } else {
                (*process.state).libc_base
            };
            heap::thread_arena(process, base, (*thread).pending_args[0])
        } else {
            0
        };
        (*thread).pending = call + 1;
    }
}

/// Counts a system call of which only one side was seen. A kernel that can preempt programs at tracepoints (7.3 does) skips
/// those of another thread that comes to the same CPU meanwhile.
#[inline(always)]
fn skipped(process: Process, call: u8) {
    bump!(process, lost_records);
    made_one(process, call, false);
}

/// Adds to the counters of a memory system call.
#[inline(always)]
fn made_one(process: Process, call: u8, failed: bool) {
    // The verifier wants to see, just before it is used, that the place lies among the counters.
    let place = arch::masked::<7>(u64::from(call)) as usize;
    // SAFETY: a value of COUNTERS; there are as many places as kinds of calls.
    unsafe {
        count::add((&raw mut (*process.counters).syscalls).cast::<u64>().add(place), 1);
        if failed {
            count::add(
                (&raw mut (*process.counters).syscalls_failed).cast::<u64>().add(place),
                1,
            );
        }
    }
}

#[inline(always)]
fn exit<C: EbpfContext>(ctx: &C, ids: Ids, process: Process, call: u8, result: i64) {
    let Some(thread) = filter::known_thread(ids) else {
        // Its entry found no room: counted there as lost, and here so that the number of calls stays exact.
        made_one(process, call, (-4095..0).contains(&result));
        return;
    };
    filter::after_pause(process, thread);
    // SAFETY: a value of THREAD_STATES, written to by its own thread alone.
    let requested = unsafe {
        let pending = (*thread).pending;
        if pending != call + 1 {
            if pending != 0 {
                (*thread).pending = 0;
                skipped(process, pending - 1);
            }
            // Else it may have been entered before the trace began.
            if (*thread).entered != 0 {
                skipped(process, call);
            }
            return;
        }
        (*thread).pending = 0;
        (*thread).pending_args[0]
    };
    // brk does not say that it failed: it returns the break as it is.
    let failed = if call == syscall::BRK {
        (result as u64) < requested
    } else {
        (-4095..0).contains(&result)
    };
    made_one(process, call, failed);
    let registers = frame::user_registers();
    signals::notice_left(thread, registers.sp);
    let (verdict, kept) = frame::attribute(process.state, thread, registers.sp);
    let books = books(process, thread, call, verdict, kept);
    let made = Made {
        ids,
        process,
        thread,
        call,
        result,
        registers,
        verdict,
        kept,
        books,
        snapshot: snapshot(process, Some(thread)),
        resident_pages: rss::pages(),
    };
    let up_to_slot = if verdict == attribution::DEEPER {
        // SAFETY: a frame inside a value of THREAD_STATES.
        unsafe { (*kept).slot }.wrapping_sub(registers.sp).wrapping_add(8)
    } else if verdict == attribution::FOLLOW {
        // SAFETY: a value of STATES.
        up_to_caller(unsafe { (*process.state).depth }, thread, call, registers.sp)
    } else {
        0
    };
    let sent = if up_to_slot <= bytes(STACK_WORDS) {
        send::<STACK_WORDS>(&made, bytes(STACK_WORDS))
    } else if up_to_slot <= bytes(MORE_STACK_WORDS) {
        send::<MORE_STACK_WORDS>(&made, up_to_slot)
    } else {
        send::<MOST_STACK_WORDS>(&made, up_to_slot)
    };
    if !sent {
        warn!(
            ctx,
            "the ring buffer is full: a system call of process {} is lost", ids.pid
        );
    }
}

/// Pages may be larger, not smaller.
const SMALLEST_PAGE: u64 = 4096;
/// PROT_NONE, what address space for a new arena is mapped with.
const PROT_NONE: u64 = 0;
/// From the slow path's slot up to that of the call from outside: realloc's way is the longest.
const ABOVE_SLOW_PATH: u64 = bytes(40);

/// How much of the stack leads to the allocator's caller, if this call is the allocator's. The setting up of an arena is
/// the farthest.
#[inline(always)]
fn up_to_caller(watched: u32, thread: *const ThreadState, call: u8, sp: u64) -> u64 {
    // SAFETY: a value of THREAD_STATES.
    let (slow, protection) = unsafe { (&raw const (*thread).slow, (*thread).pending_args[2]) };
    let set_up =
        call == syscall::MUNMAP || call == syscall::MPROTECT || call == syscall::MMAP && protection == PROT_NONE;
    // Without the slow path's frame half of the way is not known.
    let growth = call == syscall::BRK || call == syscall::MMAP;
    if set_up || watched == depth::SYSCALLS && growth {
        return bytes(MOST_STACK_WORDS);
    }
    if frame::slow_on_stack(slow, sp) {
        // SAFETY: as above.
        let up = unsafe { (*slow).slot }.wrapping_sub(sp).wrapping_add(ABOVE_SLOW_PATH);
        if up < bytes(MOST_STACK_WORDS) {
            return up;
        }
    }
    bytes(MORE_STACK_WORDS)
}

const fn bytes(words: usize) -> u64 {
    (words * 8) as u64
}

/// A system call that has returned, with all that a record says of it but the stack. It is the same for records of each
/// length, which the verifier follows one after the other: what has branches is done before.
struct Made {
    ids: Ids,
    process: Process,
    thread: *mut ThreadState,
    call: u8,
    result: i64,
    registers: UserRegisters,
    verdict: u8,
    kept: *const Frame,
    books: Books,
    snapshot: Snapshot,
    resident_pages: u64,
}

/// glibc's, for a call of the allocator's.
struct Books {
    libc_base: u64,
    main_arena: u8,
    heap: HeapState,
}

#[inline(always)]
fn books(process: Process, thread: *const ThreadState, call: u8, verdict: u8, kept: *const Frame) -> Books {
    // SAFETY: values of STATES and THREAD_STATES.
    let (address, pending, base) = unsafe {
        let base = if verdict == attribution::FOLLOW {
            (*process.state).libc_base
        } else {
            (*thread).libc_base
        };
        ((*thread).pending_args[0], (*thread).pending_arena, base)
    };
    let is_the_allocators = verdict == attribution::DEEPER
        || verdict == attribution::UNCHECKED
        || verdict == attribution::FOLLOW && base != 0;
    if !is_the_allocators {
        return Books {
            libc_base: base,
            main_arena: 0,
            heap: HeapState::default(),
        };
    }
    let arena = heap::arena_of_call(process, base, call, address, pending, kept);
    Books {
        libc_base: base,
        main_arena: u8::from(arena == 0),
        heap: heap::read(process, base, arena),
    }
}

#[inline(always)]
fn send<const WORDS: usize>(made: &Made, wanted: u64) -> bool {
    // New code is looked at from outside.
    // SAFETY: a value of THREAD_STATES.
    let protection = unsafe { (*made.thread).pending_args[2] };
    let wake = if made.call == syscall::MMAP && protection & PROT_EXEC != 0 {
        Wake::AtOnce
    } else {
        Wake::Whenever
    };
    let Some(mut entry) = emit::reserve::<SyscallRecord<WORDS>>(made.process) else {
        return false;
    };
    fill(entry.as_mut_ptr(), made, wanted);
    emit::submit(entry, wake);
    true
}

/// So many bytes, or as many as a record has room for.
#[inline(always)]
fn room_for<const WORDS: usize>(wanted: u64) -> u64 {
    match WORDS {
        STACK_WORDS => arch::at_most::<{ bytes(STACK_WORDS) as i32 }>(wanted),
        MORE_STACK_WORDS => arch::at_most::<{ bytes(MORE_STACK_WORDS) as i32 }>(wanted),
        _ => arch::at_most::<{ bytes(MOST_STACK_WORDS) as i32 }>(wanted),
    }
}

/// `wanted`: bytes of the stack that are of interest.
#[inline(always)]
fn fill<const WORDS: usize>(record: *mut SyscallRecord<WORDS>, made: &Made, wanted: u64) {
    let &Made {
        ids,
        process,
        thread,
        call,
        result,
        registers,
        verdict,
        kept,
        ..
    } = made;
    // SAFETY: `record` is reserved memory of that size; the rest are map values.
    unsafe {
        (*record).header = emit::header::<SyscallRecord<WORDS>>(record::SYSCALL, ids);
        (*record).enter_ns = (*thread).pending_enter_ns;
        emit::copy(&raw mut (*record).args, &raw const (*thread).pending_args);
        (*record).result = result;
        (*record).ip = registers.ip;
        (*record).sp = registers.sp;
        (*record).fp = registers.fp;
        (*record).lr = registers.lr;
        (*record).libc_base = made.books.libc_base;
        emit::copy(&raw mut (*record).frame, kept);
        emit::copy(&raw mut (*record).slow, &raw const (*thread).slow);
        (*record).hits = (*thread).calls;
        if verdict == attribution::FOLLOW {
            let epoch = (*process.state).epoch;
            if (*kept).epoch != epoch {
                (*record).frame.entry = 0;
            }
            if (*thread).slow.epoch != epoch {
                emit::clear(&raw mut (*record).slow);
            }
            // A set-up in two parts: an arena's, then a thread cache's.
            (*thread).tell = 2;
        }
        if verdict != attribution::FOLLOW && (*kept).return_address == 0 && arch::SLOT_HOLDS_ADDRESS {
            (*record).frame.return_address = arch::word_or_zero((*kept).slot);
        }
        (*record).main_arena = made.books.main_arena;
        (*record).heap = made.books.heap;
        (*record).snapshot = made.snapshot;
        (*record).resident_pages = made.resident_pages;
        (*record).syscall = call;
        (*record).attribution = verdict;
        let interrupted = (*thread).interrupted.slot | (*thread).interrupted_slow.slot;
        (*record).following = if (*thread).handlers != 0 && interrupted != 0 {
            following::IN_HANDLER
        } else {
            0
        } | if (*process.state).depth == depth::SLOW_PATH {
            following::REQUESTS_SEEN
        } else {
            0
        };
        let bytes = room_for::<WORDS>(wanted);
        // On failure the helper fills the buffer with zeros.
        let stack = &raw mut (*record).stack;
        let failed = read_user(stack.cast(), bytes as u32, registers.sp as *const _);
        (*record).stack_words = if failed == 0 { bytes as u32 / 8 } else { 0 };
        if failed != 0 {
            // A caller's large array may lie above, of which no page has been touched yet.
            let on_page = SMALLEST_PAGE - (registers.sp & (SMALLEST_PAGE - 1));
            let bytes = room_for::<WORDS>(on_page);
            let failed = read_user(stack.cast(), bytes as u32, registers.sp as *const _);
            (*record).stack_words = if failed == 0 { bytes as u32 / 8 } else { 0 };
        }
    }
}

#[tracepoint]
pub fn enter_syscall(ctx: TracePointContext) -> u32 {
    let Some((ids, process)) = seen_by(source::TRACEPOINTS) else {
        return 0;
    };
    let Some(Call { kind, arguments }) = call_of(&ctx) else {
        return 0;
    };
    enter(&ctx, ids, process, kind, |args| {
        // Not read directly: a program that reads more words than a tracepoint's record has cannot be attached to it.
        let bytes = arch::masked::<0x38>(u64::from(arguments) * 8) as u32;
        // SAFETY: the helper refuses what cannot be read; `args` has room for six words.
        unsafe {
            emit::clear(args);
            read_kernel(args.cast(), bytes, ctx.as_ptr().byte_add(FIELDS));
        }
    });
    0
}

#[tracepoint]
pub fn exit_syscall(ctx: TracePointContext) -> u32 {
    let Some((ids, process)) = seen_by(source::TRACEPOINTS) else {
        return 0;
    };
    let Some(Call { kind, .. }) = call_of(&ctx) else {
        return 0;
    };
    // SAFETY: the verifier checks the offset against the size of the tracepoint's record.
    let result = unsafe { *(ctx.as_ptr().byte_add(FIELDS) as *const i64) };
    exit(&ctx, ids, process, kind, result);
    0
}

/// Every system call of every process passes here. Arguments: its registers, its number.
#[raw_tracepoint]
pub fn sys_enter(ctx: RawTracePointContext) -> i32 {
    let Some(ids) = current_ids() else { return 0 };
    let Some(process) = active_process(ids.pid) else {
        return 0;
    };
    bump!(process, all_syscalls);
    // SAFETY: a value of STATES.
    if unsafe { (*process.state).source } != source::EVERY_CALL {
        return 0;
    }
    let (regs, number): (u64, u64) = (ctx.arg(0), ctx.arg(1));
    if number as u32 == arch::RT_SIGRETURN {
        if arch::is_native(regs) {
            signals::returns(ids, process);
        }
        return 0;
    }
    let Some(Call { kind, arguments }) = arch::call(number as u32) else {
        return 0;
    };
    if arch::is_native(regs) {
        enter(&ctx, ids, process, kind, |args| {
            arch::read_arguments(args, regs, arguments)
        });
    }
    0
}

/// The same. Arguments: its registers, its result.
#[raw_tracepoint]
pub fn sys_exit(ctx: RawTracePointContext) -> i32 {
    let regs: u64 = ctx.arg(0);
    let Some(Call { kind, .. }) = arch::call(arch::number(regs)) else {
        return 0;
    };
    let Some((ids, process)) = seen_by(source::EVERY_CALL) else {
        return 0;
    };
    if arch::is_native(regs) {
        exit(&ctx, ids, process, kind, ctx.arg::<u64>(1) as i64);
    }
    0
}
