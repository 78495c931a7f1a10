//! A whole heap, read once: every chunk with its state, and everything that did not fit together.
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "offsets of known layouts, added to addresses that were checked to lie in a mapping; places in lists made here"
    )
)]

use alloc::vec::Vec;

use super::books::{ArenaBooks, Settings, read_arenas};
use super::chunk_log::{Chunk, ChunkLog, Use};
use super::former::was_small;
use super::lists::{Cache, Clues, follow_caches, follow_fastbins};
use super::locate::Anatomy;
use super::mapped::{MappedBlock, Search};
use super::mapping::{Mapping, holding};
use super::memory::{ReadMemory, Unreadable};
use super::problem::Problem;
use super::residency::Residency;
use super::verdict::DEFAULT_THRESHOLD;
use super::walk::{Ending, walk};

/// Of each kind of trouble so much is kept; a damaged heap can have millions.
const MOST_PROBLEMS: usize = 64;

/// Who a chunk belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Handed out to the program.
    Live,
    /// A thread cache's own structure.
    Own,
    /// In a thread cache.
    Cached,
    /// In a fastbin.
    Fast,
    /// In a bin.
    Free,
    Fence,
    Foreign,
}

impl State {
    /// The chunk keeps what lies below it from joining the top.
    pub fn holds(self) -> bool {
        !matches!(self, State::Free | State::Fence)
    }
}

/// A run of chunks without a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Where its memory begins: at the first chunk, or at the heap_info before it.
    pub begin: u64,
    pub first_chunk: u64,
    /// Where its chunks should end, and where the walk came to.
    pub end: u64,
    pub walked: u64,
    /// The top chunk follows.
    pub below_top: bool,
    log: ChunkLog,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    pub books: ArenaBooks,
    pub stretches: Vec<Stretch>,
    /// Chunks of its fastbins, in order of addresses.
    fast: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heap {
    pub settings: Settings,
    pub arenas: Vec<Arena>,
    /// Where the range of the break ends.
    pub break_end: Option<u64>,
    pub mapped: Vec<MappedBlock>,
    pub caches: Vec<Cache>,
    /// Chunks in thread caches, in order of addresses; those of mapped blocks too.
    cached: Vec<u64>,
    /// Chunks that hold a thread cache's structure.
    own: Vec<u64>,
    /// Large free chunks that were small blocks before they merged, in order; only where the mmap threshold has risen.
    formerly_small: Vec<u64>,
    pub problems: Vec<Problem>,
    /// Something in the arenas changed during the look, if not what it was about.
    pub ran_on: bool,
}

impl Heap {
    /// `base` is the library's load address. Fails only where not even the settings can be read.
    pub fn read<M: ReadMemory + ?Sized>(
        memory: &M,
        anatomy: &Anatomy,
        base: u64,
        mappings: &[Mapping],
        residency: &Residency,
    ) -> Result<Heap, Unreadable> {
        let settings = Settings::read(memory, anatomy, base)?;
        let mut problems = Vec::new();
        let books = read_arenas(memory, anatomy, base, &settings, &mut problems);
        let mut heap = Heap {
            settings,
            arenas: Vec::new(),
            break_end: break_range(mappings, &settings).map(|(_, end)| end),
            mapped: Vec::new(),
            caches: Vec::new(),
            cached: Vec::new(),
            own: Vec::new(),
            formerly_small: Vec::new(),
            problems,
            ran_on: false,
        };
        let mut reader = Reader {
            memory,
            anatomy,
            mappings,
            residency,
            candidates: Vec::new(),
        };
        let taken = taken(&books, mappings, &settings);
        for books in books {
            let arena = reader.arena(&mut heap, books, &taken);
            heap.arenas.push(arena);
        }
        let from_mapped = heap
            .mapped
            .iter()
            .filter(|block| block.chunk_bytes <= 4096 * 16)
            .map(|block| block.chunk);
        reader.candidates.extend(from_mapped);
        let (caches, cached) = follow_caches(memory, anatomy, &settings, &reader.candidates, &mut heap.problems);
        heap.own = caches
            .iter()
            .map(|cache| cache.chunk)
            .chain(reader.empty_caches(&heap))
            .collect();
        heap.own.sort_unstable();
        heap.own.dedup();
        heap.caches = caches;
        heap.cached = cached;
        heap.formerly_small = heap.find_formerly_small(memory, residency);
        heap.check_lists();
        heap.check_motion(memory);
        heap.problems.sort_unstable();
        heap.problems.dedup();
        heap.problems.truncate(MOST_PROBLEMS);
        Ok(heap)
    }

    /// All chunks of an arena, the top left out, in order within each stretch.
    pub fn chunks<'a>(&'a self, arena: &'a Arena) -> impl Iterator<Item = (Chunk, State)> + 'a {
        arena
            .stretches
            .iter()
            .flat_map(|stretch| self.stretch_chunks(arena, stretch))
    }

    pub fn stretch_chunks<'a>(
        &'a self,
        arena: &'a Arena,
        stretch: &'a Stretch,
    ) -> impl Iterator<Item = (Chunk, State)> + 'a {
        let start = stretch.first_chunk;
        let (mut own, mut cached, mut fast) = (
            Members::from(&self.own, start),
            Members::from(&self.cached, start),
            Members::from(&arena.fast, start),
        );
        stretch.log.iter(start).map(move |chunk| {
            let state = match chunk.usage {
                Use::Free => State::Free,
                Use::Fence => State::Fence,
                Use::Foreign => State::Foreign,
                Use::InUse if own.contains(chunk.address) => State::Own,
                Use::InUse if cached.contains(chunk.address) => State::Cached,
                Use::InUse if fast.contains(chunk.address) => State::Fast,
                Use::InUse => State::Live,
            };
            (chunk, state)
        })
    }

    pub fn mapped_state(&self, block: &MappedBlock) -> State {
        if self.own.binary_search(&block.chunk).is_ok() {
            State::Own
        } else if self.cached.binary_search(&block.chunk).is_ok() {
            State::Cached
        } else {
            State::Live
        }
    }

    /// Whether a run of free chunks has one that consists of what were small blocks.
    pub fn was_small(&self, start: u64, end: u64) -> bool {
        let first = self.formerly_small.partition_point(|chunk| *chunk < start);
        self.formerly_small.get(first).is_some_and(|chunk| *chunk < end)
    }

    fn find_formerly_small<M: ReadMemory + ?Sized>(&self, memory: &M, residency: &Residency) -> Vec<u64> {
        /// So many of the largest are looked into.
        const MOST: usize = 32;
        if self.settings.mmap_threshold <= DEFAULT_THRESHOLD {
            return Vec::new();
        }
        let chunks = self.arenas.iter().flat_map(|arena| self.chunks(arena));
        let mut large: Vec<Chunk> = chunks
            .filter(|(chunk, state)| *state == State::Free && chunk.size >= DEFAULT_THRESHOLD)
            .map(|(chunk, _)| chunk)
            .collect();
        large.sort_unstable_by_key(|chunk| core::cmp::Reverse(chunk.size));
        large.truncate(MOST);
        let small = large
            .into_iter()
            .filter(|chunk| was_small(memory, residency, chunk.address, chunk.end()));
        let mut small: Vec<u64> = small.map(|chunk| chunk.address).collect();
        small.sort_unstable();
        small
    }

    /// What was read does not fit together, or moved under the reader.
    pub fn is_torn(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Every chunk that a list leads to must be one, and in use by its flags.
    fn check_lists(&mut self) {
        let (mut cached, mut fast) = (0, 0);
        for arena in &self.arenas {
            for (_, state) in self.chunks(arena) {
                cached += usize::from(state == State::Cached);
                fast += usize::from(state == State::Fast);
            }
        }
        cached += self
            .mapped
            .iter()
            .filter(|block| self.mapped_state(block) == State::Cached)
            .count();
        let listed = self.arenas.iter().map(|arena| arena.fast.len()).sum::<usize>();
        if cached == self.cached.len() && fast == listed {
            return;
        }
        let mut missing = Vec::new();
        for arena in &self.arenas {
            let mut strangers = arena.fast.clone();
            remove_known(
                &mut strangers,
                self.chunks(arena).filter(|(_, state)| *state == State::Fast),
            );
            missing.extend(strangers.into_iter().map(|entry| (arena.books.address, entry)));
        }
        let mut strangers = self.cached.clone();
        let in_arenas = self.arenas.iter().flat_map(|arena| self.chunks(arena));
        remove_known(&mut strangers, in_arenas.filter(|(_, state)| *state == State::Cached));
        strangers.retain(|chunk| !self.mapped.iter().any(|block| block.chunk == *chunk));
        missing.extend(strangers.into_iter().map(|entry| (0, entry)));
        self.problems.extend(
            missing
                .into_iter()
                .map(|(head, entry)| Problem::ListEntry { head, entry }),
        );
    }

    fn check_motion<M: ReadMemory + ?Sized>(&mut self, memory: &M) {
        for arena in &self.arenas {
            let books = &arena.books;
            // A list that has changed means blocks that were live at one moment of the look and free at another.
            if books.has_changed(memory) {
                self.ran_on = true;
                self.problems.push(Problem::Moved { arena: books.address });
            }
        }
    }
}

fn remove_known(strangers: &mut Vec<u64>, known: impl Iterator<Item = (Chunk, State)>) {
    let mut known: Vec<u64> = known.map(|(chunk, _)| chunk.address).collect();
    known.sort_unstable();
    strangers.retain(|chunk| known.binary_search(chunk).is_err());
}

/// Membership in an ordered list, asked in ascending order.
struct Members<'a> {
    rest: &'a [u64],
}

impl<'a> Members<'a> {
    fn from(all: &'a [u64], start: u64) -> Self {
        Members {
            rest: &all[all.partition_point(|member| *member < start)..],
        }
    }

    #[inline]
    fn contains(&mut self, address: u64) -> bool {
        while let [first, rest @ ..] = self.rest {
            if *first >= address {
                return *first == address;
            }
            self.rest = rest;
        }
        false
    }
}

/// Ranges that belong to arenas, in order: the break's and all segments'.
fn taken(books: &[ArenaBooks], mappings: &[Mapping], settings: &Settings) -> Vec<(u64, u64)> {
    let mut taken: Vec<(u64, u64)> = books
        .iter()
        .flat_map(|arena| &arena.segments)
        .map(|segment| (segment.start, segment.end))
        .collect();
    taken.extend(break_range(mappings, settings));
    taken.sort_unstable();
    taken
}

/// The range that the break has passed over since malloc first moved it.
fn break_range(mappings: &[Mapping], settings: &Settings) -> Option<(u64, u64)> {
    let first = holding(mappings, settings.sbrk_base).filter(|_| settings.sbrk_base != 0)?;
    let mut end = first.end;
    for mapping in mappings.iter().skip_while(|mapping| mapping.start < first.end) {
        // Parts of it may have another protection or advice, and are mappings of their own then.
        if mapping.start != end || mapping.path != first.path || first.path != "[heap]" {
            break;
        }
        end = mapping.end;
    }
    Some((settings.sbrk_base, end))
}

struct Reader<'a, M: ?Sized> {
    memory: &'a M,
    anatomy: &'a Anatomy,
    mappings: &'a [Mapping],
    residency: &'a Residency,
    /// Chunks that may hold a thread cache.
    candidates: Vec<u64>,
}

/// From the first to the last byte that the process can write to: how high that is differs by architecture and kernel.
fn extent(mappings: &[Mapping]) -> (u64, u64) {
    let writable = || mappings.iter().filter(|mapping| mapping.writable);
    let start = writable().map(|mapping| mapping.start).min();
    let end = writable().map(|mapping| mapping.end).max();
    (start.unwrap_or(0), end.unwrap_or(0))
}

impl<M: ReadMemory + ?Sized> Reader<'_, M> {
    fn arena(&mut self, heap: &mut Heap, books: ArenaBooks, taken: &[(u64, u64)]) -> Arena {
        let unused = books.is_unused(self.anatomy);
        let problems = &mut heap.problems;
        let settings = heap.settings;
        let mut stretches = Vec::new();
        let mut fast = Vec::new();
        let mut clues = Clues::new(self.anatomy, &settings);
        if books.main {
            let range = break_range(self.mappings, &settings);
            let on_break = |address| range.is_some_and(|(start, end)| start <= address && address < end);
            // Fastbins of the main arena may lead to any of its pieces.
            let bounds = match range {
                Some(range) if !books.noncontiguous && on_break(books.top) => range,
                _ => extent(self.mappings),
            };
            clues.enter(&books, bounds);
            if let Some((start, end)) = range.filter(|_| !unused) {
                let first = start.next_multiple_of(16);
                let (end, below_top) = if on_break(books.top) {
                    (books.top, true)
                } else {
                    (end, false)
                };
                stretches.push(self.stretch(start, first, end, below_top, &books, &mut clues, problems));
            }
            let found: u64 = stretches.iter().map(|stretch| stretch.end - stretch.begin).sum();
            let top = if stretches.iter().any(|stretch| stretch.below_top) {
                books.top_size
            } else {
                0
            };
            let missing = if unused {
                0
            } else {
                books.system_bytes.saturating_sub(found + top)
            };
            if settings.mapped_blocks > 0 || missing > 0 {
                let mut search = Search::new(self.memory, self.anatomy, &settings, self.residency);
                search.pieces_missing = missing;
                search.main_top = books.top;
                let found = search.run(self.mappings, taken);
                heap.mapped = found.blocks;
                for piece in found.pieces {
                    let (start, end) = (piece.start, piece.end);
                    stretches.push(self.stretch(start, start, end, piece.holds_top, &books, &mut clues, problems));
                }
            }
            if !unused && !stretches.iter().any(|stretch| stretch.below_top) {
                problems.push(Problem::TopOutside {
                    arena: books.address,
                    top: books.top,
                });
            }
        } else {
            let low = books.segments.iter().map(|segment| segment.start).min().unwrap_or(0);
            let high = books.segments.iter().map(|segment| segment.end).max().unwrap_or(0);
            clues.enter(&books, (low, high));
            for segment in &books.segments {
                let mut first = segment.start + self.anatomy.heap_info.size;
                if books.address >= segment.start && books.address < segment.end {
                    // The first segment also holds the arena itself.
                    first = (first + self.anatomy.malloc_state.size).next_multiple_of(16);
                }
                let below_top = segment.start <= books.top && books.top < segment.end;
                let end = if below_top { books.top } else { segment.end };
                stretches.push(self.stretch(segment.start, first, end, below_top, &books, &mut clues, problems));
            }
            if !unused && !stretches.iter().any(|stretch| stretch.below_top) {
                problems.push(Problem::TopOutside {
                    arena: books.address,
                    top: books.top,
                });
            }
        }
        clues.links.sort_unstable();
        fast.extend(follow_fastbins(self.anatomy, &books, &clues.links, problems));
        self.candidates.append(&mut clues.caches);
        let arena = Arena { books, stretches, fast };
        problems.extend(arena.sum_problem());
        arena
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "a stretch is a place and what is gathered on the way through it"
    )]
    fn stretch<'b>(
        &self,
        begin: u64,
        first_chunk: u64,
        end: u64,
        below_top: bool,
        books: &'b ArenaBooks,
        clues: &mut Clues<'b>,
        problems: &mut Vec<Problem>,
    ) -> Stretch {
        let ending = if below_top {
            Ending::Top {
                previous_in_use: books.top_previous_in_use,
                previous_size: books.top_previous_size,
            }
        } else {
            Ending::Fence
        };
        if below_top && !books.top_fits(self.mappings) {
            problems.push(Problem::TopSize {
                arena: books.address,
                top: books.top,
                size: books.top_size,
            });
        }
        let (log, walked) = walk(self.memory, first_chunk, end, ending, clues, problems);
        clues.log_budget = clues.log_budget.saturating_sub(log.weight());
        Stretch {
            begin,
            first_chunk,
            end,
            walked,
            below_top,
            log,
        }
    }

    /// Up to 2.41 a heap's first chunk is the cache of the thread that made it, which may have nothing in it.
    fn empty_caches(&self, heap: &Heap) -> Vec<u64> {
        let size = (self.anatomy.tcache.size + 8).next_multiple_of(16);
        if self.anatomy.tcache.counts_down || heap.settings.tcache_count == 0 {
            return Vec::new();
        }
        let first = |arena: &Arena| {
            let stretch = arena.stretches.first()?;
            let chunk = stretch.log.iter(stretch.first_chunk).next()?;
            (chunk.usage == Use::InUse && chunk.size == size).then_some(chunk.address)
        };
        heap.arenas.iter().filter_map(first).collect()
    }
}

impl Arena {
    pub fn kind(&self) -> &'static str {
        if self.books.main { "main" } else { "thread" }
    }

    /// Bytes from the begin of each stretch to its end, the top included.
    pub fn found_bytes(&self) -> u64 {
        let top = if self.stretches.iter().any(|stretch| stretch.below_top) {
            self.books.top_size
        } else {
            0
        };
        self.stretches
            .iter()
            .map(|stretch| stretch.end.saturating_sub(stretch.begin))
            .sum::<u64>()
            + top
    }

    fn sum_problem(&self) -> Option<Problem> {
        let (found, books) = (self.found_bytes(), self.books.system_bytes);
        // Where foreign memory lies before malloc's first break, or the first break was not aligned, a few bytes differ.
        (found.abs_diff(books) >= 64).then_some(Problem::SystemBytes {
            arena: self.books.address,
            found,
            books,
        })
    }
}
