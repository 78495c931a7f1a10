//! A report made by hand: what a trace of 10,000 blocks of 64 bytes comes to.

use std::collections::BTreeMap;

use memtrace_analysis::event::{
    Allocator, AllocatorKind, Capabilities, Depth, EndReason, Entry, Realloc, SyscallKind, Thresholds,
};
use memtrace_analysis::glibc::summary::{CauseSummary, HeapSummary, LookSummary, ResidentSummary, VerdictSummary};
use memtrace_analysis::glibc::verdict::{CauseKind, VerdictKind};
use memtrace_analysis::report::{
    Allocated, Batch, BatchScope, BlocksBytes, Cause, Confidence, CostSection, Coverage, DepthTimes, DirectGroup,
    DirectKind, Estimate, Estimates, Finding, Freed, Growth, LooksSection, REPORT_VERSION, Report, Returned, Step,
    StepBucket, StepKind, SyscallCount, TargetSection, ThreadsSection, ThresholdChange, ThresholdSection, TimedLook,
    TrimReport, TrimSide,
};

const KIB: u64 = 1 << 10;
const BEGIN: u64 = 1_000_000_000_000;
const HEAP: u64 = 0x5555_5555_9000;

pub fn brk_steps() -> Report {
    let step = 132 * KIB;
    Report {
        report_version: REPORT_VERSION,
        target: TargetSection {
            pid: 4242,
            name: "brk-steps".into(),
            command: "memtrace-lab brk-steps".into(),
            threads: 1,
            from_birth: true,
            libc: Allocator {
                kind: AllocatorKind::Glibc,
                version: Some("2.36".into()),
                path: Some("/usr/lib/x86_64-linux-gnu/libc.so.6".into()),
                build_id: Some("93ac2b4f".into()),
                evidence: "maps libc.so.6 and no other allocator".into(),
            },
            page_size: 4096,
            resident_bytes_begin: Some(1_400_000),
            resident_bytes_end: Some(1_400_000),
            break_begin: Some(HEAP),
            break_end: Some(HEAP + 4 * KIB),
            execs: 0,
            exit_status: Some(0),
        },
        coverage: Coverage {
            begin_ns: BEGIN,
            end_ns: BEGIN + 2_140_000_000,
            duration_ns: 2_140_000_000,
            ended: Some(EndReason::ProcessExited),
            lost_events: 0,
            lost_threads: 0,
            unreadable: 0,
            oddities: BTreeMap::new(),
            second_hits: 0,
            spurious_frees_thread_exit: 0,
            spurious_frees_first_free: 0,
            capabilities: Capabilities {
                probed: Entry::ALL.to_vec(),
                frame_check: true,
                realloc_returns: true,
                trim_returns: true,
                heap_state: true,
                resident: true,
                limits: Vec::new(),
            },
            depth: Depth::Calls,
            depth_automatic: false,
            depths: DepthTimes {
                calls_ns: 2_140_000_000,
                ..DepthTimes::default()
            },
            calls_fraction: 1.0,
            syscalls_fraction: 1.0,
            windows: 1,
            estimates: None,
            owners_told: true,
            not_seen: Vec::new(),
        },
        calls: Some(
            Entry::ALL
                .iter()
                .map(|entry| {
                    let calls = match entry {
                        Entry::Malloc => 10_002,
                        Entry::Free => 10_000,
                        Entry::MallocTrim => 1,
                        _ => 0,
                    };
                    (entry.name().to_owned(), calls)
                })
                .collect(),
        ),
        allocated: Some(Allocated {
            blocks: 10_002,
            requested_bytes: 640_320,
            failed: 0,
            failed_inferred: 0,
            by_entry: BTreeMap::from([(
                "malloc".to_owned(),
                BlocksBytes {
                    blocks: 10_002,
                    bytes: 640_320,
                },
            )]),
            sizes: vec![0, 0, 0, 0, 0, 0, 10_001, 0, 0, 1],
        }),
        freed: Some(Freed {
            blocks: 10_000,
            chunk_bytes: 800_000,
            from_before: 0,
            null: 0,
            mapped_blocks: 0,
            mapped_bytes: 0,
            sizes: vec![0, 0, 0, 0, 0, 0, 10_000],
        }),
        live_blocks: Some(2),
        threads: ThreadsSection::default(),
        realloc: Some(Realloc::default()),
        syscalls: SyscallKind::ALL
            .iter()
            .map(|kind| {
                let count = match kind {
                    SyscallKind::Brk => SyscallCount {
                        count: 9,
                        failed: 0,
                        attributed: 8,
                        direct: 1,
                        unknown: 0,
                    },
                    SyscallKind::Mmap => SyscallCount {
                        count: 8,
                        failed: 1,
                        attributed: 0,
                        direct: 8,
                        unknown: 0,
                    },
                    _ => SyscallCount::default(),
                };
                (kind.name().to_owned(), count)
            })
            .collect(),
        growth: Growth {
            brk_steps_total: 6,
            brk_steps_matching: 6,
            brk_steps_unpredicted: 0,
            brk_bytes: 6 * step,
            histogram: vec![StepBucket {
                kind: StepKind::Brk,
                bytes: step,
                count: 6,
                matching: 6,
            }],
            steps: (0..6).map(|i| brk_step(i, step)).collect(),
            ..Growth::default()
        },
        returned: Returned {
            frees_munmap_chunk_bytes: Some(0),
            frees_trim_chunk_bytes: Some(0),
            frees_nothing: Some(10_000),
            frees_nothing_chunk_bytes: Some(800_000),
            by_trim_bytes: 788 * KIB,
            ..Returned::default()
        },
        trims: vec![TrimReport {
            time_ns: BEGIN + 2_000_000_000,
            end_ns: Some(BEGIN + 2_001_000_000),
            tid: 4242,
            pad: 0,
            before: TrimSide {
                break_end: Some(HEAP + 6 * step),
                resident_bytes: Some(2_100_000),
            },
            after: Some(TrimSide {
                break_end: Some(HEAP + 4 * KIB),
                resident_bytes: Some(1_400_000),
            }),
            returned_bytes: 788 * KIB,
            break_lowered_bytes: 788 * KIB,
            madvised_bytes: 0,
            madvise_calls: 0,
            unmapped_bytes: 0,
            result: Some(1),
        }],
        trims_omitted: 0,
        threshold: ThresholdSection {
            history: vec![ThresholdChange {
                time_ns: BEGIN,
                mmap_threshold: 128 * KIB,
                trim_threshold: 128 * KIB,
                cause: "at the start".into(),
                confirmed: true,
            }],
            history_omitted: 0,
            requests_as_predicted: 0,
            requests_otherwise: 0,
            agrees_with_process: Some(true),
            dynamic: Some(true),
            top_pad: Some(128 * KIB),
        },
        direct: vec![DirectGroup {
            kind: DirectKind::Loader,
            module: None,
            syscalls: BTreeMap::from([("brk".to_owned(), 1), ("mmap".to_owned(), 8)]),
            net_bytes: 2_240 * 1024,
        }],
        findings: vec![Finding {
            kind: "break_steps_confirmed".into(),
            text: "all 6 steps of the break are as glibc's rule predicts".into(),
            confidence: Confidence::Proven,
            because: None,
        }],
        looks: LooksSection {
            begin: None,
            end: None,
            no_end: Some("the process has ended, and its books have gone with its memory".into()),
        },
        cost: Some(CostSection {
            hits: 20_003,
            hit_ns: Some(612.4),
            trace_ns: 12_250_000,
            cpu_ns: 40_000_000,
            share: Some(0.306),
            max_share: None,
            attach_ns: 21_000_000,
            detach_ns: 104_000_000,
            pause_ns: Some(180_000),
            syscall_ns: Some(61.3),
            syscalls_ns: Some(700_000),
        }),
    }
}

/// Of a heap that holds 10,000 blocks, or `freed` of them no longer.
fn look(time_ns: u64, freed: u64) -> TimedLook {
    let (retained, resident) = (freed * 80, 1_400_000);
    TimedLook {
        time_ns,
        look: LookSummary {
            torn: freed > 0,
            resident: Some(ResidentSummary {
                total: resident,
                live: 800_000 - retained,
                retained,
                allocator_overhead: 8192,
                file: 500_000,
                shared: 0,
                stacks: 12_288,
                other_anon: resident - 800_000 - 8192 - 500_000 - 12_288,
            }),
            heap: Some(HeapSummary {
                live_blocks: 10_000 - freed,
                live_bytes: 800_000 - retained,
                free_bytes: retained,
                cached_bytes: 0,
            }),
            heap_unknown: None,
            thresholds: Some(Thresholds {
                mmap_threshold: 128 * KIB,
                trim_threshold: 128 * KIB,
                top_pad: 128 * KIB,
                dynamic: Some(true),
            }),
            trim_would_return_bytes: Some(retained),
            verdict: Some(VerdictSummary {
                kind: VerdictKind::Retention,
                text: "malloc keeps what was freed, since a live block lies above it".into(),
                confidence: Confidence::Proven,
                causes: vec![CauseSummary {
                    kind: CauseKind::TopPinnedLive,
                    bytes: retained,
                    overlaps: false,
                }],
            }),
        },
    }
}

fn brk_step(i: u64, step: u64) -> Step {
    Step {
        time_ns: BEGIN + i * 1_000_000,
        tid: 4242,
        kind: StepKind::Brk,
        from: HEAP + i * step,
        to: HEAP + (i + 1) * step,
        bytes: step,
        predicted_bytes: Some(step),
        reason: None,
        arena: None,
        cause: Cause {
            entry: "malloc".into(),
            request: 64,
            attribution: "proven".into(),
            request_known: true,
        },
        batch: Some(Batch {
            blocks: if i == 0 { 0 } else { 1681 },
            requested_bytes: if i == 0 { 0 } else { 1681 * 64 },
            first: i == 0,
            scope: BatchScope::Process,
        }),
    }
}

/// The same process with everything that can go wrong or look different.
pub fn troubled() -> Report {
    let mut report = brk_steps();
    report.target.name = "evil\x1b[2J".into();
    report.target.from_birth = false;
    report.target.exit_status = Some(11);
    report.coverage.lost_events = 3;
    report.coverage.oddities.insert("time_went_back".into(), 2);
    report.coverage.spurious_frees_thread_exit = 7;
    report.coverage.not_seen.extend([
        "3 records were lost since the ring buffer was full".into(),
        "blocks allocated before the attach".into(),
        "realloc's result: no return probe on this kernel".into(),
    ]);
    report.growth.steps = (0..40).map(|i| brk_step(i, 132 * KIB)).collect();
    if let Some(step) = report.growth.steps.get_mut(20) {
        step.bytes = 136 * KIB;
        step.reason = Some("the program moved the break itself".into());
    }
    report.growth.brk_steps_total = 40;
    report.growth.brk_steps_matching = 39;
    report.growth.brk_bytes = 40 * 132 * KIB + 4 * KIB;
    report.growth.histogram = vec![
        StepBucket {
            kind: StepKind::Brk,
            bytes: 132 * KIB,
            count: 39,
            matching: 39,
        },
        StepBucket {
            kind: StepKind::Brk,
            bytes: 136 * KIB,
            count: 1,
            matching: 0,
        },
    ];
    report.threshold.history.push(ThresholdChange {
        time_ns: BEGIN + 1_500_000_000,
        mmap_threshold: 2_101_248,
        trim_threshold: 4_202_496,
        cause: "free of a mapped block of 2,101,248 bytes".into(),
        confirmed: true,
    });
    report.looks = LooksSection {
        begin: Some(look(BEGIN, 0)),
        end: Some(look(BEGIN + 2_000_000_000, 9_000)),
        no_end: None,
    };
    report.threshold.requests_as_predicted = 4;
    report.returned.frees_munmap = 1;
    report.returned.by_free_munmap_bytes = 2052 * KIB;
    report.returned.frees_nothing = None;
    report.returned.frees_munmap_chunk_bytes = None;
    // Calls were counted in windows alone.
    report.live_blocks = None;
    report.coverage.depth = Depth::SlowPath;
    report.coverage.depth_automatic = true;
    report.coverage.depths = DepthTimes {
        calls_ns: 214_000_000,
        slow_path_ns: 1_926_000_000,
        syscalls_ns: 0,
        nothing_ns: 0,
    };
    report.coverage.calls_fraction = 0.1;
    report.coverage.windows = 4;
    let estimate = |value, standard_error| Estimate { value, standard_error };
    report.coverage.estimates = Some(Estimates {
        allocated_blocks: estimate(100_020.0, Some(1_234.5)),
        allocated_bytes: estimate(6_403_200.0, Some(79_008.0)),
        freed_blocks: estimate(100_000.0, None),
        lower_bound: false,
    });
    if let Some(step) = report.growth.steps.get_mut(2) {
        step.batch = None;
        step.cause.request_known = false;
    }
    if let Some(cost) = &mut report.cost {
        cost.max_share = Some(0.05);
    }
    report
}

/// A trace that counts no call.
pub fn syscalls_only() -> Report {
    let mut report = brk_steps();
    report.coverage.depth = Depth::Syscalls;
    report.coverage.depths = DepthTimes {
        syscalls_ns: 2_140_000_000,
        ..DepthTimes::default()
    };
    report.coverage.calls_fraction = 0.0;
    report.coverage.windows = 0;
    report.coverage.capabilities.probed.clear();
    (report.calls, report.allocated, report.freed, report.live_blocks) = (None, None, None, None);
    (report.realloc, report.cost) = (None, None);
    report.returned.frees_nothing = None;
    report.returned.frees_nothing_chunk_bytes = None;
    for step in &mut report.growth.steps {
        step.batch = None;
        step.predicted_bytes = None;
        step.reason = Some("what was asked for is not known at this depth".into());
        step.cause.request = 0;
        step.cause.request_known = false;
        step.cause.attribution = "entry only".into();
    }
    report.growth.brk_steps_matching = 0;
    report.growth.brk_steps_unpredicted = 6;
    report.findings.clear();
    report
}
