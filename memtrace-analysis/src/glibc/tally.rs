//! One pass over an arena's chunks: amounts, what a trim would give back, what is in its way, the map.
//!
//! malloc_trim is simulated as glibc does it (malloc.c, mtrim and systrim): fastbins are merged first; then of each
//! free chunk the whole pages behind its first 48 bytes are given back; of the main arena's top the whole pages but the
//! last 33 bytes' one. A thread arena's top is not touched. What comes back is what of these pages is resident.
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        reason = "sums of amounts that lie in the address space of one process, and differences of what was compared before"
    )
)]

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::chunk_log::Chunk;
use super::heap::{Arena, Heap, State};
use super::look::{Amount, Cell, Pin, PinState, Run, SizeCount};
use super::residency::Residency;
use super::verdict::DEFAULT_THRESHOLD;

/// A free chunk's own fields, which a trim leaves alone: sizeof (struct malloc_chunk).
const FIELDS: u64 = 48;
/// What a trim leaves of the top at least: MINSIZE + 1.
const TOP_REST: u64 = 33;
/// Cells of an arena's map.
const CELLS: u64 = 256;
/// The longest free runs that are shown.
const RUNS: usize = 8;
/// Different chunk sizes that are counted exactly.
const SIZES: usize = 1024;

#[derive(Clone, Debug, Default)]
pub struct ArenaTally {
    pub live: Amount,
    /// Thread caches' structures, fenceposts, heap_infos, the arena itself.
    pub overhead: Amount,
    pub cached: Amount,
    pub fast: Amount,
    pub free: Amount,
    pub top: Amount,
    pub foreign: Amount,
    /// Between where the walk stopped and where the chunks should have ended.
    pub unwalked: u64,
    /// Resident bytes that malloc_trim(0) gives back, and of these, those below the top.
    pub trim: u64,
    pub trim_below_top: u64,
    /// The same if nothing were in thread caches.
    pub trim_uncached: u64,
    /// The same without the merging of fastbins.
    pub trim_unmerged: u64,
    /// Resident bytes that lowering the break would give back at the next free: whole pages of the top but top_pad.
    pub top_trim: u64,
    /// By how many resident bytes the top would grow without thread caches: cached chunks and the caches' structures free.
    pub top_gain_uncached: u64,
    /// Resident bytes of whole pages without anything live.
    pub whole: u64,
    pub pin: Option<Pin>,
    pub live_pin: Option<Pin>,
    /// Free runs of a page and more, and the largest ones.
    pub run_count: u64,
    pub runs: Vec<Run>,
    /// Resident bytes, in whole pages below the top, of runs of at least 128 KiB that were not small blocks before.
    pub large_runs: u64,
    pub cell_bytes: u64,
    pub cells: Vec<Cell>,
    pub live_classes: BTreeMap<u32, SizeCount>,
    pub free_classes: BTreeMap<u32, SizeCount>,
}

/// Exact sizes of live chunks, as many as there is room for.
pub type LiveSizes = BTreeMap<u64, SizeCount>;

pub(super) fn count(sizes: &mut LiveSizes, size: u64, blocks: u64, bytes: u64) {
    if sizes.len() < SIZES || sizes.contains_key(&size) {
        let entry = sizes.entry(size).or_default();
        entry.blocks += blocks;
        entry.bytes += bytes;
    }
}

/// Which chunks a run may consist of, and where the one in progress began.
struct Tracker {
    joins: fn(State) -> bool,
    start: Option<u64>,
}

impl Tracker {
    fn new(joins: fn(State) -> bool) -> Self {
        Tracker { joins, start: None }
    }

    /// Takes the next chunk; gives the run that ends before it.
    fn step(&mut self, chunk: &Chunk, state: State) -> Option<(u64, u64)> {
        if (self.joins)(state) {
            self.start.get_or_insert(chunk.address);
            return None;
        }
        self.start.take().map(|start| (start, chunk.address))
    }
}

struct Pass<'a> {
    residency: &'a Residency,
    page: u64,
    tally: ArenaTally,
    /// Where each stretch begins in the map.
    map_offset: u64,
    map_start: u64,
}

/// Goes over one arena.
pub fn tally(heap: &Heap, arena: &Arena, residency: &Residency, sizes: &mut LiveSizes) -> ArenaTally {
    let page = residency.page();
    let length = arena.found_bytes().max(1);
    let cell_bytes = length.div_ceil(CELLS).next_multiple_of(page);
    let (mut highest, mut highest_live) = (None, None);
    let mut pass = Pass {
        residency,
        page,
        tally: ArenaTally::default(),
        map_offset: 0,
        map_start: 0,
    };
    pass.tally.cell_bytes = cell_bytes;
    pass.tally.cells = alloc::vec![Cell::default(); length.div_ceil(cell_bytes) as usize];
    // The stretch that holds the top comes last, so that the map ends with the top.
    let (last, others): (Vec<_>, Vec<_>) = arena.stretches.iter().partition(|stretch| stretch.below_top);
    for stretch in others.into_iter().chain(last) {
        pass.map_start = stretch.begin;
        pass.note_overhead(stretch.begin, stretch.first_chunk);
        let mut bins = Tracker::new(|state| state == State::Free);
        let mut merged = Tracker::new(|state| matches!(state, State::Free | State::Fast));
        let mut uncached = Tracker::new(|state| matches!(state, State::Free | State::Fast | State::Cached));
        let mut cacheless = Tracker::new(|state| !matches!(state, State::Live | State::Fence | State::Foreign));
        for (chunk, state) in heap.stretch_chunks(arena, stretch) {
            pass.note(&chunk, state);
            if state == State::Live {
                count(sizes, chunk.size, 1, chunk.size);
            }
            if let Some((start, end)) = bins.step(&chunk, state) {
                pass.tally.trim_unmerged += pass.chunk_trim(start, end);
            }
            if let Some((start, end)) = merged.step(&chunk, state) {
                pass.close_run(heap, start, end, &chunk, state);
            }
            if let Some((start, end)) = uncached.step(&chunk, state) {
                pass.tally.trim_uncached += pass.chunk_trim(start, end);
                pass.tally.whole += pass.pages(start, end);
            }
            // Only what it is at the end, just below the top, is of interest.
            let _ = cacheless.step(&chunk, state);
            if state.holds() {
                let place = pass.cell_of(chunk.address);
                highest = Some((chunk, state, place));
                if state == State::Live {
                    highest_live = Some((chunk, state, place));
                }
            }
        }
        pass.tally.unwalked += residency.present(stretch.walked, stretch.end);
        let complete = stretch.walked == stretch.end;
        if stretch.below_top && complete {
            pass.close_top(heap, arena, [bins.start, merged.start, uncached.start, cacheless.start]);
            let below = pass.tally.trim_below_top;
            // Without a chunk that is only cached, what lies behind it would join the top too.
            let behind = below.max(pass.tally.top_gain_uncached);
            let pin = |(chunk, state, cell), below| Pin {
                free_below_bytes: below,
                ..Pin::new(chunk, state, cell)
            };
            pass.tally.pin = highest
                .map(|found: (Chunk, State, u64)| pin(found, if found.1 == State::Live { below } else { behind }));
            pass.tally.live_pin = highest_live.map(|found| pin(found, below));
        } else if let Some(start) = uncached.start {
            pass.tally.whole += pass.pages(start, stretch.walked);
        }
        pass.map_offset += stretch.end.saturating_sub(stretch.begin);
    }
    // A pin is one only where there is something to be held back.
    pass.tally.pin = pass.tally.pin.filter(|pin| pin.free_below_bytes >= page);
    pass.tally.live_pin = pass.tally.live_pin.filter(|pin| pin.free_below_bytes >= page);
    pass.tally
}

impl Pass<'_> {
    fn note(&mut self, chunk: &Chunk, state: State) {
        let resident = self.residency.present(chunk.address, chunk.end());
        let tally = &mut self.tally;
        let (amount, share): (_, fn(&mut Cell) -> &mut u64) = match state {
            State::Live => (&mut tally.live, |cell| &mut cell.live),
            State::Own | State::Fence => (&mut tally.overhead, |cell| &mut cell.live),
            State::Cached => (&mut tally.cached, |cell| &mut cell.cached),
            State::Fast => (&mut tally.fast, |cell| &mut cell.fast),
            State::Free => (&mut tally.free, |cell| &mut cell.free),
            State::Foreign => (&mut tally.foreign, |cell| &mut cell.foreign),
        };
        amount.add(chunk.size, resident);
        let class = chunk.size.checked_ilog2().unwrap_or(0);
        let classes = match state {
            State::Live => Some(&mut tally.live_classes),
            State::Free => Some(&mut tally.free_classes),
            _ => None,
        };
        if let Some(classes) = classes {
            let entry = classes.entry(class).or_default();
            entry.blocks += 1;
            entry.bytes += chunk.size;
        }
        self.paint(chunk.address, chunk.end(), share);
    }

    fn note_overhead(&mut self, from: u64, to: u64) {
        if from < to {
            self.tally.overhead.add(to - from, self.residency.present(from, to));
            self.paint(from, to, |cell| &mut cell.live);
        }
    }

    /// Adds a range to the cells it lies in.
    fn paint(&mut self, from: u64, to: u64, share: fn(&mut Cell) -> &mut u64) {
        let cell_bytes = self.tally.cell_bytes;
        let place = |address: u64| address - self.map_start + self.map_offset;
        let (mut at, end) = (place(from), place(to));
        while at < end {
            let cell_end = (at / cell_bytes + 1) * cell_bytes;
            let stop = end.min(cell_end);
            if let Some(cell) = self.tally.cells.get_mut((at / cell_bytes) as usize) {
                *share(cell) += stop - at;
                let address = at - self.map_offset + self.map_start;
                cell.resident += self.residency.present(address, address + (stop - at));
            }
            at = stop;
        }
    }

    /// Resident bytes of the whole pages inside.
    fn pages(&self, from: u64, to: u64) -> u64 {
        self.residency
            .present(from.next_multiple_of(self.page), to & !(self.page - 1))
    }

    /// What a trim gives back of a free chunk.
    fn chunk_trim(&self, start: u64, end: u64) -> u64 {
        if end - start < self.page + FIELDS {
            0
        } else {
            self.pages(start + FIELDS, end)
        }
    }

    /// A free run below the top that ends at `above`.
    fn close_run(&mut self, heap: &Heap, start: u64, end: u64, above: &Chunk, state: State) {
        let trim = self.chunk_trim(start, end);
        self.tally.trim += trim;
        self.tally.trim_below_top += trim;
        if end - start < self.page {
            return;
        }
        self.tally.run_count += 1;
        if end - start >= DEFAULT_THRESHOLD && !heap.was_small(start, end) {
            self.tally.large_runs += trim;
        }
        let run = Run {
            address: start,
            bytes: end - start,
            resident_bytes: trim,
            held_by: above.address + 16,
            held_by_bytes: above.size,
            held_by_state: PinState::of(state),
        };
        let place = self
            .tally
            .runs
            .partition_point(|other| other.resident_bytes >= run.resident_bytes);
        if place < RUNS {
            self.tally.runs.insert(place, run);
            self.tally.runs.truncate(RUNS);
        }
    }

    /// The top, and what joins it: with bins alone, with fastbins merged, with thread caches emptied, without them.
    fn close_top(&mut self, heap: &Heap, arena: &Arena, joins: [Option<u64>; 4]) {
        let books = &arena.books;
        let (top, end) = (books.top, books.top_end());
        self.tally.top.add(books.top_size, self.residency.present(top, end));
        self.paint(top, end, |cell| &mut cell.top);
        let [plain, merged, uncached, cacheless] = joins.map(|start| start.unwrap_or(top));
        self.tally.whole += self.pages(uncached, end);
        let given = |start: u64, pad: u64| {
            let extra = (end - start).saturating_sub(TOP_REST + pad);
            // By pages, or by transparent huge pages where malloc asks for them.
            let extra = extra - extra % heap.settings.transparent_huge_page_bytes.max(self.page);
            self.residency.present(end - extra, end)
        };
        // The break is lowered only where it stands at the top's end: not once it was blocked, or others moved it.
        if books.main && heap.break_end == Some(end.next_multiple_of(self.page)) {
            self.tally.trim += given(merged, 0);
            self.tally.trim_unmerged += given(plain, 0);
            self.tally.trim_uncached += given(uncached, 0);
            self.tally.top_trim = given(top, heap.settings.top_pad);
        }
        self.tally.top_gain_uncached = self.pages(cacheless, top);
    }

    fn cell_of(&self, address: u64) -> u64 {
        (address - self.map_start + self.map_offset) / self.tally.cell_bytes
    }
}

impl Pin {
    fn new(chunk: Chunk, state: State, cell: u64) -> Pin {
        Pin {
            address: chunk.address + 16,
            bytes: chunk.size,
            state: PinState::of(state),
            free_below_bytes: 0,
            cell,
        }
    }
}
