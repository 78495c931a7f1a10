//! Bytes of the ring buffer to events. Fields are read at their offsets in the ABI's structures; nothing is cast.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::offset_of;

use memtrace_analysis::event::{
    Attribution, Entry, Event, EventKind, Frame, HeapState, Snapshot, Syscall, SyscallKind, Thresholds, Trim,
};
use memtrace_common as abi;
use memtrace_common::{Header, LifeRecord, RequestRecord, SyscallRecord, TrimRecord, attribution, record};

use super::follow::{self, Kept, Known, Made, Slow, Unseen};
use super::held::{Held, Waiting};
use super::state;
use super::unwind::{Registers, Unwinder, Way};

/// Turns records into events. Keeps what it needs to know of the processes' libcs.
pub struct Decoder {
    page_size: u64,
    libraries: HashMap<FileId, Option<Unwinder>>,
    /// Which of them a process has; a child has its parent's.
    library_of: HashMap<u32, FileId>,
    /// System calls whose request is still to be told.
    held: Held,
    /// By process and thread.
    unseen: HashMap<(u32, u32), Unseen>,
    /// Records that could not be understood, by kind.
    pub unknown: BTreeMap<u16, u64>,
    /// Processes that have lost the probes that were theirs alone.
    pub bereft: BTreeSet<u32>,
}

/// Device and inode.
pub type FileId = ((u32, u32), u64);

impl Decoder {
    pub fn new(page_size: u64) -> Self {
        Self {
            page_size,
            libraries: HashMap::new(),
            library_of: HashMap::new(),
            held: Held::default(),
            unseen: HashMap::new(),
            unknown: BTreeMap::new(),
            bereft: BTreeSet::new(),
        }
    }

    /// Whether that library's frames can be followed already.
    pub fn knows(&self, file: FileId) -> bool {
        self.libraries.contains_key(&file)
    }

    /// The libc of a process; `unwinder` is looked at when the library is new. Tells whether its frames can be followed.
    pub fn set_library(&mut self, pid: u32, file: FileId, unwinder: Option<Unwinder>) -> bool {
        let known = self.libraries.entry(file).or_insert(unwinder).is_some();
        self.library_of.insert(pid, file);
        known
    }

    /// For following frames through a process's libc.
    pub fn unwinder(&mut self, pid: u32) -> Option<&mut Unwinder> {
        let &library = self.library_of.get(&pid)?;
        self.libraries.get_mut(&library)?.as_mut()
    }

    pub fn forget(&mut self, pid: u32) {
        // What no process has any more takes room for nothing.
        if let Some(library) = self.library_of.remove(&pid)
            && !self.library_of.values().any(|other| *other == library)
        {
            self.libraries.remove(&library);
        }
        self.unseen.retain(|(of, _), _| *of != pid);
        self.bereft.remove(&pid);
    }

    /// Adds what a record says to the events. One that cannot be understood is counted; one whose meaning a later record
    /// completes waits for that.
    pub fn take(&mut self, record: &[u8], events: &mut Vec<Event>) {
        let kind = half(record, offset_of!(Header, kind)).unwrap_or(0);
        if kind == record::REQUEST {
            if self.request(record, events).is_none() {
                *self.unknown.entry(kind).or_default() += 1;
            }
            return;
        }
        let Some((event, waiting)) = self.decode(record, kind) else {
            *self.unknown.entry(kind).or_default() += 1;
            return;
        };
        self.held.time_passes(event.time_ns, events);
        match event.kind {
            EventKind::Fork { child, followed: true } => {
                if let Some(&library) = self.library_of.get(&event.pid) {
                    self.library_of.insert(child, library);
                }
            }
            EventKind::Exec => self.held.flush(Some(event.pid), events),
            EventKind::ThreadExit => {
                self.held.give_up(event.pid, event.tid, events);
                self.unseen.remove(&(event.pid, event.tid));
            }
            // It has come to another system call without having entered the slow path; or a handler interrupts it, which may
            // take any time.
            EventKind::Syscall(_) if waiting.is_none() => self.held.give_up(event.pid, event.tid, events),
            _ => {}
        }
        match waiting {
            Some(waiting) => self.held.hold(event, waiting, events),
            None => events.push(event),
        }
    }

    /// Adds what still waits, as it is; of one process, or of all.
    pub fn flush(&mut self, of: Option<u32>, events: &mut Vec<Event>) {
        self.held.flush(of, events);
    }

    /// What the slow path was asked for, just after a system call.
    fn request(&mut self, record: &[u8], events: &mut Vec<Event>) -> Option<()> {
        let pid = int(record, offset_of!(Header, pid))?;
        let tid = int(record, offset_of!(Header, tid))?;
        let base = word(record, offset_of!(RequestRecord, libc_base))?;
        let slow = slow(record, offset_of!(RequestRecord, frame))?;
        let return_address = word(
            record,
            offset_of!(RequestRecord, frame) + offset_of!(abi::SlowFrame, return_address),
        )?;
        let Some(waiting) = self.held.waiting(pid, tid).cloned() else {
            return Some(());
        };
        if slow.slot >= waiting.slot {
            // Another call; the one before it got its memory some other way.
            self.held.give_up(pid, tid, events);
            return Some(());
        }
        // The set-up asks for memory too, but not from the frame of the entry point; nor from malloc's, which up to 2.33
        // a hook calls in the place of calloc the first time.
        let mut entries = waiting.entries;
        entries.push(Entry::Malloc);
        let own = self
            .unwinder(pid)
            .is_some_and(|unwinder| unwinder.runs_in(return_address.wrapping_sub(base).wrapping_sub(1), &entries));
        if own {
            self.held.resolve(pid, tid, slow.request, events);
        }
        Some(())
    }

    fn decode(&mut self, record: &[u8], kind: u16) -> Option<(Event, Option<Waiting>)> {
        if usize::from(half(record, offset_of!(Header, length))?) > record.len() {
            return None;
        }
        let pid = int(record, offset_of!(Header, pid))?;
        let mut waiting = None;
        let what = match kind {
            record::SYSCALL => {
                let (call, until) = self.syscall(record, pid)?;
                waiting = until;
                EventKind::Syscall(Box::new(call))
            }
            record::TRIM_BEGIN => EventKind::TrimBegin(trim(record, self.page_size, false)?),
            record::TRIM_END => EventKind::TrimEnd(trim(record, self.page_size, true)?),
            record::FORK => EventKind::Fork {
                child: int(record, offset_of!(LifeRecord, other))?,
                followed: int(record, offset_of!(LifeRecord, detail))? != 0,
            },
            record::EXEC => {
                if int(record, offset_of!(LifeRecord, detail))? != 0 {
                    self.bereft.insert(pid);
                }
                EventKind::Exec
            }
            record::THREAD_START => EventKind::ThreadStart {
                child: int(record, offset_of!(LifeRecord, other))?,
            },
            record::THREAD_EXIT => EventKind::ThreadExit,
            record::PROCESS_EXIT => {
                let status = int(record, offset_of!(LifeRecord, detail))?;
                EventKind::ProcessExit {
                    status: (status != abi::STATUS_UNKNOWN).then_some(status as i32),
                }
            }
            _ => return None,
        };
        let event = Event {
            time_ns: word(record, offset_of!(Header, time_ns))?,
            pid,
            tid: int(record, offset_of!(Header, tid))?,
            kind: what,
        };
        Some((event, waiting))
    }

    fn syscall(&mut self, record: &[u8], pid: u32) -> Option<(Syscall, Option<Waiting>)> {
        let ip = word(record, offset_of!(SyscallRecord, ip))?;
        let main = byte(record, offset_of!(SyscallRecord, main_arena))? != 0;
        let args: [u64; 6] = words(record, offset_of!(SyscallRecord, args))?;
        let mut frame = frame(record, offset_of!(SyscallRecord, frame))?;
        let mut waiting = None;
        let attribution = match byte(record, offset_of!(SyscallRecord, attribution))? {
            attribution::NONE => Attribution::None,
            attribution::DEEPER => self.follow(record, pid, &args, frame.as_ref()?)?,
            attribution::STALE => Attribution::Stale,
            attribution::UNCHECKED => Attribution::Unchecked,
            // Where the call came from may tell all the same.
            attribution::UNREADABLE => match &frame {
                Some(frame) if self.follow(record, pid, &args, frame)? == Attribution::Stale => Attribution::Stale,
                _ => Attribution::Unreadable,
            },
            attribution::IN_SIGNAL_HANDLER => Attribution::InSignalHandler,
            attribution::FOLLOW => {
                let known = self.climb(record, pid, frame)?;
                frame = known.frame;
                waiting = known.waiting;
                known.attribution
            }
            _ => return None,
        };
        // Of another call than the allocator's the kernel side could not know which arena it is about.
        let heap = match attribution {
            Attribution::Proven | Attribution::EntryOnly | Attribution::Unchecked => {
                heap(record, offset_of!(SyscallRecord, heap), main)?
            }
            _ => None,
        };
        let resident_pages = word(record, offset_of!(SyscallRecord, resident_pages))?;
        let call = Syscall {
            kind: kind(record)?,
            args,
            result: word(record, offset_of!(SyscallRecord, result))? as i64,
            enter_ns: word(record, offset_of!(SyscallRecord, enter_ns))?,
            attribution,
            frame,
            ip: (ip != 0).then_some(ip),
            stack: words(record, offset_of!(SyscallRecord, stack))?,
            heap,
            snapshot: snapshot(record, offset_of!(SyscallRecord, snapshot))?,
            resident_bytes: resident(resident_pages, self.page_size),
        };
        Some((call, waiting))
    }

    /// Not every call is seen: does the stack lead to one?
    fn climb(&mut self, record: &[u8], pid: u32, frame: Option<Frame>) -> Option<Known> {
        let tid = int(record, offset_of!(Header, tid))?;
        let base = word(record, offset_of!(SyscallRecord, libc_base))?;
        let slot = word(record, offset_of!(SyscallRecord, frame) + offset_of!(abi::Frame, slot))?;
        let stack = stack(record)?;
        let following = byte(record, offset_of!(SyscallRecord, following))?;
        let slow = slow(record, offset_of!(SyscallRecord, slow))?;
        let made = Made {
            kind: kind(record)?,
            registers: registers(record)?,
            base,
            stack: &stack,
            kept: frame.map(|frame| Kept { slot, frame }),
            slow: (slow.slot != 0).then_some(slow),
            in_handler: following & abi::following::IN_HANDLER != 0,
            hits: word(record, offset_of!(SyscallRecord, hits))?,
            requests_seen: following & abi::following::REQUESTS_SEEN != 0,
        };
        let unseen = self.unseen.entry((pid, tid)).or_default();
        let library = self.library_of.get(&pid).copied();
        let unwinder = library.and_then(|library| self.libraries.get_mut(&library)?.as_mut());
        Some(match unwinder {
            Some(unwinder) if base != 0 => follow::owner(unwinder, unseen, &made),
            _ => Known {
                attribution: Attribution::None,
                frame: None,
                waiting: None,
            },
        })
    }

    /// The stack pointer is deeper than the frame's slot; do the frames lead there?
    fn follow(&mut self, record: &[u8], pid: u32, args: &[u64; 6], frame: &Frame) -> Option<Attribution> {
        let Some(unwinder) = self.unwinder(pid) else {
            return Some(Attribution::Unchecked);
        };
        let registers = registers(record)?;
        let base = word(record, offset_of!(SyscallRecord, libc_base))?;
        let slot = word(record, offset_of!(SyscallRecord, frame) + offset_of!(abi::Frame, slot))?;
        let stack = stack(record)?;
        Some(match unwinder.follow(registers, base, slot, &stack) {
            Way::Arrives => Attribution::Proven,
            Way::Misses => Attribution::Stale,
            Way::Lost => Attribution::Unchecked,
            // Only what is being freed or moved can be the allocator's then.
            Way::ArrivesInWrapper => {
                let covered = args[0]..args[0].saturating_add(args[1]);
                let concerned =
                    matches!(frame.entry, Entry::Free | Entry::Realloc) && covered.contains(&frame.argument);
                if concerned {
                    Attribution::Proven
                } else {
                    Attribution::Stale
                }
            }
        })
    }
}

fn kind(record: &[u8]) -> Option<SyscallKind> {
    let number = byte(record, offset_of!(SyscallRecord, syscall))?;
    SyscallKind::ALL.get(usize::from(number)).copied()
}

fn registers(record: &[u8]) -> Option<Registers> {
    Some(Registers {
        ip: word(record, offset_of!(SyscallRecord, ip))?,
        sp: word(record, offset_of!(SyscallRecord, sp))?,
        fp: word(record, offset_of!(SyscallRecord, fp))?,
        lr: word(record, offset_of!(SyscallRecord, lr))?,
    })
}

/// The words at the stack pointer that could be read.
fn stack(record: &[u8]) -> Option<Vec<u64>> {
    let count = int(record, offset_of!(SyscallRecord, stack_words))? as usize;
    let at = offset_of!(SyscallRecord, stack);
    let bytes = record.get(at..at.checked_add(count.checked_mul(8)?)?)?;
    Some(bytes.chunks_exact(8).filter_map(|bytes| word(bytes, 0)).collect())
}

fn slow(record: &[u8], at: usize) -> Option<Slow> {
    Some(Slow {
        slot: word(record, at + offset_of!(abi::SlowFrame, slot))?,
        request: word(record, at + offset_of!(abi::SlowFrame, request))?,
        call: word(record, at + offset_of!(abi::SlowFrame, call))?,
    })
}

fn trim(record: &[u8], page_size: u64, returned: bool) -> Option<Trim> {
    let result = word(record, offset_of!(TrimRecord, result))? as i32;
    Some(Trim {
        pad: word(record, offset_of!(TrimRecord, pad))?,
        result: returned.then_some(result),
        call: word(record, offset_of!(TrimRecord, call))?,
        resident_bytes: resident(word(record, offset_of!(TrimRecord, resident_pages))?, page_size),
        heap: heap(record, offset_of!(TrimRecord, heap), true)?,
        snapshot: snapshot(record, offset_of!(TrimRecord, snapshot))?,
    })
}

/// The inner option: no call was kept.
fn frame(record: &[u8], at: usize) -> Option<Option<Frame>> {
    let number = byte(record, at + offset_of!(abi::Frame, entry))?;
    if number == abi::entry::NONE {
        return Some(None);
    }
    let chunk = word(record, at + offset_of!(abi::Frame, chunk))?;
    Some(Some(Frame {
        entry: state::entry_of(number)?,
        request: word(record, at + offset_of!(abi::Frame, request))?,
        argument: word(record, at + offset_of!(abi::Frame, argument))?,
        chunk: (chunk != 0).then_some(chunk),
        call: word(record, at + offset_of!(abi::Frame, call))?,
        return_address: word(record, at + offset_of!(abi::Frame, return_address))?,
    }))
}

/// The inner option: nothing could be read.
fn heap(record: &[u8], at: usize, main: bool) -> Option<Option<HeapState>> {
    let arena = word(record, at + offset_of!(abi::HeapState, arena))?;
    let trim_threshold = word(record, at + offset_of!(abi::HeapState, trim_threshold))?;
    let top_pad = word(record, at + offset_of!(abi::HeapState, top_pad))?;
    let mmap_threshold = word(record, at + offset_of!(abi::HeapState, mmap_threshold))?;
    let thresholds = (trim_threshold | top_pad | mmap_threshold != 0).then_some(Thresholds {
        mmap_threshold,
        trim_threshold,
        top_pad,
        dynamic: None,
    });
    if arena == 0 && thresholds.is_none() {
        return Some(None);
    }
    Some(Some(HeapState {
        arena: (arena != 0).then_some(arena),
        main,
        top: word(record, at + offset_of!(abi::HeapState, top))?,
        top_size: word(record, at + offset_of!(abi::HeapState, top_size))? & !7,
        thresholds,
    }))
}

fn snapshot(record: &[u8], at: usize) -> Option<Snapshot> {
    Some(Snapshot {
        allocated_blocks: word(record, at + offset_of!(abi::Snapshot, allocated_blocks))?,
        allocated_bytes: word(record, at + offset_of!(abi::Snapshot, allocated_bytes))?,
        freed_blocks: word(record, at + offset_of!(abi::Snapshot, freed_blocks))?,
        freed_bytes: word(record, at + offset_of!(abi::Snapshot, freed_bytes))?,
        thread_allocated_blocks: word(record, at + offset_of!(abi::Snapshot, thread_allocated_blocks))?,
        thread_allocated_bytes: word(record, at + offset_of!(abi::Snapshot, thread_allocated_bytes))?,
    })
}

fn resident(pages: u64, page_size: u64) -> Option<u64> {
    if pages == u64::MAX {
        None
    } else {
        pages.checked_mul(page_size)
    }
}

fn array<const N: usize>(record: &[u8], at: usize) -> Option<[u8; N]> {
    record.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn byte(record: &[u8], at: usize) -> Option<u8> {
    record.get(at).copied()
}

fn half(record: &[u8], at: usize) -> Option<u16> {
    array(record, at).map(u16::from_ne_bytes)
}

fn int(record: &[u8], at: usize) -> Option<u32> {
    array(record, at).map(u32::from_ne_bytes)
}

fn word(record: &[u8], at: usize) -> Option<u64> {
    array(record, at).map(u64::from_ne_bytes)
}

fn words<const N: usize>(record: &[u8], at: usize) -> Option<[u64; N]> {
    let mut found = [0; N];
    for (index, kept) in found.iter_mut().enumerate() {
        *kept = word(record, at + 8 * index)?;
    }
    Some(found)
}
