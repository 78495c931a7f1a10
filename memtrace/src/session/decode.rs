//! Bytes of the ring buffer to events. Fields are read at their offsets in the ABI's structures; nothing is cast.

use std::mem::offset_of;

use memtrace_analysis::event::{
    Attribution, Event, EventKind, Frame, HeapState, Snapshot, Syscall, SyscallKind, Thresholds, Trim,
};
use memtrace_common as abi;
use memtrace_common::{Header, LifeRecord, SyscallRecord, TrimRecord, attribution, record};

use super::state;

/// A record's event; the kind of a record that cannot be understood.
pub fn event(record: &[u8], page_size: u64) -> Result<Event, u16> {
    let kind = half(record, offset_of!(Header, kind)).unwrap_or(0);
    decode(record, kind, page_size).ok_or(kind)
}

fn decode(record: &[u8], kind: u16, page_size: u64) -> Option<Event> {
    if usize::from(half(record, offset_of!(Header, length))?) > record.len() {
        return None;
    }
    let what = match kind {
        record::SYSCALL => EventKind::Syscall(Box::new(syscall(record, page_size)?)),
        record::TRIM_BEGIN => EventKind::TrimBegin(trim(record, page_size, false)?),
        record::TRIM_END => EventKind::TrimEnd(trim(record, page_size, true)?),
        record::FORK => EventKind::Fork {
            child: int(record, offset_of!(LifeRecord, other))?,
            followed: int(record, offset_of!(LifeRecord, detail))? != 0,
        },
        record::EXEC => EventKind::Exec,
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
    Some(Event {
        time_ns: word(record, offset_of!(Header, time_ns))?,
        pid: int(record, offset_of!(Header, pid))?,
        tid: int(record, offset_of!(Header, tid))?,
        kind: what,
    })
}

fn syscall(record: &[u8], page_size: u64) -> Option<Syscall> {
    let ip = word(record, offset_of!(SyscallRecord, ip))?;
    let main = byte(record, offset_of!(SyscallRecord, main_arena))? != 0;
    Some(Syscall {
        kind: *SyscallKind::ALL.get(usize::from(byte(record, offset_of!(SyscallRecord, syscall))?))?,
        args: words(record, offset_of!(SyscallRecord, args))?,
        result: word(record, offset_of!(SyscallRecord, result))? as i64,
        enter_ns: word(record, offset_of!(SyscallRecord, enter_ns))?,
        attribution: match byte(record, offset_of!(SyscallRecord, attribution))? {
            attribution::NONE => Attribution::None,
            attribution::PROVEN => Attribution::Proven,
            attribution::STALE => Attribution::Stale,
            attribution::UNCHECKED => Attribution::Unchecked,
            attribution::UNREADABLE => Attribution::Unreadable,
            attribution::IN_SIGNAL_HANDLER => Attribution::InSignalHandler,
            _ => return None,
        },
        frame: frame(record, offset_of!(SyscallRecord, frame))?,
        ip: (ip != 0).then_some(ip),
        stack: words(record, offset_of!(SyscallRecord, stack))?,
        heap: heap(record, offset_of!(SyscallRecord, heap), main)?,
        snapshot: snapshot(record, offset_of!(SyscallRecord, snapshot))?,
        resident_bytes: resident(word(record, offset_of!(SyscallRecord, resident_pages))?, page_size),
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
        time_ns: word(record, at + offset_of!(abi::Frame, time_ns))?,
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
