//! The calls a simulated program makes.

use super::arena::{Arena, LEAST};
use super::{Block, Place, Program, add};
use crate::chunk;
use crate::event::{Entry, EventKind, Frame, Trim};
use crate::report::StepKind;
use crate::rule::MMAP_THRESHOLD_MAX;
use crate::version::{self, Version};

const MAPPED: u64 = 2;
const NON_MAIN: u64 = 4;
const PREV_INUSE: u64 = 1;

impl Program {
    /// A new thread, made by the main one.
    pub fn spawn(&mut self, tid: u32) {
        self.threads.entry(tid).or_default();
        self.emit(self.settings.pid, EventKind::ThreadStart { child: tid });
    }

    pub fn exit_thread(&mut self, tid: u32) {
        self.emit(tid, EventKind::ThreadExit);
    }

    /// malloc, calloc or one of the memalign family (with an alignment) in thread `tid`; None when it fails.
    pub fn allocate(&mut self, tid: u32, entry: Entry, request: u64, alignment: u64) -> Option<usize> {
        self.enter(tid, entry, request, alignment, None);
        let block = self.serve(tid, request);
        self.leave();
        if block.is_none() {
            add(&mut self.truth.failed, 1);
            self.truth.blocks = self.truth.blocks.saturating_sub(1);
            self.truth.requested_bytes = self.truth.requested_bytes.saturating_sub(request);
        }
        self.keep(block?)
    }

    fn keep(&mut self, block: Block) -> Option<usize> {
        let id = self.next_block;
        self.next_block = id.checked_add(1)?;
        self.blocks.insert(id, block);
        Some(id)
    }

    /// realloc of a block; false when it fails.
    pub fn reallocate(&mut self, tid: u32, id: usize, request: u64) -> bool {
        let Some(block) = self.blocks.get(&id).copied() else {
            return false;
        };
        self.enter(
            tid,
            Entry::Realloc,
            request,
            block.chunk.saturating_add(16),
            Some(size_field(&block)),
        );
        let moved = self.resize(tid, &block, request);
        self.leave();
        match moved {
            Some(block) => {
                self.blocks.insert(id, block);
                true
            }
            None => {
                add(&mut self.truth.failed, 1);
                false
            }
        }
    }

    fn resize(&mut self, tid: u32, block: &Block, request: u64) -> Option<Block> {
        let size = chunk::chunk_size(request)?;
        if block.place == Place::Mapped {
            let bytes = self.page_end(size.saturating_add(8));
            if bytes != block.size {
                self.mremap(tid, block.chunk, block.size, bytes);
            }
            if bytes > block.size {
                self.true_step(StepKind::Mremap, bytes.saturating_sub(block.size));
            }
            return Some(Block { size: bytes, ..*block });
        }
        if size <= block.size {
            return Some(*block);
        }
        let arena = self.arena_mut(block.place)?;
        let more = size.saturating_sub(block.size);
        if arena.top == block.chunk.saturating_add(block.size) && arena.cut(more).is_some() {
            return Some(Block { size, ..*block });
        }
        // Served by the block's own arena, as glibc does.
        let new = self.obtain(tid, block.place, size)?;
        self.release(tid, block);
        Some(new)
    }

    pub fn free(&mut self, tid: u32, id: usize) {
        let Some(block) = self.blocks.remove(&id) else { return };
        let pointer = block.chunk.saturating_add(16);
        self.enter(tid, Entry::Free, 0, pointer, Some(size_field(&block)));
        add(&mut self.totals.freed_blocks, 1);
        add(&mut self.totals.freed_bytes, block.size);
        add(&mut self.truth.freed_blocks, 1);
        add(&mut self.truth.freed_bytes, block.size);
        if block.place == Place::Mapped {
            self.raise_thresholds(block.size);
        }
        self.release(tid, &block);
        self.leave();
    }

    fn raise_thresholds(&mut self, size: u64) {
        if self.settings.dynamic && size > self.mmap_threshold && size < MMAP_THRESHOLD_MAX {
            self.mmap_threshold = size;
            self.trim_threshold = size.saturating_mul(2);
            self.truth.thresholds.push(size);
        }
    }

    /// Lets go of a block in the course of the call in progress.
    fn release(&mut self, tid: u32, block: &Block) {
        let by_free = self.frame.is_some_and(|frame| frame.entry == Entry::Free);
        match block.place {
            Place::Mapped => {
                self.munmap(tid, block.chunk, block.size);
                if by_free {
                    add(&mut self.truth.freed_by_munmap_bytes, block.size);
                }
            }
            Place::Main => {
                let merged = self.main.give(block.chunk, block.size);
                if merged >= 64 << 10 && self.main.top_size >= self.trim_threshold {
                    let bytes = self.trim_main(tid, self.settings.top_pad);
                    if by_free {
                        add(&mut self.truth.freed_by_trim_bytes, bytes);
                    }
                }
            }
            Place::Thread(owner) => {
                let merged = self
                    .arenas
                    .get_mut(&owner)
                    .map_or(0, |arena| arena.give(block.chunk, block.size));
                if merged >= 64 << 10 {
                    let bytes = self.shrink_arena(tid, owner);
                    if by_free {
                        add(&mut self.truth.freed_by_trim_bytes, bytes);
                    }
                }
            }
        }
    }

    /// Lowers the break so that `pad` bytes and a little stay at the top.
    fn trim_main(&mut self, tid: u32, pad: u64) -> u64 {
        let end = self.main.top_end();
        if self.break_end != end || self.main.apart {
            return 0;
        }
        // Whole pages counted from the end, so that what stays is no less than asked.
        let spare = self.main.top_size.saturating_sub(LEAST + 1).saturating_sub(pad);
        let pages = spare.checked_div(self.settings.page_size).unwrap_or(0);
        let bytes = pages.saturating_mul(self.settings.page_size);
        if bytes > 0 {
            self.brk(tid, end.saturating_sub(bytes));
            self.main.top_size = self.main.top_size.saturating_sub(bytes);
        }
        bytes
    }

    pub fn malloc_trim(&mut self, tid: u32, pad: u64) {
        self.enter(tid, Entry::MallocTrim, pad, 0, None);
        let call = self.frame.map_or(0, |frame| frame.call);
        let trim = |program: &Self, result| Trim {
            pad,
            result,
            call,
            resident_bytes: None,
            heap: Some(program.main_books()),
            snapshot: program.snapshot(tid),
        };
        let begin = trim(self, None);
        self.emit(tid, EventKind::TrimBegin(begin));
        let bytes = self.trim_main(tid, pad);
        add(&mut self.truth.trimmed_bytes, bytes);
        let end = trim(self, Some(1));
        self.emit(tid, EventKind::TrimEnd(end));
        self.leave();
    }

    /// The program moves the break itself.
    pub fn sbrk(&mut self, bytes: u64) {
        self.brk(self.settings.pid, self.break_end.saturating_add(bytes));
    }

    /// The program maps memory itself.
    pub fn map(&mut self, tid: u32, bytes: u64) {
        self.mmap(tid, bytes, 3, self.settings.page_size);
    }

    fn enter(&mut self, tid: u32, entry: Entry, request: u64, argument: u64, field: Option<u64>) {
        let thread = self.threads.entry(tid).or_default();
        add(&mut thread.calls, 1);
        let frame = Frame {
            entry,
            request,
            argument,
            chunk: field,
            call: thread.calls,
            return_address: 0x40_1000,
        };
        if frame.makes_block() {
            add(&mut thread.blocks, 1);
            add(&mut thread.bytes, request);
            add(&mut self.totals.allocated_blocks, 1);
            add(&mut self.totals.allocated_bytes, request);
            add(&mut self.truth.blocks, 1);
            add(&mut self.truth.requested_bytes, request);
        }
        let place = Entry::ALL.iter().position(|known| *known == entry).unwrap_or(0);
        if let Some(calls) = self.totals.calls.get_mut(place) {
            add(calls, 1);
        }
        self.frame = Some(frame);
    }

    const fn leave(&mut self) {
        self.frame = None;
    }

    /// Serves the call in progress from its thread's arena.
    fn serve(&mut self, tid: u32, request: u64) -> Option<Block> {
        let frame = self.frame?;
        let asked = chunk::asked_of_arena(&frame, self.settings.page_size)?;
        let home = self.home(tid);
        let version = Version::parse(&self.settings.version)?;
        let cache = version::thread_cache_request(version).filter(|_| version < Version { major: 2, minor: 43 });
        if let Place::Thread(tid) = home
            && !self.arenas.contains_key(&tid)
        {
            self.make_arena(tid, cache.unwrap_or(request))?;
        }
        let fresh = self.threads.get_mut(&tid).filter(|thread| !thread.has_cache);
        if let (Some(thread), Some(cache)) = (fresh, cache) {
            thread.has_cache = true;
            self.obtain(tid, home, chunk::chunk_size(cache)?);
        }
        let mut block = self.obtain(tid, home, asked)?;
        // What the aligned entry points asked for beyond the block goes back at once.
        let needed = chunk::chunk_size(request)?;
        let surplus = block.size.saturating_sub(needed);
        if asked > needed && surplus >= LEAST && block.place != Place::Mapped {
            block.size = needed;
            let at = block.chunk.saturating_add(needed);
            self.arena_mut(block.place)?.give(at, surplus);
        }
        Some(block)
    }

    fn arena_mut(&mut self, place: Place) -> Option<&mut Arena> {
        match place {
            Place::Main => Some(&mut self.main),
            Place::Thread(tid) => self.arenas.get_mut(&tid),
            Place::Mapped => None,
        }
    }

    /// A chunk of `size` bytes, with new memory where it takes some.
    fn obtain(&mut self, tid: u32, place: Place, size: u64) -> Option<Block> {
        if let Some((chunk, size)) = self.arena_mut(place)?.take(size) {
            return Some(Block { chunk, size, place });
        }
        if size >= self.mmap_threshold
            && let Some(block) = self.map_block(tid, size)
        {
            return Some(block);
        }
        match place {
            Place::Main => self.grow_main(tid, size)?,
            Place::Thread(owner) => self.grow_arena(tid, owner, size)?,
            Place::Mapped => return None,
        }
        let (chunk, size) = self.arena_mut(place)?.cut(size)?;
        Some(Block { chunk, size, place })
    }

    fn map_block(&mut self, tid: u32, size: u64) -> Option<Block> {
        let bytes = self.page_end(size.saturating_add(8));
        let at = self.mmap(tid, bytes, 3, self.settings.page_size)?;
        self.true_step(StepKind::Mmap, bytes);
        Some(Block {
            chunk: at,
            size: bytes,
            place: Place::Mapped,
        })
    }

    /// More memory at the main arena's top, from the break or, where that is refused, from a mapping.
    fn grow_main(&mut self, tid: u32, size: u64) -> Option<()> {
        let wanted = size.saturating_add(self.settings.top_pad).saturating_add(LEAST);
        let missing = if self.main.apart {
            wanted
        } else {
            wanted.saturating_sub(self.main.top_size)
        };
        let bytes = self.page_end(missing);
        let Some(from) = self.brk(tid, self.break_end.saturating_add(bytes)) else {
            let whole = bytes.saturating_add(if self.main.apart { 0 } else { self.main.top_size });
            let bytes = match (version::rounds_first_piece(self.layout()), self.main.apart) {
                // Only the first piece is rounded up to a MiB.
                (true, true) => bytes,
                (true, false) => whole.checked_next_multiple_of(1 << 20)?,
                (false, _) => self.page_end(whole).max(1 << 20),
            };
            let at = self.mmap(tid, bytes, 3, self.settings.page_size)?;
            self.true_step(StepKind::MmapMain, bytes);
            self.main.apart = true;
            self.main.move_top(at, bytes);
            return Some(());
        };
        if from == self.main.top_end() {
            self.main.top_size = self.main.top_size.saturating_add(bytes);
            return Some(());
        }
        // Somebody else moved the break: what the old top had is fetched once more, up to the end of a page.
        let start = from.checked_next_multiple_of(16)?;
        let lead = start.saturating_sub(from);
        let rest = if self.main.apart {
            0
        } else {
            self.main.top_size.saturating_add(lead)
        };
        let end = self.page_end(self.break_end.saturating_add(rest));
        if end > self.break_end && !self.main.apart {
            self.brk(tid, end)?;
        }
        self.main.move_top(start, self.break_end.saturating_sub(start));
        Some(())
    }
}

fn size_field(block: &Block) -> u64 {
    let flags = match block.place {
        Place::Main => PREV_INUSE,
        Place::Thread(_) => PREV_INUSE | NON_MAIN,
        Place::Mapped => MAPPED,
    };
    block.size | flags
}
