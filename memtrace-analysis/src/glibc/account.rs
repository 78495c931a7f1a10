//! Every resident byte of a process once: what malloc's books explain by chunks, the rest by mapping.
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "sums of amounts that lie in the address space of one process, and differences of what was compared before"
    )
)]

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::heap::{Heap, State};
use super::look::{Part, PartKind, Resident, Retained};
use super::mapping::Mapping;
use super::residency::Residency;
use super::tally::ArenaTally;

/// What is known of a process besides its heap.
pub struct Surroundings<'a> {
    pub mappings: &'a [Mapping],
    pub residency: &'a Residency,
    /// Of threads that were not running, where their stack stood.
    pub stack_pointers: &'a [u64],
    /// The program's file, as the mappings name it.
    pub program: &'a str,
}

/// Guard areas below thread stacks are small; the reserved rest of a thread arena, which looks alike, is not.
const MOST_GUARD: u64 = 1 << 20;

pub fn account(around: &Surroundings<'_>, heap: Option<(&Heap, &[ArenaTally])>) -> Resident {
    let mut resident = Resident::default();
    let owned = heap.map(|(heap, _)| owned_ranges(heap)).unwrap_or_default();
    if let Some((heap, tallies)) = heap {
        add_heap(&mut resident, heap, tallies, around.residency);
    }
    let mut parts: BTreeMap<(PartKind, Option<String>), (u64, u64)> = BTreeMap::new();
    let mut add = |kind, name: Option<&str>, bytes: u64| {
        if bytes > 0 {
            let entry = parts.entry((kind, name.map(ToString::to_string))).or_default();
            entry.0 += bytes;
            entry.1 += 1;
        }
    };
    let mut surplus = 0;
    for (index, mapping) in around.mappings.iter().enumerate() {
        resident.total += mapping.resident;
        resident.swapped += mapping.swapped;
        resident.lazily_freed += mapping.lazily_freed;
        resident.huge += mapping.huge;
        resident.hugetlb += mapping.hugetlb;
        let mut rest = mapping.resident;
        for &(start, end, known) in owned_in(&owned, mapping) {
            let present = around.residency.present(start.max(mapping.start), end.min(mapping.end));
            if known {
                // Pages of zeros that were only read are present, but no page of the process.
                surplus += present.saturating_sub(rest);
                rest = rest.saturating_sub(present);
            } else {
                let unread = present.min(rest);
                add(PartKind::UnreadHeap, None, unread);
                resident.heap_unknown += unread;
                rest -= unread;
            }
        }
        let name = Some(mapping.path.as_str()).filter(|path| !path.is_empty());
        let anonymous = rest.min(mapping.anonymous);
        match kind_of(around, index, !owned.is_empty()) {
            PartKind::CodeFile => {
                add(PartKind::CodeFile, name, rest - anonymous);
                add(PartKind::StaticData, name, anonymous);
            }
            PartKind::DataFile => {
                add(PartKind::DataFile, name, rest - anonymous);
                add(PartKind::OwnMapping, name, anonymous);
            }
            kind @ (PartKind::Shared | PartKind::StaticData | PartKind::Kernel) => add(kind, name, rest),
            kind @ (PartKind::MainStack
            | PartKind::ThreadStack
            | PartKind::Break
            | PartKind::UnreadHeap
            | PartKind::OwnMapping) => add(kind, name.filter(|name| name.starts_with("[anon")), rest),
        }
    }
    for ((kind, _), (bytes, _)) in &parts {
        *match kind {
            PartKind::CodeFile | PartKind::DataFile => &mut resident.file,
            PartKind::Shared => &mut resident.shared,
            PartKind::MainStack | PartKind::ThreadStack => &mut resident.stacks,
            PartKind::StaticData | PartKind::Break | PartKind::UnreadHeap | PartKind::OwnMapping | PartKind::Kernel => {
                &mut resident.other_anon
            }
        } += bytes;
    }
    for part in [
        &mut resident.live,
        &mut resident.retained,
        &mut resident.allocator_overhead,
    ] {
        let cut = surplus.min(*part);
        *part -= cut;
        surplus -= cut;
    }
    resident.parts = parts
        .into_iter()
        .map(|((kind, name), (bytes, mappings))| Part {
            kind,
            name,
            bytes,
            mappings,
        })
        .collect();
    resident.parts.sort_by_key(|part| core::cmp::Reverse(part.bytes));
    settle(&mut resident);
    resident
}

/// The mappings' figures and the pages' states are of two moments in a process that runs on: the parts are made to add
/// up, with what is left over or missing at the malloc's own figures.
fn settle(resident: &mut Resident) {
    let sum = resident.sum();
    resident.other_anon += resident.total.saturating_sub(sum);
    let mut excess = sum.saturating_sub(resident.total);
    for part in [&mut resident.live, &mut resident.retained, &mut resident.other_anon] {
        let cut = excess.min(*part);
        *part -= cut;
        excess -= cut;
    }
}

fn add_heap(resident: &mut Resident, heap: &Heap, tallies: &[ArenaTally], residency: &Residency) {
    let mut retained = Retained::default();
    for tally in tallies {
        let headers = share(tally.live.blocks * 8, tally.live.resident_bytes, tally.live.bytes);
        resident.live += tally.live.resident_bytes - headers;
        resident.allocator_overhead += headers + tally.overhead.resident_bytes;
        retained.top += tally.top.resident_bytes;
        retained.bins += tally.free.resident_bytes;
        retained.fastbins += tally.fast.resident_bytes;
        retained.thread_caches += tally.cached.resident_bytes;
        retained.trimmable += tally.trim;
        retained.kept += tally.whole.saturating_sub(tally.trim);
    }
    for block in &heap.mapped {
        let bytes = residency.present(block.start, block.end);
        match heap.mapped_state(block) {
            State::Own => resident.allocator_overhead += bytes,
            State::Cached => {
                retained.thread_caches += bytes;
                retained.kept += bytes;
            }
            _ => {
                resident.live += bytes;
                resident.live_mapped += bytes;
            }
        }
    }
    resident.retained = retained.top + retained.bins + retained.fastbins + retained.thread_caches;
    retained.pinned = resident.retained.saturating_sub(retained.trimmable + retained.kept);
    resident.retained_parts = retained;
}

/// `amount` x `part` / `whole`
fn share(amount: u64, part: u64, whole: u64) -> u64 {
    if whole == 0 {
        0
    } else {
        (u128::from(amount) * u128::from(part) / u128::from(whole)) as u64
    }
}

/// Ranges that belong to malloc, in order; false for those whose chunks could not be followed.
fn owned_ranges(heap: &Heap) -> Vec<(u64, u64, bool)> {
    let mut ranges = Vec::new();
    for arena in &heap.arenas {
        for stretch in &arena.stretches {
            let mut from = stretch.begin;
            // What others took from the break in between is not malloc's.
            for (chunk, _) in heap
                .stretch_chunks(arena, stretch)
                .filter(|(_, state)| *state == State::Foreign)
            {
                ranges.push((from, chunk.address, true));
                from = chunk.end();
            }
            ranges.push((from, stretch.walked, true));
            ranges.push((stretch.walked, stretch.end, false));
            if stretch.below_top {
                let known = stretch.walked == stretch.end;
                ranges.push((arena.books.top, arena.books.top_end(), known));
            }
        }
    }
    ranges.extend(heap.mapped.iter().map(|block| (block.start, block.end, true)));
    ranges.retain(|(start, end, _)| start < end);
    ranges.sort_unstable();
    // A damaged heap's ranges may overlap; no byte may count twice.
    let mut floor = 0;
    for range in &mut ranges {
        range.0 = range.0.max(floor);
        floor = floor.max(range.1);
    }
    ranges.retain(|(start, end, _)| start < end);
    ranges
}

fn owned_in<'a>(owned: &'a [(u64, u64, bool)], mapping: &Mapping) -> &'a [(u64, u64, bool)] {
    let first = owned.partition_point(|(_, end, _)| *end <= mapping.start);
    let last = owned.partition_point(|(start, _, _)| *start < mapping.end);
    owned.get(first..last).unwrap_or(&[])
}

/// What the part of a mapping is that malloc does not explain.
fn kind_of(around: &Surroundings<'_>, index: usize, heap_known: bool) -> PartKind {
    let mapping = &around.mappings[index];
    let path = mapping.path.as_str();
    let previous = index.checked_sub(1).and_then(|index| around.mappings.get(index));
    if path == "[stack]" || path.starts_with("[stack:") {
        return PartKind::MainStack;
    }
    if path == "[heap]" {
        return if heap_known {
            PartKind::Break
        } else {
            PartKind::UnreadHeap
        };
    }
    if is_shared_memory(path) || mapping.shared && mapping.inode == 0 {
        return PartKind::Shared;
    }
    if path.starts_with('[') && !path.starts_with("[anon") {
        return PartKind::Kernel;
    }
    if mapping.inode != 0 {
        let module = |other: &Mapping| other.executable && other.path == mapping.path;
        let code = path == around.program || around.mappings.iter().any(module);
        return if code { PartKind::CodeFile } else { PartKind::DataFile };
    }
    // Zeroed variables lie right behind a module's writable data.
    if let Some(previous) = previous
        && path.is_empty()
        && previous.end == mapping.start
        && previous.inode != 0
        && previous.writable
        && around
            .mappings
            .iter()
            .any(|other| other.executable && other.path == previous.path)
    {
        return PartKind::StaticData;
    }
    let guarded = previous.is_some_and(|guard| {
        guard.end == mapping.start
            && !guard.readable
            && !guard.writable
            && guard.inode == 0
            && guard.end - guard.start <= MOST_GUARD
    });
    let in_use = around.stack_pointers.iter().any(|pointer| mapping.holds(*pointer));
    if mapping.is_anonymous() && (in_use || guarded && !mapping.executable) {
        return PartKind::ThreadStack;
    }
    PartKind::OwnMapping
}

fn is_shared_memory(path: &str) -> bool {
    ["/memfd:", "/SYSV", "/dev/shm/", "/dev/zero", "[anon_shmem"]
        .iter()
        .any(|prefix| path.starts_with(prefix))
}
