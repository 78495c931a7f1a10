//! A hit of a probe at an allocator's entry point: what it was called with, how it is counted, and how it becomes the
//! thread's frame.

use core::mem::offset_of;

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::programs::ProbeContext;
use memtrace_common::{Frame, ThreadState, depth, entry};

use crate::count::{bump, size_class};
use crate::filter::{self, Ids, Process, current_ids};
use crate::{arch, signals, stack};

/// Flag bits of a chunk's size field.
pub const IS_MMAPPED: u64 = 2;
const NON_MAIN_ARENA: u64 = 4;
pub const FLAGS: u64 = 7;

/// A probe was hit by a traced process.
///
/// What the registers say is read anew each time that it is asked for: kept over calls of helpers it would be spilled.
pub struct Hit {
    pub ids: Ids,
    pub process: Process,
    /// None when there was no room for it.
    pub thread: Option<*mut ThreadState>,
    regs: *const pt_regs,
    pub entry: u8,
    /// Calls are counted at this depth.
    pub counts: bool,
}

// As `keep` writes them in one word.
const _: () = assert!(offset_of!(Frame, entry) % 8 == 0 && offset_of!(Frame, epoch) == offset_of!(Frame, entry) + 4);

impl Hit {
    #[inline(always)]
    pub fn new(ctx: &ProbeContext, entry: u8) -> Option<Self> {
        stack::keep_own(ctx);
        let ids = current_ids()?;
        let (process, thread) = filter::active_thread(ids)?;
        // SAFETY: a value of STATES.
        let watched = unsafe { (*process.state).depth };
        let served_by_cache = matches!(entry, entry::MALLOC | entry::CALLOC | entry::FREE);
        if watched != depth::CALLS {
            bump!(process, uncounted);
            if served_by_cache || watched == depth::SYSCALLS {
                return None;
            }
        }
        // SAFETY: the context of a uprobe is the registers; `process.state` is a value of STATES.
        unsafe {
            if let Some(thread) = thread {
                signals::notice_left(thread, arch::stack_pointer(ctx.regs));
            }
            if (*process.state).libc_base == 0 {
                (*process.state).libc_base = base_of(ctx.regs, process, entry);
            }
            Some(Self {
                ids,
                process,
                thread,
                regs: ctx.regs,
                entry,
                counts: watched == depth::CALLS,
            })
        }
    }

    /// Load address of the libc that was called.
    #[inline(always)]
    pub fn base(&self) -> u64 {
        // SAFETY: the registers are the context of a uprobe.
        unsafe { base_of(self.regs, self.process, self.entry) }
    }

    #[inline(always)]
    pub fn sp(&self) -> u64 {
        // SAFETY: the registers are the context of a uprobe.
        unsafe { arch::stack_pointer(self.regs) }
    }

    /// Where the return address lies.
    #[inline(always)]
    pub fn slot(&self) -> u64 {
        // SAFETY: a value of STATES.
        let moved = unsafe { (*self.process.state).libc.stack_moved[self.entry as usize] };
        self.sp().wrapping_add(u64::from(moved))
    }

    #[inline(always)]
    pub fn return_address(&self) -> u64 {
        // SAFETY: the registers are the context of a uprobe.
        unsafe { arch::return_address(self.regs, self.slot()) }
    }

    /// Makes this call the thread's frame.
    #[inline(always)]
    pub fn keep(&self, request: u64, argument: u64, chunk: u64) {
        let Some(thread) = self.thread else { return };
        // Of calls that others may be inside of the return address is needed; else it is kept where that costs nothing.
        let return_address = match self.entry {
            entry::MALLOC | entry::CALLOC | entry::FREE if arch::SLOT_HOLDS_ADDRESS => 0,
            _ => self.return_address(),
        };
        // SAFETY: a value of THREAD_STATES, written to by its own thread alone.
        unsafe {
            let call = (*thread).calls + 1;
            (*thread).calls = call;
            (*thread).libc_base = self.base();
            // Word by word and volatile: of neighbours that are all zero the compiler makes a call of memset, which goes byte by
            // byte and costs as much as all else here. The last word is `entry`, zeros in `second_hit` and behind it, and `epoch`.
            let frame = &raw mut (*thread).frame;
            (&raw mut (*frame).slot).write_volatile(self.slot());
            (&raw mut (*frame).return_address).write_volatile(return_address);
            (&raw mut (*frame).request).write_volatile(request);
            (&raw mut (*frame).argument).write_volatile(argument);
            (&raw mut (*frame).chunk).write_volatile(chunk);
            (&raw mut (*frame).call).write_volatile(call);
            frame
                .cast::<u64>()
                .add(offset_of!(Frame, entry) / 8)
                .write_volatile(u64::from(self.entry) | u64::from((*self.process.state).epoch) << 32);
        }
    }

    /// A new block.
    #[inline(always)]
    pub fn block(&self, request: u64) {
        let process = self.process;
        bump!(process, blocks[self.entry as usize]);
        bump!(process, bytes[self.entry as usize], request);
        bump!(process, request_sizes[size_class(request)]);
        let Some(thread) = self.thread else { return };
        // SAFETY: a value of THREAD_STATES, written to by its own thread alone.
        unsafe {
            (*thread).allocated_blocks += 1;
            (*thread).allocated_bytes += request;
        }
    }

    /// A block is freed whose chunk's size field is `chunk` (0: unreadable): all of it but what counts by entry point.
    #[inline(always)]
    pub fn freed(&self, chunk: u64) {
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
}

/// Load address of the libc whose probe at `entry` was hit.
///
/// # Safety
/// `regs` is the context of a uprobe.
#[inline(always)]
unsafe fn base_of(regs: *const pt_regs, process: Process, entry: u8) -> u64 {
    // SAFETY: a value of STATES; the caller vouches for the registers.
    unsafe { arch::instruction_pointer(regs).wrapping_sub((*process.state).libc.site[entry as usize]) }
}

/// The size field of the chunk behind a pointer, flag bits included; 0 when it cannot be read.
#[inline(always)]
pub fn chunk_of(pointer: u64) -> u64 {
    arch::word_or_zero(pointer.wrapping_sub(8))
}

#[inline(always)]
pub fn argument(ctx: &ProbeContext, n: usize) -> u64 {
    // SAFETY: the context of a uprobe is the registers.
    unsafe { arch::argument(ctx.regs, n) }
}

/// The only argument of a function, which may have been moved to another register on the way to the site.
#[inline(always)]
pub fn moved_argument(ctx: &ProbeContext, hit: &Hit) -> u64 {
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
