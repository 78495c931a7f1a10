//! The allocator call a thread is in: kept at its entry, asked for at every system call.

use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_task_pt_regs};
use memtrace_common::{Frame, ProcessState, SlowFrame, ThreadState, attribution, depth, entry};

use crate::arch;
use crate::maps::kernel;

/// How far below its return slot an allocator call can be: glibc's deepest path takes a few hundred bytes.
const DEPTH: u64 = 64 << 10;

/// User registers of the current task at its entry into the kernel; zeros when not known.
#[derive(Clone, Copy)]
pub struct UserRegisters {
    pub ip: u64,
    pub sp: u64,
    pub fp: u64,
    pub lr: u64,
}

#[inline(always)]
pub fn user_registers() -> UserRegisters {
    if kernel!(frame_check) == 0 {
        return UserRegisters {
            ip: 0,
            sp: 0,
            fp: 0,
            lr: 0,
        };
    }
    // SAFETY: the helpers give pointers into the current task, which cannot go while it runs this.
    let regs = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as *const u8;
    UserRegisters {
        ip: register(regs, arch::IP_OFFSET),
        sp: register(regs, arch::SP_OFFSET),
        fp: register(regs, arch::FP_OFFSET),
        lr: match arch::LR_OFFSET {
            Some(offset) => register(regs, offset),
            None => 0,
        },
    }
}

#[inline(always)]
fn register(regs: *const u8, offset: usize) -> u64 {
    // SAFETY: the caller's pointer is into the current task.
    arch::kernel_word(unsafe { regs.add(offset) } as u64)
}

/// Is the call behind `frame` on the stack, given the stack pointer? One of [`attribution`].
#[inline(always)]
pub fn state_of(frame: *const Frame, sp: u64) -> u8 {
    // SAFETY: a frame inside a value of THREAD_STATES.
    if unsafe { (*frame).slot } == 0 {
        return attribution::NONE;
    }
    if kernel!(frame_check) == 0 {
        return attribution::UNCHECKED;
    }
    on_stack(frame, sp)
}

/// [`state_of`] a frame that is there, for a stack pointer that is known.
#[inline(always)]
pub fn on_stack(frame: *const Frame, sp: u64) -> u8 {
    if sp == 0 {
        return attribution::UNREADABLE;
    }
    // SAFETY: a frame inside a value of THREAD_STATES.
    let (slot, kept) = unsafe { ((*frame).slot, (*frame).return_address) };
    if !arch::deeper(sp, slot) || slot - sp > DEPTH {
        return attribution::STALE;
    }
    if !arch::SLOT_HOLDS_ADDRESS || kept == 0 {
        return attribution::DEEPER;
    }
    match arch::word(slot) {
        None => attribution::UNREADABLE,
        Some(address) if returns_to(frame, address) => attribution::DEEPER,
        Some(_) => attribution::STALE,
    }
}

/// The slot's content says that the call behind `frame` is still to return.
///
/// A return probe puts the address of a trampoline into the slot, just after the entry was seen; it is the first of a
/// page, which a return address hardly ever is.
#[inline(always)]
pub fn returns_to(frame: *const Frame, address: u64) -> bool {
    // SAFETY: a frame inside a value of THREAD_STATES.
    let (kept, entry) = unsafe { ((*frame).return_address, (*frame).entry) };
    let return_probed = entry == entry::REALLOC || entry == entry::MALLOC_TRIM;
    address == kept || return_probed && address != 0 && address & 0xfff == 0
}

/// A call of the slow path that seems to be running still.
#[inline(always)]
pub fn slow_on_stack(frame: *const SlowFrame, sp: u64) -> bool {
    // SAFETY: a frame inside a value of THREAD_STATES.
    let slot = unsafe { (*frame).slot };
    slot != 0 && sp != 0 && arch::deeper(sp, slot) && slot - sp <= DEPTH
}

/// How a system call of this thread relates to its allocator call, and which frame that is: none of what is known of it here
/// is known to the verifier afterwards.
#[inline(always)]
pub fn attribute(process: *const ProcessState, thread: *mut ThreadState, sp: u64) -> (u8, *const Frame) {
    let (verdict, of_interrupted) = judge(process, thread, sp);
    // SAFETY: a value of THREAD_STATES, written to by its own thread alone; two frames lie at its begin.
    unsafe {
        (&raw mut (*thread).verdict).write_volatile(verdict);
        (&raw mut (*thread).verdict_of).write_volatile(u8::from(of_interrupted));
        let verdict = (&raw const (*thread).verdict).read_volatile();
        let of = arch::masked::<1>(u64::from((&raw const (*thread).verdict_of).read_volatile()));
        (verdict, thread.cast_const().cast::<Frame>().add(of as usize))
    }
}

/// The verdict, and whether it is about the frame that a signal handler interrupted.
#[inline(always)]
fn judge(process: *const ProcessState, thread: *const ThreadState, sp: u64) -> (u8, bool) {
    // SAFETY: values of STATES and THREAD_STATES.
    let (watched, epoch, pause, frame, interrupted, handlers) = unsafe {
        (
            (*process).depth,
            (*process).epoch,
            (*process).pause,
            &raw const (*thread).frame,
            (*thread).interrupted.slot,
            (*thread).handlers,
        )
    };
    if watched != depth::CALLS && kernel!(frame_check) != 0 {
        return (attribution::FOLLOW, false);
    }
    // SAFETY: as above.
    let (of, slot) = unsafe { ((*frame).epoch, (*frame).slot) };
    let state = if of == epoch {
        state_of(frame, sp)
    } else if kernel!(frame_check) == 0 && (watched != depth::CALLS || slot != 0 || pause != 0) {
        // No probe sees the allocator's calls, or this one may have begun when none did; and the stack cannot be looked at.
        attribution::UNREADABLE
    } else {
        attribution::NONE
    };
    if state == attribution::DEEPER || handlers == 0 || interrupted == 0 {
        return (state, false);
    }
    (attribution::IN_SIGNAL_HANDLER, true)
}
