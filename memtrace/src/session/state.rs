//! The maps' values, from and to plain values.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use memtrace_analysis::event::{Capabilities, Entry, Realloc, Totals};
use memtrace_common::{
    Counters, LibcFacts, ProcessState, SPURIOUS_SITES, ThreadState, active, entry, exit_check, syscall, untouched,
};

use crate::probe::ProbePlan;

use super::attach::Site;

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
pub struct RawThread(ThreadState);

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
        untouched: 0,
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
    facts.first_free_twice = u32::from(plan.first_free_twice);
    facts.hooks = u32::from(plan.hooks.is_some());
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

/// Which first calls of a running process are still to come: those whose hook is set. Bits of `memtrace_common::untouched`.
pub fn untouched(pid: u32, base: u64, hooks: [u64; 2]) -> Result<u32> {
    let path = format!("/proc/{pid}/mem");
    let memory = File::open(&path).with_context(|| format!("opening {path}"))?;
    let mut bits = 0;
    for (hook, bit) in hooks.into_iter().zip([untouched::MALLOC, untouched::REALLOC]) {
        let mut word = [0; 8];
        memory
            .read_exact_at(&mut word, base.wrapping_add(hook))
            .with_context(|| format!("reading malloc's hooks of process {pid}"))?;
        if u64::from_ne_bytes(word) != 0 {
            bits |= bit;
        }
    }
    Ok(bits)
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

/// Adds one shard's counters to the others'.
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
        syscalls,
        syscalls_failed,
        lost_records,
        lost_threads,
        request_sizes,
        freed_sizes,
    } = sum;
    add_table(blocks, &shard.blocks);
    add_table(bytes, &shard.bytes);
    add_table(failed, &shard.failed);
    *free_null += shard.free_null;
    *freed_mapped_blocks += shard.freed_mapped_blocks;
    *freed_mapped_bytes += shard.freed_mapped_bytes;
    *freed_non_main_blocks += shard.freed_non_main_blocks;
    *free_unreadable += shard.free_unreadable;
    *second_hits += shard.second_hits;
    *second_hits_memalign += shard.second_hits_memalign;
    *spurious_thread_exit += shard.spurious_thread_exit;
    *spurious_first_free += shard.spurious_first_free;
    *realloc_zero += shard.realloc_zero;
    *realloc_zero_bytes += shard.realloc_zero_bytes;
    *realloc_resized += shard.realloc_resized;
    *realloc_in_place += shard.realloc_in_place;
    *realloc_moved += shard.realloc_moved;
    *realloc_failed += shard.realloc_failed;
    *realloc_returns += shard.realloc_returns;
    *realloc_grown += shard.realloc_grown;
    *realloc_shrunk += shard.realloc_shrunk;
    *realloc_mapped += shard.realloc_mapped;
    *trims += shard.trims;
    add_table(syscalls, &shard.syscalls);
    add_table(syscalls_failed, &shard.syscalls_failed);
    *lost_records += shard.lost_records;
    *lost_threads += shard.lost_threads;
    add_table(request_sizes, &shard.request_sizes);
    add_table(freed_sizes, &shard.freed_sizes);
}

fn add_table(sum: &mut [u64], shard: &[u64]) {
    for (sum, shard) in sum.iter_mut().zip(shard) {
        *sum += shard;
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
        syscalls,
        syscalls_failed,
        lost_records,
        lost_threads,
        request_sizes,
        freed_sizes,
    } = counters;
    let free = usize::from(entry::FREE);
    let giving = |table: &[u64; entry::COUNT]| table.iter().sum::<u64>() - table[free];
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
        hits: calls.iter().sum::<u64>() + ignored,
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
