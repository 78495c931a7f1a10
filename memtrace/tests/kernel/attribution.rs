//! Which system call belongs to which allocator call.

use memtrace_analysis::event::{Attribution, Entry, Syscall, SyscallKind};
use memtrace_test_support::kernel::shows_registers;
use memtrace_test_support::skip;

use crate::support::{Program, can_trace, page, trace};

const MAP_STACK: u64 = 0x20000;
const MAP_ANONYMOUS: u64 = 0x20;

/// What a system call of programs/attribution.c is, told by its size; None for those that several things can make.
fn expected(call: &Syscall) -> Option<(Attribution, Option<Entry>)> {
    let length = call.args[1];
    Some(match call.kind {
        // The program's own, after its malloc has returned: from the same function, from a deeper one, without libc's
        // wrapper, from a function that lies over the frames of malloc.
        SyscallKind::Mmap if (0x11000..=0x14000).contains(&length) => (Attribution::Stale, None),
        // pthread_create's, likewise.
        SyscallKind::Mmap if call.args[3] & MAP_STACK != 0 => (Attribution::Stale, None),
        // A signal handler's that has interrupted malloc.
        SyscallKind::Mmap if length == 0x16000 => (Attribution::InSignalHandler, Some(Entry::Malloc)),
        SyscallKind::Mprotect if length == page() && call.args[2] == 3 => {
            (Attribution::InSignalHandler, Some(Entry::Malloc))
        }
        // The allocator's.
        SyscallKind::Mmap if length == (2 << 20) + page() => (Attribution::Proven, Some(Entry::Malloc)),
        SyscallKind::Mremap => (Attribution::Proven, Some(Entry::Realloc)),
        SyscallKind::Munmap if length == (3 << 20) + page() => (Attribution::Proven, Some(Entry::Free)),
        // malloc goes on after the handler has returned.
        SyscallKind::Brk if call.frame.is_some_and(|frame| frame.request == 126_000) => {
            (Attribution::Proven, Some(Entry::Malloc))
        }
        // sbrk by the program.
        SyscallKind::Brk => (Attribution::Stale, None),
        _ => return None,
    })
}

#[test]
fn a_system_call_belongs_to_the_allocator_only_while_its_call_is_on_the_stack() {
    if !can_trace() {
        return;
    }
    let traced = trace(Program::build("attribution"));
    // What is said to be missing has to be.
    assert_eq!(traced.capabilities.frame_check, shows_registers());
    if !shows_registers() {
        skip::skip(
            "a_system_call_belongs_to_the_allocator_only_while_its_call_is_on_the_stack",
            "this kernel shows no registers at system calls (before 5.15), so nothing is proven",
        );
        assert!(
            traced
                .syscalls()
                .iter()
                .all(|call| call.attribution != Attribution::Proven)
        );
        return;
    }
    let mut seen = 0;
    for call in traced.syscalls() {
        if call.kind == SyscallKind::Mmap && call.args[3] & MAP_ANONYMOUS == 0 {
            // A file: malloc maps none, libc's locale functions do.
            assert_ne!(call.attribution, Attribution::Proven, "{call:#x?}");
        }
        let Some((attribution, entry)) = expected(call) else {
            continue;
        };
        assert_eq!(call.attribution, attribution, "{call:#x?}");
        if entry.is_some() {
            assert_eq!(call.frame.map(|frame| frame.entry), entry, "{call:#x?}");
        }
        seen += 1;
    }
    // 3 + 24 mappings, a thread's stack, sbrk, mmap + mremap + munmap, 2 in the handler, at least one brk.
    assert!(seen >= 34, "{seen} system calls were recognised");
}
