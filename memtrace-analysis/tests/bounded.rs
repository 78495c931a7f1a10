//! An analysis takes bounded memory, however long the trace: a stream that brings something new with every event, thread
//! ids, addresses, sizes, names, is fed, and what is allocated does not grow any more once all the books are full.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use memtrace_analysis::Analyzer;
use memtrace_analysis::event::*;

/// Counts what is allocated and not freed.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const PID: u32 = 1;

fn snapshot(n: u64) -> Snapshot {
    Snapshot {
        allocated_blocks: n * 3,
        allocated_bytes: n * 300,
        freed_blocks: n * 2,
        freed_bytes: n * 200,
        thread_allocated_blocks: n,
        thread_allocated_bytes: n * 100,
    }
}

fn syscall(n: u64, kind: SyscallKind, args: [u64; 6], result: u64, frame: Option<Frame>) -> EventKind {
    let attribution = match frame {
        Some(_) if n.is_multiple_of(7) => Attribution::EntryOnly,
        Some(_) => Attribution::Proven,
        None => Attribution::Stale,
    };
    EventKind::Syscall(Box::new(Syscall {
        kind,
        args,
        result: result as i64,
        enter_ns: n * 1000,
        attribution,
        frame,
        ip: Some(0x7000_0000_0000 + n * 0x1000),
        stack: [0x7100_0000_0000 + n * 0x1000; 8],
        heap: Some(HeapState {
            arena: Some(0x7200_0000_0030 + n * 0x400_0000),
            main: false,
            top: 0x7200_0000_0100 + n * 0x400_0000,
            top_size: n % 4096,
            thresholds: Some(Thresholds {
                mmap_threshold: 128 * 1024 + n * 4096,
                trim_threshold: 256 * 1024 + n * 8192,
                top_pad: 128 * 1024,
                dynamic: Some(true),
            }),
        }),
        snapshot: snapshot(n),
        resident_bytes: Some(n * 4096),
    }))
}

fn frame(n: u64, entry: Entry, request: u64) -> Frame {
    Frame {
        entry,
        request,
        argument: 0x7300_0000_0010 + n * 0x10_0000,
        chunk: Some(0x20_0002 + n * 4096),
        call: n,
        return_address: 0x5500_0000_0000 + n,
    }
}

const PRIVATE_ANONYMOUS: u64 = 0x22;

/// The nth event: what it is changes from one to the next, and so does everything in it.
fn kind(n: u64) -> EventKind {
    let address = 0x7300_0000_0000 + n * 0x10_0000;
    let length = 0x20_1000 + n * 4096;
    match n % 16 {
        // A block with a mapping of its own, in a new place and of a new size; every other one is unmapped later.
        0 | 1 => syscall(
            n,
            SyscallKind::Mmap,
            [0, length, 3, PRIVATE_ANONYMOUS, u64::MAX, 0],
            address,
            Some(frame(n, Entry::Malloc, length - 4096)),
        ),
        2 => syscall(
            n,
            SyscallKind::Munmap,
            [address - 2 * 0x10_0000, length, 0, 0, 0, 0],
            0,
            Some(frame(n - 2, Entry::Free, 0)),
        ),
        // The program's own, from new code.
        3 | 4 => syscall(
            n,
            SyscallKind::Mmap,
            [0, length, 3, PRIVATE_ANONYMOUS, u64::MAX, 0],
            address + 0x1_0000_0000_0000,
            None,
        ),
        // A new arena.
        5 => syscall(
            n,
            SyscallKind::Mmap,
            [0, 0x800_0000, 0, PRIVATE_ANONYMOUS, u64::MAX, 0],
            0x2000_0000_0000 + n * 0x800_0000,
            Some(frame(n, Entry::Malloc, n)),
        ),
        6 => syscall(
            n,
            SyscallKind::Mprotect,
            [0x2000_0000_0000 + (n - 1) * 0x800_0000, 0x2_1000, 3, 0, 0, 0],
            0,
            Some(frame(n - 1, Entry::Malloc, n)),
        ),
        7 => syscall(
            n,
            SyscallKind::Brk,
            [0x5600_0000_0000 + n * 4096, 0, 0, 0, 0, 0],
            0x5600_0000_0000 + n * 4096,
            Some(frame(n, Entry::Calloc, n)),
        ),
        8 => EventKind::ThreadStart { child: n as u32 + 10 },
        9 => EventKind::Fork {
            child: n as u32 + 10,
            followed: n.is_multiple_of(2),
        },
        // Reading the modules again is work; a program does not load a library with every sixteenth event.
        10 if n % 1024 != 10 => EventKind::Tick,
        10 => EventKind::Modules(
            (0..4)
                .map(|part| Module {
                    start: 0x7400_0000_0000 + n * 0x10_0000 + part * 0x1000,
                    end: 0x7400_0000_1000 + n * 0x10_0000 + part * 0x1000,
                    path: format!("/opt/plugins/{n}-{part}.so"),
                    role: ModuleRole::Library,
                })
                .collect(),
        ),
        11 => EventKind::TrimBegin(Trim {
            pad: n,
            result: None,
            call: n,
            resident_bytes: Some(n * 4096),
            heap: None,
            snapshot: snapshot(n),
        }),
        12 => EventKind::Totals(Box::new(Totals {
            allocated_blocks: n * 3,
            hits: n,
            request_sizes: vec![n; 48],
            freed_sizes: vec![n; 48],
            ..Totals::default()
        })),
        13 => EventKind::Watching(Watching {
            depth: [Depth::Calls, Depth::SlowPath, Depth::Syscalls][(n / 16 % 3) as usize],
            followed: true,
            automatic: true,
        }),
        14 => EventKind::Cost(Box::new(Cost {
            hits: n,
            trace_ns: n * 700,
            cpu_ns: n * 1000,
            ..Cost::default()
        })),
        _ => EventKind::Sample(Sample {
            resident_bytes: n * 4096,
            threads: n as u32 % 100,
            break_end: Some(0x5600_0000_0000 + n * 4096),
            cpu_ns: n * 1000,
        }),
    }
}

#[test]
fn an_endless_stream_of_news_takes_bounded_memory() {
    let mut analyzer = Analyzer::new();
    let mut feed = |from: u64, to: u64| {
        for n in from..to {
            // A thousand threads take turns; that more are bounded too is a figure in each book.
            analyzer.push(Event {
                time_ns: n * 100_000,
                pid: PID,
                tid: n as u32 % 1000 + 2,
                kind: kind(n),
            });
        }
        LIVE.load(Ordering::Relaxed)
    };
    // The largest book has room for 100,000 ranges of memory, of which about a quarter of the events bring one.
    let full = feed(16, 600_000);
    let later = feed(600_000, 800_000);
    assert!(
        later <= full + full / 50,
        "{full} bytes after 600,000 events, {later} after 800,000"
    );
    let report = analyzer.report();
    assert!(report.growth.steps_omitted > 0 && report.trims_omitted > 0);
}
