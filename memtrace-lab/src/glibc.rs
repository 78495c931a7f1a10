//! glibc's allocator, called directly, and the ledger of what a program holds.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

use crate::line;

/// The entry points that the libc crate does not declare.
pub mod raw {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        pub fn aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void;
        pub fn memalign(alignment: usize, bytes: usize) -> *mut c_void;
        pub fn valloc(bytes: usize) -> *mut c_void;
        pub fn pvalloc(bytes: usize) -> *mut c_void;
        pub fn malloc_trim(pad: usize) -> c_int;
    }
}

/// Exit status when the machine has no memory left for a program.
const EXIT_NO_MEMORY: c_int = 2;

static LIVE_BLOCKS: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicU64 = AtomicU64::new(0);

/// A block that a program holds, with the size it asked for.
pub struct Block {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: a block belongs to whoever holds it, and glibc lets any thread free it.
unsafe impl Send for Block {}

/// malloc, with each page written so that it is resident.
pub fn take(bytes: usize) -> Block {
    // SAFETY: any size is a valid request.
    let Some(start) = NonNull::new(unsafe { libc::malloc(bytes) }) else {
        line::error(format_args!("memtrace-lab: malloc({bytes}) returned no block"));
        // SAFETY: ends the process without running anything of ours.
        unsafe { libc::_exit(EXIT_NO_MEMORY) }
    };
    // SAFETY: the block has that many bytes.
    unsafe { libc::memset(start.as_ptr(), 1, bytes) };
    black_box(start);
    LIVE_BLOCKS.fetch_add(1, Relaxed);
    LIVE_BYTES.fetch_add(bytes as u64, Relaxed);
    Block { start, bytes }
}

/// free
pub fn give(block: Block) {
    // SAFETY: a Block comes from malloc and is freed once, since it is consumed here.
    unsafe { libc::free(block.start.as_ptr()) };
    LIVE_BLOCKS.fetch_sub(1, Relaxed);
    LIVE_BYTES.fetch_sub(block.bytes as u64, Relaxed);
}

/// malloc_trim(0)
pub fn trim() -> bool {
    // SAFETY: has no precondition.
    unsafe { raw::malloc_trim(0) != 0 }
}

/// Blocks held now, and the bytes asked for by them.
pub fn live() -> (u64, u64) {
    (LIVE_BLOCKS.load(Relaxed), LIVE_BYTES.load(Relaxed))
}

/// A table of blocks that takes no memory from the allocator: it lies in the program's own data.
pub struct Table<const N: usize>([Slot; N]);

struct Slot {
    start: AtomicPtr<c_void>,
    bytes: AtomicUsize,
}

impl<const N: usize> Table<N> {
    pub const fn new() -> Self {
        Self(
            [const {
                Slot {
                    start: AtomicPtr::new(null_mut()),
                    bytes: AtomicUsize::new(0),
                }
            }; N],
        )
    }

    pub fn put(&self, index: usize, block: Block) {
        let slot = &self.0[index];
        slot.bytes.store(block.bytes, Relaxed);
        slot.start.store(block.start.as_ptr(), Release);
    }

    pub fn take(&self, index: usize) -> Option<Block> {
        let slot = &self.0[index];
        let start = NonNull::new(slot.start.swap(null_mut(), Acquire))?;
        Some(Block {
            start,
            bytes: slot.bytes.load(Relaxed),
        })
    }
}

/// Blocks outside the ledger, for programs that time each call.
pub mod raw_block {
    use std::ffi::c_void;
    use std::hint::black_box;

    use crate::line;

    /// Never null: the program ends when there is no memory.
    pub fn malloc(bytes: usize) -> *mut c_void {
        // SAFETY: any size is a valid request.
        let block = unsafe { libc::malloc(bytes) };
        if block.is_null() {
            line::error(format_args!("memtrace-lab: malloc({bytes}) returned no block"));
            // SAFETY: ends the process without running anything of ours.
            unsafe { libc::_exit(super::EXIT_NO_MEMORY) }
        }
        black_box(block)
    }

    /// # Safety
    /// `block` comes from [`malloc`] and is freed once.
    pub unsafe fn free(block: *mut c_void) {
        // SAFETY: the caller's promise.
        unsafe { libc::free(black_box(block)) }
    }

    /// Writes a byte into each page, so that it is resident.
    ///
    /// # Safety
    /// `block` has that many bytes.
    pub unsafe fn write_pages(block: *mut c_void, bytes: usize) {
        const SMALLEST_PAGE: usize = 4096;
        for offset in (0..bytes).step_by(SMALLEST_PAGE) {
            // SAFETY: inside the block by the caller's promise.
            unsafe { block.cast::<u8>().add(offset).write_volatile(1) };
        }
    }
}
