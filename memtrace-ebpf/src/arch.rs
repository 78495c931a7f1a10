//! Registers, the calling convention, numbers of system calls: all that differs between processors.
//!
//! x86_64: a call pushes its return address, so the *slot* of a call is where that lies, and a live frame can be told
//! by its content. aarch64: a call leaves its return address in the link register, and where the function saves it is
//! its own affair; the slot is the stack pointer at entry, and a live frame is told by depth alone.

use core::arch::asm;

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::cty::c_void;
use aya_ebpf::helpers::bpf_probe_read_user;
use aya_ebpf::helpers::generated::{bpf_probe_read_kernel as read_kernel, bpf_probe_read_user as read_user};
use memtrace_common::syscall;

#[cfg(bpf_target_arch = "x86_64")]
mod imp {
    use super::*;

    /// Numbers of system calls, in the order of [`syscall`](memtrace_common::syscall).
    pub const NUMBERS: [u8; syscall::COUNT] = [12, 9, 11, 25, 10, 28];
    pub const RT_SIGRETURN: u32 = 15;

    use core::mem::offset_of;

    /// Where the kernel's pt_regs has the arguments of a system call, and its number.
    pub const ARGUMENT_OFFSETS: [usize; 6] = [
        offset_of!(pt_regs, rdi),
        offset_of!(pt_regs, rsi),
        offset_of!(pt_regs, rdx),
        offset_of!(pt_regs, r10),
        offset_of!(pt_regs, r8),
        offset_of!(pt_regs, r9),
    ];
    pub const NUMBER_OFFSET: usize = offset_of!(pt_regs, orig_rax);

    /// The code segment of 64-bit programs: system calls of others have other numbers.
    #[inline(always)]
    pub fn is_native(regs: u64) -> bool {
        kernel_word(regs.wrapping_add(offset_of!(pt_regs, cs) as u64)) & 0xffff == 0x33
    }

    /// # Safety
    /// `regs` is the context of a uprobe.
    #[inline(always)]
    pub unsafe fn instruction_pointer(regs: *const pt_regs) -> u64 {
        // SAFETY: the caller vouches for it.
        unsafe { (&raw const (*regs).rip).read_volatile() }
    }

    /// # Safety
    /// `regs` is the context of a uprobe.
    #[inline(always)]
    pub unsafe fn stack_pointer(regs: *const pt_regs) -> u64 {
        // SAFETY: the caller vouches for it.
        unsafe { (&raw const (*regs).rsp).read_volatile() }
    }

    /// The `n`th argument register. Volatile, or the compiler might compute the place to read from, which the verifier
    /// refuses.
    ///
    /// # Safety
    /// `regs` is the context of a uprobe.
    #[inline(always)]
    pub unsafe fn argument(regs: *const pt_regs, n: usize) -> u64 {
        // SAFETY: the caller vouches for it.
        unsafe {
            match n {
                0 => (&raw const (*regs).rdi).read_volatile(),
                1 => (&raw const (*regs).rsi).read_volatile(),
                2 => (&raw const (*regs).rdx).read_volatile(),
                _ => (&raw const (*regs).rcx).read_volatile(),
            }
        }
    }

    /// Offsets in the kernel's pt_regs.
    pub const IP_OFFSET: usize = core::mem::offset_of!(pt_regs, rip);
    pub const SP_OFFSET: usize = core::mem::offset_of!(pt_regs, rsp);
    pub const FP_OFFSET: usize = core::mem::offset_of!(pt_regs, rbp);
    /// There is no link register.
    pub const LR_OFFSET: Option<usize> = None;

    /// Where a signal frame keeps the stack pointer that it interrupted, as seen from the stack pointer at sigreturn: 40
    /// bytes of ucontext, then the registers of sigcontext, the 16th of which it is.
    pub const SIGRETURN_SP: u64 = 40 + 15 * 8;

    /// 0 when it cannot be read.
    ///
    /// # Safety
    /// `regs` is the context of a uprobe.
    #[inline(always)]
    pub unsafe fn return_address(_regs: *const pt_regs, slot: u64) -> u64 {
        word_or_zero(slot)
    }

    /// The slot of the call that has just returned.
    #[inline(always)]
    pub fn slot_after_return(regs: &pt_regs) -> u64 {
        regs.rsp.wrapping_sub(8)
    }

    pub const SLOT_HOLDS_ADDRESS: bool = true;

    /// A stack pointer that is inside the call whose slot this is.
    #[inline(always)]
    pub fn deeper(sp: u64, slot: u64) -> bool {
        sp <= slot
    }
}

#[cfg(bpf_target_arch = "aarch64")]
mod imp {
    use super::*;

    /// Numbers of system calls, in the order of [`syscall`](memtrace_common::syscall).
    pub const NUMBERS: [u8; syscall::COUNT] = [214, 222, 215, 216, 226, 233];
    pub const RT_SIGRETURN: u32 = 139;

    /// Where the kernel's pt_regs has the arguments of a system call, and its number, which is behind what user space sees
    /// of it: after orig_x0.
    pub const ARGUMENT_OFFSETS: [usize; 6] = [0, 8, 16, 24, 32, 40];
    pub const NUMBER_OFFSET: usize = size_of::<pt_regs>() + 8;

    /// Not the 32-bit state, whose system calls have other numbers.
    #[inline(always)]
    pub fn is_native(regs: u64) -> bool {
        kernel_word(regs.wrapping_add(core::mem::offset_of!(pt_regs, pstate) as u64)) & 0x10 == 0
    }

    /// Bits of an address; above them a function that begins with `paciasp` has put its signature into x30 by the time
    /// the probe is hit.
    const ADDRESS: u64 = (1 << 48) - 1;

    /// # Safety
    /// `regs` is the context of a uprobe.
    #[inline(always)]
    pub unsafe fn instruction_pointer(regs: *const pt_regs) -> u64 {
        // SAFETY: the caller vouches for it.
        unsafe { (&raw const (*regs).pc).read_volatile() }
    }

    /// # Safety
    /// `regs` is the context of a uprobe.
    #[inline(always)]
    pub unsafe fn stack_pointer(regs: *const pt_regs) -> u64 {
        // SAFETY: the caller vouches for it.
        unsafe { (&raw const (*regs).sp).read_volatile() }
    }

    /// # Safety
    /// `regs` is the context of a uprobe.
    #[inline(always)]
    pub unsafe fn argument(regs: *const pt_regs, n: usize) -> u64 {
        // SAFETY: the caller vouches for it.
        unsafe { (&raw const (*regs).regs[n]).read_volatile() }
    }

    pub const IP_OFFSET: usize = core::mem::offset_of!(pt_regs, pc);
    pub const SP_OFFSET: usize = core::mem::offset_of!(pt_regs, sp);
    pub const FP_OFFSET: usize = core::mem::offset_of!(pt_regs, regs) + 29 * 8;
    pub const LR_OFFSET: Option<usize> = Some(core::mem::offset_of!(pt_regs, regs) + 30 * 8);

    /// Where a signal frame keeps the stack pointer that it interrupted, as seen from the stack pointer at sigreturn: 128
    /// bytes of siginfo, 176 of ucontext, then sigcontext with a fault address and 31 registers before it.
    pub const SIGRETURN_SP: u64 = 128 + 176 + 8 + 31 * 8;

    /// # Safety
    /// `regs` is the context of a uprobe.
    #[inline(always)]
    pub unsafe fn return_address(regs: *const pt_regs, _slot: u64) -> u64 {
        // SAFETY: the caller vouches for it.
        unsafe { (&raw const (*regs).regs[30]).read_volatile() & ADDRESS }
    }

    #[inline(always)]
    pub fn slot_after_return(regs: &pt_regs) -> u64 {
        regs.sp
    }

    pub const SLOT_HOLDS_ADDRESS: bool = false;

    /// Strictly: the wrappers of system calls are leaves and do not move the stack pointer, so a call made by the
    /// caller itself has the same stack pointer as the caller had at the allocator's entry.
    #[inline(always)]
    pub fn deeper(sp: u64, slot: u64) -> bool {
        sp < slot
    }
}

pub use imp::*;

/// A memory system call.
#[derive(Clone, Copy)]
pub struct Call {
    /// One of [`syscall`].
    pub kind: u8,
    /// So many it has.
    pub arguments: u32,
}

/// In the order of [`syscall`].
const ARGUMENTS: [u8; syscall::COUNT] = [1, 6, 2, 5, 3, 3];

/// By number: kind plus one, arguments; zeros for those that do not move memory.
static CALLS: [[u8; 2]; 256] = {
    let mut calls = [[0; 2]; 256];
    let mut kind = 0;
    while kind < syscall::COUNT {
        calls[imp::NUMBERS[kind] as usize] = [kind as u8 + 1, ARGUMENTS[kind]];
        kind += 1;
    }
    calls
};

/// The memory system call of a number.
///
/// Looked up, not compared: the verifier would follow each of the calls through all that comes after.
#[inline(always)]
pub fn call(number: u32) -> Option<Call> {
    if number >= CALLS.len() as u32 {
        return None;
    }
    // SAFETY: inside of the table; volatile, or the compiler makes comparisons of it.
    let [kind, arguments] = unsafe {
        (&raw const CALLS)
            .cast::<[u8; 2]>()
            .add(number as usize)
            .read_volatile()
    };
    if kind == 0 || arguments > 6 {
        return None;
    }
    Some(Call {
        kind: kind - 1,
        arguments: u32::from(arguments),
    })
}

/// The arguments of a system call from the kernel's pt_regs, zeros behind the last. By arithmetic, since each branch would be
/// one more way for the verifier to follow.
#[inline(always)]
pub fn read_arguments(into: *mut [u64; 6], regs: u64, arguments: u32) {
    for (n, offset) in ARGUMENT_OFFSETS.into_iter().enumerate() {
        let has = (n as i64 - i64::from(arguments)) >> 63;
        let value = kernel_word(regs.wrapping_add(offset as u64)) & has as u64;
        // SAFETY: the caller's pointer is into a map's value; volatile, so that it stays arithmetic.
        unsafe { (&raw mut (*into)[n]).write_volatile(value) };
    }
}

/// The number of the system call whose registers these are; none of ours where the program is of another kind.
#[inline(always)]
pub fn number(regs: u64) -> u32 {
    kernel_word(regs.wrapping_add(NUMBER_OFFSET as u64)) as u32
}

/// `value & MASK`, also where the compiler can prove that this changes nothing: the verifier does not keep what it knows of
/// a value that was put on the stack meanwhile.
#[inline(always)]
pub fn masked<const MASK: i32>(value: u64) -> u64 {
    let mut value = value;
    // SAFETY: arithmetic on a register.
    unsafe { asm!("{value} &= {mask}", value = inout(reg) value, mask = const MASK, options(nomem, nostack)) };
    value
}

/// The lesser of a value and `MOST`, likewise: as two instructions that nothing comes between, to be asked for where the
/// verifier has to know it.
#[inline(always)]
pub fn at_most<const MOST: i32>(value: u64) -> u64 {
    let mut value = value;
    // SAFETY: arithmetic on a register, and a jump over one instruction.
    unsafe {
        asm!(
            "if {value} < {most} goto +1",
            "{value} = {most}",
            value = inout(reg) value,
            most = const MOST,
            options(nomem, nostack)
        );
    };
    value
}

/// A word of the current process's memory; 0 where it cannot be read. Without a branch, which would be one more way for
/// the verifier to follow.
#[inline(always)]
pub fn word_or_zero(address: u64) -> u64 {
    let mut word = 0;
    // SAFETY: the helper refuses addresses that cannot be read, and then writes zeros.
    unsafe { read_user((&raw mut word).cast(), 8, address as *const c_void) };
    word
}

/// The same of the kernel's memory.
#[inline(always)]
pub fn kernel_word(address: u64) -> u64 {
    let mut word = 0;
    // SAFETY: as above.
    unsafe { read_kernel((&raw mut word).cast(), 8, address as *const c_void) };
    word
}

/// A word of the current process's memory.
#[inline(always)]
pub fn word(address: u64) -> Option<u64> {
    // SAFETY: the helper refuses addresses that cannot be read.
    unsafe { bpf_probe_read_user(address as *const u64) }.ok()
}
