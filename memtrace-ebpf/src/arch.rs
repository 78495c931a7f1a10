//! Registers and the calling convention: all that differs between processors.
//!
//! x86_64: a call pushes its return address, so the *slot* of a call is where that lies, and a live frame can be told
//! by its content. aarch64: a call leaves its return address in the link register, and where the function saves it is
//! its own affair; the slot is the stack pointer at entry, and a live frame is told by depth alone.

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_probe_read_user;

#[cfg(bpf_target_arch = "x86_64")]
mod imp {
    use super::*;

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
        word(slot).unwrap_or(0)
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

/// A word of the current process's memory.
#[inline(always)]
pub fn word(address: u64) -> Option<u64> {
    // SAFETY: the helper refuses addresses that cannot be read.
    unsafe { bpf_probe_read_user(address as *const u64) }.ok()
}
