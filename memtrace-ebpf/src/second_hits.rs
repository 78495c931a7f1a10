//! Hits that are no calls of the program's: an entry point reached from inside another one, passed once more, or called
//! by libc for itself.

use memtrace_common::{Frame, SPURIOUS_SITES, attribution, entry, exit_check, untouched};

use crate::arch;
use crate::count::bump;
use crate::frame;
use crate::hit::Hit;

/// The memalign family hands smaller alignments to malloc (MALLOC_ALIGNMENT).
pub const MALLOC_ALIGNMENT: u64 = 16;

impl Hit {
    /// That return address lies in libc's own code.
    #[inline(always)]
    fn in_libc(&self, address: u64) -> bool {
        let address = address.wrapping_sub(self.base());
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
        // SAFETY: a frame inside a value of THREAD_STATES.
        let slot = unsafe { (*outer).slot };
        if slot < self.slot() {
            return false;
        }
        let address = self.return_address();
        if slot == self.slot() {
            // A jump keeps the slot and what is in it.
            return frame::returns_to(outer, address);
        }
        // Else a call, made by libc's own code, while the outer one is on the stack.
        self.in_libc(address) && frame::on_stack(outer, self.sp()) == attribution::DEEPER
    }

    /// This hit is the same allocation that an outer call was counted for.
    #[inline(always)]
    pub fn second_hit_of_malloc(&self, request: u64) -> bool {
        let Some(thread) = self.thread else { return false };
        // SAFETY: a frame inside a value of THREAD_STATES.
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
            entry::REALLOC if argument == 0 || slot != self.slot() => false,
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

    /// Up to 2.33, where the hook is still the library's own: it will start this call again.
    ///
    /// Each thread looks at the hook itself, since the first calls of several may find it before one of them has taken
    /// it away.
    #[inline(always)]
    pub fn starts_again(&self) -> bool {
        let (place, bit) = if self.entry == entry::REALLOC {
            (1, untouched::REALLOC)
        } else {
            (0, untouched::MALLOC)
        };
        // SAFETY: values of STATES.
        let (hook, untouched) = unsafe {
            let state = self.process.state;
            ((*state).libc.hooks[place], &raw mut (*state).untouched)
        };
        // SAFETY: as above.
        let left = unsafe { *untouched };
        if hook.variable == 0 || left & bit == 0 {
            return false;
        }
        let held = arch::word(self.base().wrapping_add(hook.variable));
        if held == Some(self.base().wrapping_add(hook.function)) {
            return true;
        }
        // It does not come back. Two threads that write at once leave one bit too many, which costs a look more.
        // SAFETY: as above.
        unsafe { *untouched = left & !bit };
        false
    }

    /// `again` will be passed once more, by the call that has just been kept: at `slot`, or 0 for inside of it.
    #[inline(always)]
    pub fn expect(&self, again: u8, slot: u64) {
        let Some(thread) = self.thread else { return };
        // SAFETY: a value of THREAD_STATES, written to by its own thread alone.
        unsafe {
            (*thread).again = again;
            (*thread).again_slot = slot;
            (*thread).again_call = (*thread).calls;
        }
    }

    /// This hit is the one that was expected.
    #[inline(always)]
    pub fn entered_again(&self, request: u64, argument: u64) -> bool {
        let Some(thread) = self.thread else { return false };
        // SAFETY: a value of THREAD_STATES, written to by its own thread alone.
        let (again, slot, call, calls, kept) = unsafe {
            (
                (*thread).again,
                (*thread).again_slot,
                (*thread).again_call,
                (*thread).calls,
                (*thread).frame,
            )
        };
        if again == entry::NONE {
            return false;
        }
        // SAFETY: as above.
        unsafe { (*thread).again = entry::NONE };
        // malloc has one argument; what is kept there for an outer call is that one's.
        let same = kept.request == request && (again == entry::MALLOC || kept.argument == argument);
        if again != self.entry || call != calls || !same {
            return false;
        }
        let here = if slot == 0 {
            kept.slot > self.slot() && self.in_libc(self.return_address())
        } else {
            slot == self.slot()
        };
        if here {
            bump!(self.process, second_hits);
        }
        here
    }

    /// realloc(p, 0) ends in free(p); where that is the thread's first free, it comes by once more.
    #[inline(always)]
    pub fn second_hit_of_free(&self, pointer: u64) -> bool {
        let Some(thread) = self.thread else { return false };
        // SAFETY: a frame inside a value of THREAD_STATES.
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
        // SAFETY: values of STATES and THREAD_STATES.
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
            // SAFETY: a value of THREAD_STATES.
            && unsafe { (*thread).exiting } == 0
        {
            return false;
        }
        let address = self.return_address().wrapping_sub(self.base());
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
        // SAFETY: values of STATES and THREAD_STATES.
        unsafe {
            if (*self.process.state).libc.first_free_twice == 0 || (*thread).freed != 0 {
                return false;
            }
            let frame = &raw const (*thread).frame;
            let again = (*frame).entry == entry::FREE
                && (*frame).argument == pointer
                && (*frame).slot == self.slot()
                && (*frame).epoch == (*self.process.state).epoch;
            if again {
                (*thread).freed = 1;
            }
            again
        }
    }
}
