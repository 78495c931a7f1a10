//! What a memory system call means in the allocator's terms: a step of the break, a block's mapping, a segment, a trim.
//!
//! A pure reading of one system call, given whose it is, what its allocator call did before, and which ranges are known
//! to be what. The books of growth and return follow from it; nothing is changed here.

use crate::chunk::{self, SizeField};
use crate::event::{Entry, Frame, Syscall, SyscallKind};
use crate::owner::{Owner, mman};
use crate::regions::{Region, RegionKind, Regions};
use crate::report::StepKind;
use crate::rule::{self, HEAP_MAX};
use crate::threads::Call;
use crate::version::{self, Version};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Memory was taken from the system.
    Growth(Growth),
    /// Memory was asked for and refused.
    Refused,
    /// Memory was given back.
    Return(Return),
    /// Address space was reserved for a thread arena's segment.
    Reserved { start: u64, bytes: u64 },
    /// The surplus of such a reservation was let go.
    ReservationTrimmed,
    /// The break was asked for, not moved.
    BreakAsked { at: u64 },
    /// Advice and protections that move no memory.
    Nothing,
    /// Outside the allocator; regions and the direct groups keep it.
    Direct,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    pub kind: StepKind,
    /// Where the range that was gained begins and ends.
    pub from: u64,
    pub to: u64,
    /// Mremap: the old mapping, which is gone.
    pub replaced: Option<(u64, u64)>,
}

impl Growth {
    pub const fn bytes(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    pub way: ReturnWay,
    pub start: u64,
    /// Bytes that the process no longer holds.
    pub bytes: u64,
    /// Mremap: where the block lies now, and how long it is.
    pub remains: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnWay {
    /// A mapped block's mapping is gone.
    Munmap,
    /// The break was lowered.
    BreakDown,
    /// The end of a thread arena's segment was given back.
    ArenaShrunk,
    /// A thread arena's segment is gone.
    SegmentUnmapped,
    /// Free pages between blocks were given back, in a malloc_trim.
    PagesAdvised,
    /// A mapped block was made smaller.
    Remapped,
}

/// What is known around a system call.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    pub regions: &'a Regions,
    /// The allocator call in progress (empty where the owner is none).
    pub call: Call,
    /// mmap_threshold in force, where known.
    pub mmap_threshold: Option<u64>,
    pub page_size: u64,
    pub version: Option<Version>,
    /// What the allocator call asked for is known.
    pub request_known: bool,
}

/// Reads `syscall`, whose owner has been told.
pub fn read(syscall: &Syscall, owner: Owner, around: &Surroundings) -> Meaning {
    if syscall.kind == SyscallKind::Brk {
        return read_break(syscall, owner, around);
    }
    let Owner::Call { frame, .. } = owner else {
        return Meaning::Direct;
    };
    let refused = (-4095..0).contains(&syscall.result);
    match syscall.kind {
        SyscallKind::Brk => Meaning::Nothing,
        SyscallKind::Mmap => read_mmap(syscall, frame, around, refused),
        SyscallKind::Munmap => read_munmap(syscall, frame, around, refused),
        SyscallKind::Mremap => read_mremap(syscall, refused),
        SyscallKind::Mprotect => read_mprotect(syscall, around, refused),
        SyscallKind::Madvise => read_madvise(syscall, frame, around.regions, refused),
    }
}

/// brk never fails by an errno: it returns the break as it is.
fn read_break(syscall: &Syscall, owner: Owner, around: &Surroundings) -> Meaning {
    let wanted = syscall.args[0];
    let at = syscall.result.cast_unsigned();
    if wanted == 0 {
        return Meaning::BreakAsked { at };
    }
    if wanted != at {
        return Meaning::Refused;
    }
    match break_before(syscall, owner, around) {
        Some(from) if at > from => Meaning::Growth(Growth {
            kind: StepKind::Brk,
            from,
            to: at,
            replaced: None,
        }),
        Some(from) if at < from => Meaning::Return(Return {
            way: ReturnWay::BreakDown,
            start: at,
            bytes: from.saturating_sub(at),
            remains: None,
        }),
        _ => Meaning::BreakAsked { at },
    }
}

/// Addresses so far apart are one of the heap's and one of a mapping's.
const FAR: u64 = 1 << 40;

/// The break before a call.
///
/// The books say where the allocator believes it to be, the end of its top; the kernel's last word may be older than a
/// record that was lost. glibc lowers the break only where its top ends there. A higher break than that is somebody
/// else's doing, unless the step is what the rule gives without him.
fn break_before(syscall: &Syscall, owner: Owner, around: &Surroundings) -> Option<u64> {
    let known = around.regions.break_end();
    let books = match owner {
        Owner::Call { frame, .. } => syscall.heap.as_ref().zip(Some(frame)),
        Owner::Direct { .. } | Owner::Unknown => None,
    };
    let Some((heap, frame)) = books.filter(|(heap, _)| heap.top_size > 0) else {
        return known;
    };
    let Some(top_end) = heap.main_top() else { return known };
    let Some(known) = known else { return Some(top_end) };
    // The top of an arena that maps its memory piece by piece has nothing to do with the break.
    if known.abs_diff(top_end) > FAR {
        return Some(known);
    }
    let wanted = syscall.args[0];
    // A mapping seen from outside ends on the page that the break lies in.
    let rounded = !around.regions.break_exact() && known.saturating_sub(top_end) < around.page_size;
    if wanted < top_end || !(top_end..wanted).contains(&known) || rounded {
        return Some(top_end);
    }
    let chunk = chunk::asked_of_arena(frame, around.page_size);
    let step = heap
        .thresholds
        .zip(chunk)
        .and_then(|(thresholds, chunk)| rule::break_step(chunk, thresholds.top_pad, heap.top_size, around.page_size));
    if step.is_some() && step == wanted.checked_sub(top_end) {
        Some(top_end)
    } else {
        Some(known)
    }
}

fn read_mmap(syscall: &Syscall, frame: &Frame, around: &Surroundings, refused: bool) -> Meaning {
    let [address, bytes, prot, flags, ..] = syscall.args;
    let start = syscall.result.cast_unsigned();
    if refused {
        return Meaning::Refused;
    }
    if prot == mman::PROT_NONE {
        // A segment's end is taken out of use this way where overcommitting is forbidden.
        let shrunk = flags & mman::MAP_FIXED != 0
            && around
                .regions
                .find(address)
                .is_some_and(|region| region.kind == RegionKind::ArenaHeap);
        return if shrunk {
            Meaning::Return(Return {
                way: ReturnWay::ArenaShrunk,
                start,
                bytes,
                remains: None,
            })
        } else {
            Meaning::Reserved { start, bytes }
        };
    }
    let kind = if for_main_arena(frame, bytes, around) {
        StepKind::MmapMain
    } else {
        StepKind::Mmap
    };
    Meaning::Growth(Growth {
        kind,
        from: start,
        to: start.saturating_add(bytes),
        replaced: None,
    })
}

/// A mapping in place of the break: after the break was refused, or where no block gets one of its own.
fn for_main_arena(frame: &Frame, bytes: u64, around: &Surroundings) -> bool {
    let call = &around.call;
    if call.break_refused {
        return true;
    }
    // A thread arena that gets no segment maps the block instead.
    if call.segment_refused || call.reserved.is_some() || !around.request_known {
        return false;
    }
    let request = chunk::asked_of_arena(frame, around.page_size);
    let cache = around
        .version
        .and_then(version::thread_cache_request)
        .and_then(chunk::chunk_size);
    let fits = |chunk: &u64| {
        let as_large = [around.page_size, rule::HUGE_PAGE].into_iter().any(|unit| {
            // Of any version, since it may not be known.
            [8, 16]
                .into_iter()
                .any(|overhead| rule::mapped_block(*chunk, overhead, unit) == Some(bytes))
        });
        as_large && around.mmap_threshold.is_none_or(|threshold| *chunk >= threshold)
    };
    !request.iter().chain(cache.iter()).any(fits)
}

fn read_munmap(syscall: &Syscall, frame: &Frame, around: &Surroundings, refused: bool) -> Meaning {
    let [start, bytes, ..] = syscall.args;
    if refused {
        return Meaning::Nothing;
    }
    let gone = |way, bytes| {
        Meaning::Return(Return {
            way,
            start,
            bytes,
            remains: None,
        })
    };
    match around.regions.find(start) {
        Some(Region {
            kind: RegionKind::MappedBlock,
            ..
        }) => gone(ReturnWay::Munmap, bytes),
        Some(
            region @ Region {
                kind: RegionKind::ArenaHeap,
                ..
            },
        ) => gone(ReturnWay::SegmentUnmapped, region.usable),
        Some(Region {
            kind: RegionKind::Reservation,
            ..
        }) => Meaning::ReservationTrimmed,
        _ if around.call.reserved.is_some() => Meaning::ReservationTrimmed,
        _ if frees_mapped_chunk(frame) => gone(ReturnWay::Munmap, bytes),
        // A segment that was there before the trace began; how much of it was usable is not known.
        _ if frees_arena_chunk(frame) => gone(ReturnWay::SegmentUnmapped, 0),
        _ => gone(ReturnWay::Munmap, bytes),
    }
}

/// The call lets go of a block that has a mapping of its own.
pub fn frees_mapped_chunk(frame: &Frame) -> bool {
    matches!(frame.entry, Entry::Free | Entry::Realloc) && frame.chunk.is_some_and(|chunk| SizeField(chunk).mapped())
}

/// The call frees a block of a thread arena: what is unmapped then is a segment.
fn frees_arena_chunk(frame: &Frame) -> bool {
    let in_arena = |chunk| !SizeField(chunk).mapped() && SizeField(chunk).non_main();
    matches!(frame.entry, Entry::Free | Entry::Realloc) && frame.chunk.is_some_and(in_arena)
}

fn read_mremap(syscall: &Syscall, refused: bool) -> Meaning {
    let [old_start, old_bytes, new_bytes, ..] = syscall.args;
    let new_start = syscall.result.cast_unsigned();
    if refused {
        return Meaning::Refused;
    }
    if new_bytes > old_bytes {
        Meaning::Growth(Growth {
            kind: StepKind::Mremap,
            from: new_start.saturating_add(old_bytes),
            to: new_start.saturating_add(new_bytes),
            replaced: Some((old_start, old_bytes)),
        })
    } else {
        Meaning::Return(Return {
            way: ReturnWay::Remapped,
            start: old_start,
            bytes: old_bytes.saturating_sub(new_bytes),
            remains: Some((new_start, new_bytes)),
        })
    }
}

fn read_mprotect(syscall: &Syscall, around: &Surroundings, refused: bool) -> Meaning {
    let [start, bytes, prot, ..] = syscall.args;
    if refused {
        return Meaning::Refused;
    }
    if prot & mman::PROT_WRITE == 0 {
        return Meaning::Nothing;
    }
    let fresh = match around.regions.find(start) {
        Some(region) => region.kind == RegionKind::Reservation,
        None => start.checked_rem(HEAP_MAX) == Some(0),
    };
    let kind = if fresh { StepKind::ArenaSegment } else { StepKind::Arena };
    Meaning::Growth(Growth {
        kind,
        from: start,
        to: start.saturating_add(bytes),
        replaced: None,
    })
}

fn read_madvise(syscall: &Syscall, frame: &Frame, regions: &Regions, refused: bool) -> Meaning {
    let [start, bytes, advice, ..] = syscall.args;
    if refused || !matches!(advice, mman::MADV_DONTNEED | mman::MADV_FREE) {
        return Meaning::Nothing;
    }
    let way = match frame.entry {
        Entry::MallocTrim => ReturnWay::PagesAdvised,
        // Only a thread arena's end is given back so outside malloc_trim; its segment may be older than the trace.
        _ if regions
            .find(start)
            .is_none_or(|region| region.kind == RegionKind::ArenaHeap) =>
        {
            ReturnWay::ArenaShrunk
        }
        _ => return Meaning::Nothing,
    };
    Meaning::Return(Return {
        way,
        start,
        bytes,
        remains: None,
    })
}
