//! Whose a system call is: an allocator call's, somebody else's, or not known.

use crate::chunk;
use crate::event::{Attribution, Entry, Frame, Syscall, SyscallKind};
use crate::regions::{RegionKind, Regions};
use crate::rule;

/// Flags and protections of mmap, equal on amd64 and arm64 (include/uapi/asm-generic/mman-common.h).
pub mod mman {
    pub const PROT_NONE: u64 = 0;
    pub const PROT_WRITE: u64 = 2;
    pub const PROT_EXEC: u64 = 4;
    pub const MAP_FIXED: u64 = 0x10;
    pub const MAP_ANONYMOUS: u64 = 0x20;
    pub const MAP_STACK: u64 = 0x2_0000;
    pub const MADV_DONTNEED: u64 = 4;
    pub const MADV_FREE: u64 = 8;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner<'a> {
    /// Made in the course of this allocator call.
    Call { frame: &'a Frame, certainty: Certainty },
    /// Made outside the allocator.
    Direct { in_handler: bool },
    /// Not to be told.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    Proven,
    /// The kernel shows no registers; the call fits.
    Likely,
    /// Proven, but what the call was made with is not known.
    EntryOnly,
}

impl Certainty {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Proven => "proven",
            Self::Likely => "likely",
            Self::EntryOnly => "entry only",
        }
    }

    /// What the call asked for is known.
    pub const fn knows_request(self) -> bool {
        !matches!(self, Self::EntryOnly)
    }
}

/// Decides whose `syscall` is.
pub fn owner<'a>(syscall: &'a Syscall, regions: &Regions, page_size: u64) -> Owner<'a> {
    let direct = Owner::Direct { in_handler: false };
    // Whatever the stack looks like: a left frame may still lie there as it was.
    if is_never_mallocs(syscall) {
        return direct;
    }
    match (syscall.attribution, &syscall.frame) {
        (Attribution::Proven, Some(frame)) => Owner::Call {
            frame,
            certainty: Certainty::Proven,
        },
        (Attribution::EntryOnly, Some(frame)) => Owner::Call {
            frame,
            certainty: Certainty::EntryOnly,
        },
        (Attribution::Unchecked, Some(frame)) if fits(syscall, frame, regions, page_size) => Owner::Call {
            frame,
            certainty: Certainty::Likely,
        },
        // A frame that was proven and is not there is a contradiction of the record.
        (Attribution::Proven | Attribution::EntryOnly | Attribution::Unreadable, None) => Owner::Unknown,
        (Attribution::Unreadable, Some(_)) => Owner::Unknown,
        (Attribution::InSignalHandler, _) => Owner::Direct { in_handler: true },
        (Attribution::Unchecked | Attribution::None | Attribution::Stale, _) => direct,
    }
}

/// A mapping that malloc has no use for: of a file, of code, of a stack. Only what a signal handler does is left to be
/// told by its own mark.
const fn is_never_mallocs(syscall: &Syscall) -> bool {
    let [_, _, prot, flags, ..] = syscall.args;
    let private = flags & mman::MAP_ANONYMOUS != 0 && flags & mman::MAP_STACK == 0 && prot & mman::PROT_EXEC == 0;
    matches!(syscall.kind, SyscallKind::Mmap)
        && !private
        && !matches!(syscall.attribution, Attribution::InSignalHandler)
}

/// Whether a system call is of the kind that glibc makes in such an allocator call.
fn fits(syscall: &Syscall, frame: &Frame, regions: &Regions, page_size: u64) -> bool {
    let [address, length, ..] = syscall.args;
    let region = regions.find(address).map(|region| region.kind);
    let releases = matches!(frame.entry, Entry::Free | Entry::Realloc | Entry::MallocTrim);
    match syscall.kind {
        SyscallKind::Brk => address != 0,
        SyscallKind::Mmap => fits_mapping(syscall, frame, page_size),
        SyscallKind::Munmap | SyscallKind::Mremap => match region {
            Some(RegionKind::MappedBlock | RegionKind::ArenaHeap | RegionKind::Reservation) => true,
            Some(RegionKind::MainPiece | RegionKind::ThreadStack | RegionKind::Direct(_)) => false,
            None => {
                releases
                    && frame
                        .argument
                        .checked_sub(address)
                        .is_some_and(|offset| offset < length)
            }
        },
        SyscallKind::Mprotect => !releases && matches!(region, Some(RegionKind::Reservation | RegionKind::ArenaHeap)),
        SyscallKind::Madvise => {
            let heap = matches!(region, Some(RegionKind::ArenaHeap));
            heap || (frame.entry == Entry::MallocTrim && region.is_none())
        }
    }
}

/// The thread cache's structure is smaller than this: it gets a mapping only where the threshold is as low.
const CACHE: u64 = 1024;

/// Whether a mapping has a length that glibc asks for in such a call: a segment's, a block's, a piece of the main
/// arena's, or that of the thread cache's structure.
fn fits_mapping(syscall: &Syscall, frame: &Frame, page_size: u64) -> bool {
    let [_, length, prot, ..] = syscall.args;
    if prot == mman::PROT_NONE {
        return length >= rule::HEAP_MAX;
    }
    let thresholds = syscall.heap.and_then(|heap| heap.thresholds);
    if length == page_size && thresholds.is_some_and(|read| read.mmap_threshold <= CACHE) {
        return true;
    }
    let Some(chunk) = chunk::asked_of_arena(frame, page_size) else {
        return false;
    };
    let block = [page_size, rule::HUGE_PAGE].into_iter().any(|unit| {
        [8, 16]
            .into_iter()
            .any(|overhead| rule::mapped_block(chunk, overhead, unit) == Some(length))
    });
    let top_pad = syscall
        .heap
        .and_then(|heap| heap.thresholds)
        .map(|thresholds| thresholds.top_pad);
    let piece = length >= rule::MAIN_PIECE && length > chunk
        || top_pad.is_some_and(|pad| rule::break_step(chunk, pad, 0, page_size) == Some(length));
    block || piece
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Snapshot;

    /// An mmap that a frame of malloc seems to have made.
    fn mmap(prot: u64, flags: u64, attribution: Attribution) -> Syscall {
        Syscall {
            kind: SyscallKind::Mmap,
            args: [0, 4096, prot, flags, u64::MAX, 0],
            result: 0x7f00_0000_0000,
            enter_ns: 0,
            attribution,
            frame: Some(Frame {
                entry: Entry::Malloc,
                request: 4000,
                argument: 0,
                chunk: None,
                call: 1,
                return_address: 0,
            }),
            ip: None,
            stack: [0; 8],
            heap: None,
            snapshot: Snapshot::default(),
            resident_bytes: None,
        }
    }

    #[test]
    fn files_code_and_stacks_are_never_mallocs() {
        const PRIVATE: u64 = 2;
        let regions = Regions::default();
        let is_direct = |syscall: &Syscall| matches!(owner(syscall, &regions, 4096), Owner::Direct { .. });
        let anonymous = PRIVATE | mman::MAP_ANONYMOUS;
        assert!(!is_direct(&mmap(3, anonymous, Attribution::Proven)));
        assert!(is_direct(&mmap(1, PRIVATE, Attribution::Proven)));
        assert!(is_direct(&mmap(3 | mman::PROT_EXEC, anonymous, Attribution::Proven)));
        assert!(is_direct(&mmap(3, anonymous | mman::MAP_STACK, Attribution::Proven)));
        let in_handler = mmap(1, PRIVATE, Attribution::InSignalHandler);
        assert_eq!(owner(&in_handler, &regions, 4096), Owner::Direct { in_handler: true });
    }
}
