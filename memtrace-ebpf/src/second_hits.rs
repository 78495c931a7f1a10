//! Hits that are no calls of the program's: an entry point reached from inside another one, passed once more, or called
//! by libc for itself.

use memtrace_common::{Frame, SPURIOUS_SITES, attribution, entry, exit_check, untouched};

use crate::count::bump;
use crate::frame;
use crate::hit::Hit;

/// The memalign family hands smaller alignments to malloc (MALLOC_ALIGNMENT).
const MALLOC_ALIGNMENT: u64 = 16;

impl Hit {
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
    pub fn second_hit_of_malloc(&self, request: u64) -> bool {
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
    pub fn first_call_again(&self, request: u64, argument: u64) -> bool {
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
            // Another thread's call may come between the two.
            let repeated = before.entry == self.entry && before.slot == self.slot && same;
            (if repeated { left & !again } else { left }, repeated)
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
    pub fn second_hit_of_free(&self, pointer: u64) -> bool {
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
    pub fn freed_by_thread_exit(&self) -> bool {
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
    pub fn first_free_again(&self, pointer: u64) -> bool {
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
