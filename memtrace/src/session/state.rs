//! The maps' values, from and to plain values.

use memtrace_analysis::event::{Capabilities, Depth, Entry, Realloc, Totals};
use memtrace_common::{
    Counters, Hook, LibcFacts, ProcessState, SPURIOUS_SITES, ThreadState, active, depth, entry, exit_check, source,
    syscall, untouched,
};

use crate::probe::{self, ProbePlan};

use super::attach::{Site, Source};

/// As aya wants it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RawProcess(pub ProcessState);

// SAFETY: integers and arrays of them only, padding spelled out.
unsafe impl aya::Pod for RawProcess {}

#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RawCounters(pub Counters);

// SAFETY: as above.
unsafe impl aya::Pod for RawCounters {}

#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RawThread(pub ThreadState);

// SAFETY: as above.
unsafe impl aya::Pod for RawThread {}

/// The ABI's number of an entry point.
pub const fn entry_number(entry: Entry) -> u8 {
    match entry {
        Entry::Malloc => entry::MALLOC,
        Entry::Calloc => entry::CALLOC,
        Entry::Realloc => entry::REALLOC,
        Entry::Memalign => entry::MEMALIGN,
        Entry::AlignedAlloc => entry::ALIGNED_ALLOC,
        Entry::PosixMemalign => entry::POSIX_MEMALIGN,
        Entry::Valloc => entry::VALLOC,
        Entry::Pvalloc => entry::PVALLOC,
        Entry::Free => entry::FREE,
        Entry::MallocTrim => entry::MALLOC_TRIM,
    }
}

/// The ABI's number of a depth.
pub const fn depth_number(watched: Depth) -> u32 {
    match watched {
        Depth::Calls => depth::CALLS,
        Depth::SlowPath => depth::SLOW_PATH,
        Depth::Syscalls => depth::SYSCALLS,
        Depth::Nothing => depth::NOTHING,
    }
}

/// The ABI's number of a source.
pub const fn source_number(source: Source) -> u32 {
    match source {
        Source::Tracepoints => source::TRACEPOINTS,
        Source::EveryCall => source::EVERY_CALL,
        Source::None => source::NONE,
    }
}

pub fn entry_of(number: u8) -> Option<Entry> {
    Entry::ALL.into_iter().find(|&entry| entry_number(entry) == number)
}

pub fn new_process(pid: u32) -> ProcessState {
    ProcessState {
        libc: LibcFacts::NONE,
        libc_base: 0,
        pid,
        follow: 0,
        active: active::NOT_YET,
        untouched: untouched::ALL,
        depth: depth::CALLS,
        epoch: 0,
        source: source::TRACEPOINTS,
        pause: 0,
    }
}

/// What the kernel side has to know of a libc whose probes are at `sites`, and at `thread_exits` where these are known.
pub fn libc_facts(plan: &ProbePlan, sites: &[Site], thread_exits: Option<&[u64]>) -> LibcFacts {
    let mut facts = LibcFacts::NONE;
    for site in sites {
        let number = usize::from(entry_number(site.entry));
        facts.site[number] = site.address;
        facts.stack_moved[number] = site.stack_moved;
        facts.first_argument[number] = site.first_argument;
    }
    (facts.text_start, facts.text_end) = plan.text;
    facts.main_arena = plan.main_arena.unwrap_or(0);
    facts.mp = plan.mp.unwrap_or(0);
    facts.top_offset = plan.top_offset.unwrap_or(0);
    if let Ok(slow) = &plan.slow_path {
        facts.slow_site = slow.function + slow.offset;
        facts.slow_stack_moved = slow.stack_moved.into();
    }
    facts.first_free_twice = u32::from(plan.first_free_twice);
    facts.huge_page_offset = plan.huge_page_offset.unwrap_or(0);
    if let Some(hooks) = plan.hooks {
        facts.hooks = hooks.map(|probe::Hook { variable, function }| Hook { variable, function });
    }
    facts.exit_check = match thread_exits {
        _ if plan.spurious_free_returns.is_empty() => exit_check::NEVER,
        Some(_) => exit_check::EXITING,
        None => exit_check::ALWAYS,
    };
    for (kept, &address) in facts.spurious_free_returns.iter_mut().zip(&plan.spurious_free_returns) {
        *kept = address;
    }
    facts
}

/// Notes which returns are seen, and in words what is not.
pub fn returns_seen(capabilities: &mut Capabilities, plan: &ProbePlan, sites: &[Site]) {
    let seen = |entry| sites.iter().any(|site| site.entry == entry && site.with_return);
    capabilities.realloc_returns = seen(Entry::Realloc);
    capabilities.trim_returns = seen(Entry::MallocTrim);
    if !capabilities.realloc_returns {
        capabilities.limits.push(String::from(
            "returns of realloc and malloc_trim are not seen, since on this kernel a return probe could kill a process with a seccomp filter",
        ));
    }
    if plan.spurious_free_returns.len() > SPURIOUS_SITES {
        capabilities.limits.push(String::from(
            "libc frees thread caches from more places than can be told apart: some of its own frees are counted",
        ));
    }
}

/// Adds one shard's counters to the others', as the kernel side adds: bytes asked for in vain can come to more than a word
/// holds, and are taken off again once it is known that they were.
pub fn add(sum: &mut Counters, shard: &Counters) {
    // In full, so that a new counter must be thought about.
    let Counters {
        blocks,
        bytes,
        failed,
        free_null,
        freed_mapped_blocks,
        freed_mapped_bytes,
        freed_non_main_blocks,
        free_unreadable,
        second_hits,
        second_hits_memalign,
        spurious_thread_exit,
        spurious_first_free,
        realloc_zero,
        realloc_zero_bytes,
        realloc_resized,
        realloc_in_place,
        realloc_moved,
        realloc_failed,
        realloc_returns,
        realloc_grown,
        realloc_shrunk,
        realloc_mapped,
        trims,
        uncounted,
        syscalls,
        syscalls_failed,
        lost_records,
        lost_threads,
        all_syscalls,
        request_sizes,
        freed_sizes,
    } = sum;
    add_table(blocks, &shard.blocks);
    add_table(bytes, &shard.bytes);
    add_table(failed, &shard.failed);
    *free_null = free_null.wrapping_add(shard.free_null);
    *freed_mapped_blocks = freed_mapped_blocks.wrapping_add(shard.freed_mapped_blocks);
    *freed_mapped_bytes = freed_mapped_bytes.wrapping_add(shard.freed_mapped_bytes);
    *freed_non_main_blocks = freed_non_main_blocks.wrapping_add(shard.freed_non_main_blocks);
    *free_unreadable = free_unreadable.wrapping_add(shard.free_unreadable);
    *second_hits = second_hits.wrapping_add(shard.second_hits);
    *second_hits_memalign = second_hits_memalign.wrapping_add(shard.second_hits_memalign);
    *spurious_thread_exit = spurious_thread_exit.wrapping_add(shard.spurious_thread_exit);
    *spurious_first_free = spurious_first_free.wrapping_add(shard.spurious_first_free);
    *realloc_zero = realloc_zero.wrapping_add(shard.realloc_zero);
    *realloc_zero_bytes = realloc_zero_bytes.wrapping_add(shard.realloc_zero_bytes);
    *realloc_resized = realloc_resized.wrapping_add(shard.realloc_resized);
    *realloc_in_place = realloc_in_place.wrapping_add(shard.realloc_in_place);
    *realloc_moved = realloc_moved.wrapping_add(shard.realloc_moved);
    *realloc_failed = realloc_failed.wrapping_add(shard.realloc_failed);
    *realloc_returns = realloc_returns.wrapping_add(shard.realloc_returns);
    *realloc_grown = realloc_grown.wrapping_add(shard.realloc_grown);
    *realloc_shrunk = realloc_shrunk.wrapping_add(shard.realloc_shrunk);
    *realloc_mapped = realloc_mapped.wrapping_add(shard.realloc_mapped);
    *trims = trims.wrapping_add(shard.trims);
    *uncounted = uncounted.wrapping_add(shard.uncounted);
    add_table(syscalls, &shard.syscalls);
    add_table(syscalls_failed, &shard.syscalls_failed);
    *lost_records = lost_records.wrapping_add(shard.lost_records);
    *lost_threads = lost_threads.wrapping_add(shard.lost_threads);
    *all_syscalls = all_syscalls.wrapping_add(shard.all_syscalls);
    add_table(request_sizes, &shard.request_sizes);
    add_table(freed_sizes, &shard.freed_sizes);
}

fn add_table(sum: &mut [u64], shard: &[u64]) {
    for (sum, shard) in sum.iter_mut().zip(shard) {
        *sum = sum.wrapping_add(*shard);
    }
}

/// What the counters of all shards say.
pub fn totals(counters: &Counters) -> Totals {
    let &Counters {
        blocks,
        bytes,
        failed,
        free_null,
        freed_mapped_blocks,
        freed_mapped_bytes,
        freed_non_main_blocks,
        free_unreadable,
        second_hits,
        second_hits_memalign,
        spurious_thread_exit,
        spurious_first_free,
        realloc_zero,
        realloc_zero_bytes,
        realloc_resized,
        realloc_in_place,
        realloc_moved,
        realloc_failed,
        realloc_returns,
        realloc_grown,
        realloc_shrunk,
        realloc_mapped,
        trims,
        uncounted,
        syscalls,
        syscalls_failed,
        lost_records,
        lost_threads,
        // Of the time in which they were counted, and so no total.
        all_syscalls: _,
        request_sizes,
        freed_sizes,
    } = counters;
    let free = usize::from(entry::FREE);
    let giving = |table: &[u64; entry::COUNT]| {
        table
            .iter()
            .fold(0_u64, |sum, n| sum.wrapping_add(*n))
            .wrapping_sub(table[free])
    };
    let mut calls: [u64; entry::COUNT] = std::array::from_fn(|number| blocks[number] + failed[number]);
    calls[free] += free_null;
    calls[usize::from(entry::REALLOC)] += realloc_zero + realloc_resized;
    calls[usize::from(entry::MALLOC_TRIM)] = trims;
    let ignored = second_hits + second_hits_memalign + spurious_thread_exit + spurious_first_free;
    Totals {
        calls: by_entry(&calls),
        blocks: by_entry(&blocks),
        bytes: by_entry(&bytes),
        failed: by_entry(&failed),
        allocated_blocks: giving(&blocks),
        allocated_bytes: giving(&bytes),
        freed_blocks: blocks[free] + realloc_zero,
        freed_bytes: bytes[free] + realloc_zero_bytes,
        free_null,
        freed_mapped_blocks,
        freed_mapped_bytes,
        freed_non_main_blocks,
        free_unreadable,
        second_hits,
        second_hits_memalign,
        spurious_thread_exit,
        spurious_first_free,
        realloc: Realloc {
            null: blocks[usize::from(entry::REALLOC)],
            zero: realloc_zero,
            returns: realloc_returns,
            in_place: realloc_in_place,
            moved: realloc_moved,
            failed: realloc_failed,
            grown: realloc_grown,
            shrunk: realloc_shrunk,
            mapped: realloc_mapped,
        },
        syscalls: by_call(&syscalls),
        syscalls_failed: by_call(&syscalls_failed),
        lost_records,
        lost_threads,
        hits: calls.iter().sum::<u64>() + ignored + realloc_returns + uncounted,
        request_sizes: request_sizes.to_vec(),
        freed_sizes: freed_sizes.to_vec(),
    }
}

fn by_entry(table: &[u64; entry::COUNT]) -> [u64; 10] {
    Entry::ALL.map(|entry| table[usize::from(entry_number(entry))])
}

/// The ABI's order is that of `SyscallKind::ALL`.
fn by_call(table: &[u64; syscall::COUNT]) -> [u64; 6] {
    *table
}
