//! Keeps programs of user probes on the stack of the task they run for.
//!
//! From Linux 6.13 on, amd64 gives a program stack memory of its own, one piece for each CPU, as if it could not run on one
//! CPU twice at a time. That of a user probe can: it is preempted, and another thread of the process comes by the same
//! probe; then the two write over each other's variables. A program with a tail call is left on the task's stack, which
//! the kernel decides before it looks at what can be reached: so there is one that never can.

use aya_ebpf::EbpfContext;

use crate::maps::{NO_PROGRAMS, kernel};

/// To be part of each program of a user probe; costs nothing in those that run.
#[inline(always)]
pub fn keep_own(ctx: &impl EbpfContext) {
    // There is always a shard, which the verifier knows: what follows is dropped.
    if kernel!(shards) == 0 {
        // SAFETY: a tail call that fails goes on here.
        unsafe { NO_PROGRAMS.tail_call(ctx, 0) };
    }
}
