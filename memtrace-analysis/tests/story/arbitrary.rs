//! Any event at all, with figures that like to collide: small ones, large ones, and ones near the limits.

use memtrace_analysis::event::*;
use memtrace_analysis::glibc::summary::{CauseSummary, HeapSummary, LookSummary, ResidentSummary, VerdictSummary};
use memtrace_analysis::glibc::verdict::{CauseKind, VerdictKind};
use memtrace_analysis::report::Confidence;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Addresses and sizes: mostly few distinct ones, so that events refer to each other.
pub fn figure() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0u64..16).prop_map(|pages| pages * 4096),
        2 => (0u64..8).prop_map(|segments| segments * (64 << 20)),
        2 => 0u64..1000,
        1 => select(vec![u64::MAX, u64::MAX - 1, i64::MAX as u64, i64::MAX as u64 + 1, 1 << 63, 32 << 20, 0x21000]),
        1 => any::<u64>(),
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    select(Entry::ALL.to_vec())
}

fn text() -> impl Strategy<Value = String> {
    select(vec![
        "",
        "2.36",
        "2.44",
        "libc.so.6",
        "\u{1b}[2J",
        "2.99999999999999999999",
    ])
    .prop_map(str::to_owned)
}

fn thresholds() -> impl Strategy<Value = Thresholds> {
    (figure(), figure(), figure(), any::<Option<bool>>()).prop_map(
        |(mmap_threshold, trim_threshold, top_pad, dynamic)| Thresholds {
            mmap_threshold,
            trim_threshold,
            top_pad,
            dynamic,
        },
    )
}

fn heap() -> impl Strategy<Value = HeapState> {
    (
        option::of(figure()),
        any::<bool>(),
        figure(),
        figure(),
        option::of(thresholds()),
    )
        .prop_map(|(arena, main, top, top_size, thresholds)| HeapState {
            arena,
            main,
            top,
            top_size,
            thresholds,
        })
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    [figure(), figure(), figure(), figure(), figure(), figure()].prop_map(|[a, b, c, d, e, f]| Snapshot {
        allocated_blocks: a,
        allocated_bytes: b,
        freed_blocks: c,
        freed_bytes: d,
        thread_allocated_blocks: e,
        thread_allocated_bytes: f,
    })
}

fn frame() -> impl Strategy<Value = Frame> {
    (entry(), figure(), figure(), option::of(figure()), 0u64..6).prop_map(|(entry, request, argument, chunk, call)| {
        Frame {
            entry,
            request,
            argument,
            chunk,
            call,
            return_address: 0,
        }
    })
}

fn attribution() -> impl Strategy<Value = Attribution> {
    use Attribution::*;
    select(vec![
        Proven,
        Proven,
        Proven,
        None,
        Stale,
        Unchecked,
        Unreadable,
        InSignalHandler,
    ])
}

fn syscall() -> impl Strategy<Value = Syscall> {
    let head = (
        select(SyscallKind::ALL.to_vec()),
        [figure(), figure(), figure(), figure(), figure(), figure()],
        prop_oneof![3 => figure().prop_map(u64::cast_signed), 1 => -4100i64..1],
        attribution(),
        option::weighted(0.8, frame()),
    );
    let tail = (
        option::of(figure()),
        vec(figure(), 8),
        option::of(heap()),
        snapshot(),
        option::of(figure()),
    );
    (head, tail).prop_map(
        |((kind, args, result, attribution, frame), (ip, stack, heap, snapshot, resident_bytes))| {
            // Often the break is moved to where it was asked to be.
            let result = if kind == SyscallKind::Brk && result > 0 {
                args[0].cast_signed()
            } else {
                result
            };
            Syscall {
                kind,
                args,
                result,
                enter_ns: 0,
                attribution,
                frame,
                ip,
                stack: stack.try_into().expect("eight words"),
                heap,
                snapshot,
                resident_bytes,
            }
        },
    )
}

fn trim() -> impl Strategy<Value = Trim> {
    (
        figure(),
        any::<Option<i32>>(),
        0u64..6,
        option::of(figure()),
        option::of(heap()),
        snapshot(),
    )
        .prop_map(|(pad, result, call, resident_bytes, heap, snapshot)| Trim {
            pad,
            result,
            call,
            resident_bytes,
            heap,
            snapshot,
        })
}

fn allocator() -> impl Strategy<Value = Allocator> {
    let kind = select(vec![
        AllocatorKind::Glibc,
        AllocatorKind::GlibcStatic,
        AllocatorKind::Jemalloc,
        AllocatorKind::Unknown,
    ]);
    (kind, option::of(text()), text()).prop_map(|(kind, version, evidence)| Allocator {
        kind,
        version,
        path: None,
        build_id: None,
        evidence,
    })
}

fn start() -> impl Strategy<Value = Start> {
    let capabilities = (vec(entry(), 0..3), any::<[bool; 5]>(), vec(text(), 0..2)).prop_map(
        |(probed, [frame_check, realloc_returns, trim_returns, heap_state, resident], limits)| Capabilities {
            probed,
            frame_check,
            realloc_returns,
            trim_returns,
            heap_state,
            resident,
            limits,
        },
    );
    let page_size = prop_oneof![select(vec![4096, 65536]), figure()];
    let figures = (
        any::<u32>(),
        any::<bool>(),
        option::of(figure()),
        page_size,
        option::of(figure()),
    );
    (text(), allocator(), figures, option::of(thresholds()), capabilities).prop_map(
        |(name, allocator, (threads, from_birth, break_end, page_size, resident_bytes), thresholds, capabilities)| {
            Start {
                command: name.clone(),
                name,
                threads,
                from_birth,
                allocator,
                break_end,
                page_size,
                resident_bytes,
                thresholds,
                capabilities,
            }
        },
    )
}

fn table<const N: usize>() -> impl Strategy<Value = [u64; N]> {
    vec(figure(), N).prop_map(|values| values.try_into().expect("as many as asked for"))
}

fn totals() -> impl Strategy<Value = Totals> {
    (
        table::<10>(),
        table::<10>(),
        table::<10>(),
        table::<10>(),
        table::<24>(),
        table::<6>(),
        table::<6>(),
        vec(figure(), 0..4),
    )
        .prop_map(
            |(calls, blocks, bytes, failed, single, syscalls, syscalls_failed, sizes)| Totals {
                calls,
                blocks,
                bytes,
                failed,
                allocated_blocks: single[0],
                allocated_bytes: single[1],
                freed_blocks: single[2],
                freed_bytes: single[3],
                free_null: single[4],
                freed_mapped_blocks: single[5],
                freed_mapped_bytes: single[6],
                freed_non_main_blocks: single[7],
                free_unreadable: single[8],
                second_hits: single[9],
                second_hits_memalign: single[10],
                spurious_thread_exit: single[11],
                spurious_first_free: single[12],
                realloc: Realloc {
                    null: single[13],
                    zero: single[14],
                    returns: single[15],
                    in_place: single[16],
                    moved: single[17],
                    failed: single[18],
                    grown: single[19],
                    shrunk: single[20],
                    mapped: single[21],
                },
                syscalls,
                syscalls_failed,
                lost_records: single[22],
                lost_threads: single[23],
                hits: single[0],
                request_sizes: sizes.clone(),
                freed_sizes: sizes,
            },
        )
}

fn module() -> impl Strategy<Value = Module> {
    use ModuleRole::*;
    let role = select(vec![Program, Loader, Libc, Allocator, Runtime, Library, Anonymous]);
    (figure(), figure(), text(), role).prop_map(|(start, end, path, role)| Module { start, end, path, role })
}

fn look() -> impl Strategy<Value = LookSummary> {
    let resident = table::<8>().prop_map(
        |[
            total,
            live,
            retained,
            allocator_overhead,
            file,
            shared,
            stacks,
            other_anon,
        ]| ResidentSummary {
            total,
            live,
            retained,
            allocator_overhead,
            file,
            shared,
            stacks,
            other_anon,
        },
    );
    let heap = table::<4>().prop_map(|[live_blocks, live_bytes, free_bytes, cached_bytes]| HeapSummary {
        live_blocks,
        live_bytes,
        free_bytes,
        cached_bytes,
    });
    let cause = select(vec![
        CauseKind::TopPinnedLive,
        CauseKind::Fastbins,
        CauseKind::PageCache,
    ]);
    let causes =
        (cause, figure(), any::<bool>()).prop_map(|(kind, bytes, overlaps)| CauseSummary { kind, bytes, overlaps });
    let judgement = select(vec![VerdictKind::Retention, VerdictKind::Healthy, VerdictKind::Unknown]);
    let confidence = select(vec![Confidence::Proven, Confidence::Likely, Confidence::CannotTell]);
    let verdict = (judgement, text(), confidence, vec(causes, 0..3)).prop_map(|(kind, text, confidence, causes)| {
        VerdictSummary {
            kind,
            text,
            confidence,
            causes,
        }
    });
    (
        any::<bool>(),
        option::of(resident),
        option::of(heap),
        option::of(text()),
        option::of(thresholds()),
        option::of(figure()),
        option::of(verdict),
    )
        .prop_map(
            |(torn, resident, heap, heap_unknown, thresholds, trim_would_return_bytes, verdict)| LookSummary {
                torn,
                resident,
                heap,
                heap_unknown,
                thresholds,
                trim_would_return_bytes,
                verdict,
            },
        )
}

fn kind() -> impl Strategy<Value = EventKind> {
    prop_oneof![
        12 => syscall().prop_map(|syscall| EventKind::Syscall(Box::new(syscall))),
        1 => start().prop_map(|start| EventKind::Start(Box::new(start))),
        2 => trim().prop_map(EventKind::TrimBegin),
        2 => trim().prop_map(EventKind::TrimEnd),
        1 => (any::<u32>(), any::<bool>()).prop_map(|(child, followed)| EventKind::Fork { child, followed }),
        1 => Just(EventKind::Exec),
        1 => any::<u32>().prop_map(|child| EventKind::ThreadStart { child }),
        1 => Just(EventKind::ThreadExit),
        1 => any::<Option<i32>>().prop_map(|status| EventKind::ProcessExit { status }),
        1 => totals().prop_map(|totals| EventKind::Totals(Box::new(totals))),
        1 => (figure(), any::<u32>(), option::of(figure()), figure()).prop_map(
            |(resident_bytes, threads, break_end, cpu_ns)| EventKind::Sample(Sample {
                resident_bytes,
                threads,
                break_end,
                cpu_ns,
            })
        ),
        1 => vec(module(), 0..4).prop_map(EventKind::Modules),
        1 => Just(EventKind::Tick),
        1 => select(vec![EndReason::TimeUp, EndReason::Interrupted, EndReason::ProcessExited, EndReason::Failed])
            .prop_map(|reason| EventKind::End { reason }),
        1 => (select(vec![Depth::Nothing, Depth::Syscalls, Depth::SlowPath, Depth::Calls]), any::<bool>(), any::<bool>()).prop_map(
            |(depth, followed, automatic)| EventKind::Watching(Watching {
                depth,
                followed,
                automatic,
            })
        ),
        1 => (figure(), option::of(any::<f64>()), figure(), figure(), option::of(0.0..1.0)).prop_map(
            |(hits, hit_ns, trace_ns, cpu_ns, max_share)| EventKind::Cost(Box::new(Cost {
                hits,
                hit_ns: hit_ns.filter(|ns| ns.is_finite()),
                trace_ns,
                cpu_ns,
                max_share,
                attach_ns: hits,
                detach_ns: cpu_ns,
                pause_ns: None,
                syscall_ns: hit_ns.filter(|ns| ns.is_finite()),
                syscalls_ns: Some(hits),
            }))
        ),
        1 => (select(vec![LookMoment::Begin, LookMoment::End]), look()).prop_map(|(moment, look)| EventKind::Look {
            moment,
            look: Box::new(look),
        }),
    ]
}

/// Any event, mostly of one process and of a few threads.
pub fn event() -> impl Strategy<Value = Event> {
    let time = prop_oneof![8 => 0u64..100_000_000, 1 => any::<u64>()];
    let pid = prop_oneof![20 => Just(1u32), 1 => any::<u32>()];
    let tid = prop_oneof![20 => 1u32..4, 1 => any::<u32>()];
    (time, pid, tid, kind()).prop_map(|(time_ns, pid, tid, kind)| Event {
        time_ns,
        pid,
        tid,
        kind,
    })
}
