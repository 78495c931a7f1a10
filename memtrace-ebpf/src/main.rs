//! The kernel side of memtrace: counts what a process asks of its allocator, and says which system call was made in
//! the course of which allocator call.
//!
//! ```text
//! alloc    uprobes: one for each entry point of malloc      counters, the thread's frame
//! slow     uprobe: the slow path                         what it was asked for
//! returns  uretprobe: what realloc came to
//! trim     malloc_trim, entry and return: a record for each
//! syscalls tracepoints: entry and exit of memory calls      a record for each, tied to the frame
//! signals  a handler pushes the frame aside, sigreturn gives it back
//! life     threads and processes that come, change and go
//!
//! hit      an entry point is called       second_hits  entry points that the program has not called
//! filter   is the current task traced?      frame  is the allocator call still on the stack?
//! heap     glibc's own books                rss    resident pages
//! emit     the ring buffer                  count  exact counters
//! arch     registers                        maps   what is kept, and the constants set by the loader
//! stack    where a probe's variables lie
//! ```
//!
//! What is rare also goes to a log of its own (aya-log), if the loader asks for it; else the verifier drops it.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod alloc;
mod arch;
mod count;
mod emit;
mod filter;
mod frame;
mod heap;
mod hit;
mod life;
mod maps;
mod returns;
mod rss;
mod second_hits;
mod signals;
mod slow;
mod stack;
mod syscalls;
mod trim;

/// Some helpers are for GPL-compatible programs only.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// For the loader, which refuses an object of another ABI. The section is [`memtrace_common::ABI_SECTION`].
#[unsafe(no_mangle)]
#[unsafe(link_section = "memtrace_abi")]
static ABI: [u8; 8] = memtrace_common::ABI.to_le_bytes();

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
