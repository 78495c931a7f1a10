//! Chunks that the flags call in use although they are not: those in thread caches and fastbins.
//!
//! Both kinds of list lead all over the heap, and a read of foreign memory for each link would cost more than the walk.
//! So the walk picks up clues as it passes, and the lists are followed afterwards: fastbins among the links it has
//! seen, thread caches side by side, one batch of reads for each step of all lists.
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "offsets of known layouts, added to addresses that were checked to lie in a mapping; places in lists made here"
    )
)]

use alloc::vec::Vec;

use super::books::{ArenaBooks, Settings};
use super::elf::{u16_at, u64_at};
use super::locate::Anatomy;
use super::memory::{ReadMemory, Window};
use super::problem::Problem;

/// The largest chunk a fastbin can hold (M_MXFAST at its maximum).
const MOST_FAST: u64 = 176;
/// Links and log bytes kept at most: 256 MiB and 256 MiB, for some hundred million chunks.
const MOST_LINKS: usize = 16 << 20;
const MOST_LOG: usize = 256 << 20;
const MOST_CACHED: usize = 16 << 20;

/// What the walk picks up for later.
pub(super) struct Clues<'a> {
    anatomy: &'a Anatomy,
    settings: &'a Settings,
    /// Of the arena being walked: whether the fastbin of each chunk size has anything.
    fastbins: &'a [u64],
    /// Addresses among which the links of its fastbins can point.
    bounds: (u64, u64),
    /// Chunks whose block reads like a thread cache.
    pub caches: Vec<u64>,
    /// Chunks of fastbin size and what they would link to, if they were in one; ordered within each stretch.
    pub links: Vec<(u64, u64)>,
    /// Log bytes that the stretch being walked may take.
    pub log_budget: usize,
}

impl<'a> Clues<'a> {
    pub fn new(anatomy: &'a Anatomy, settings: &'a Settings) -> Self {
        Clues {
            anatomy,
            settings,
            fastbins: &[],
            bounds: (0, 0),
            caches: Vec::new(),
            links: Vec::new(),
            log_budget: MOST_LOG,
        }
    }

    /// The walk goes on in this arena, whose chunks lie within `bounds`.
    pub fn enter(&mut self, arena: &'a ArenaBooks, bounds: (u64, u64)) {
        self.fastbins = &arena.fastbins;
        self.bounds = bounds;
    }

    pub fn full(&self) -> bool {
        self.links.len() >= MOST_LINKS
    }

    #[inline]
    pub fn look<M: ReadMemory + ?Sized>(&mut self, window: &mut Window<'_, M>, chunk: u64, size: u64) {
        let cache = self.anatomy.tcache.size + 8;
        if size <= MOST_FAST {
            let bin = (size / 16 - 2) as usize;
            if self.fastbins.get(bin).is_some_and(|head| *head != 0)
                && let Some(stored) = window.bytes(chunk + 16, 8).ok().and_then(|bytes| u64_at(bytes, 0))
            {
                let link = reveal(self.anatomy, chunk + 16, stored);
                let possible = link.is_multiple_of(16) && self.bounds.0 <= link && link < self.bounds.1;
                if possible || link == 0 && self.anatomy.safe_linking {
                    window.note(chunk + 16, 8);
                    self.links.push((chunk, link));
                }
            }
        } else if size >= cache && size <= (cache | 15) + 17 {
            let fits = window
                .bytes(chunk + 16, self.anatomy.tcache.size as usize)
                .is_ok_and(|bytes| CacheImage::read(self.anatomy, self.settings, bytes).is_some());
            if fits {
                window.note(chunk + 16, self.anatomy.tcache.size as usize);
                self.caches.push(chunk);
            }
        }
    }
}

/// Undoes the mangling of a link that stands at `place`.
pub(super) fn reveal(anatomy: &Anatomy, place: u64, stored: u64) -> u64 {
    if anatomy.safe_linking {
        place >> 12 ^ stored
    } else {
        stored
    }
}

/// The contents of a block, read as a thread cache.
pub(super) struct CacheImage {
    /// (bin, blocks, head) of each bin that holds any.
    pub bins: Vec<(u64, u64, u64)>,
}

impl CacheImage {
    /// None where the contents contradict themselves, or are all zero: then nothing tells them from a block of zeros.
    pub fn read(anatomy: &Anatomy, settings: &Settings, bytes: &[u8]) -> Option<CacheImage> {
        let layout = &anatomy.tcache;
        let mut bins = Vec::new();
        let mut blank = true;
        for bin in 0..layout.bins {
            let stored = u64::from(u16_at(bytes, (layout.counts + bin * 2) as usize)?);
            let head = u64_at(bytes, (layout.entries + bin * 8) as usize)?;
            blank &= stored == 0 && head == 0;
            let held = if layout.counts_down {
                settings.tcache_count.checked_sub(stored)?
            } else {
                (stored <= settings.tcache_count.max(7)).then_some(stored)?
            };
            if (held == 0) != (head == 0) || !head.is_multiple_of(16) || head >> 48 != 0 {
                return None;
            }
            if held > 0 {
                bins.push((bin, held, head));
            }
        }
        (!blank).then_some(CacheImage { bins })
    }
}

/// A thread cache that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Address of the chunk that holds its structure (of the block, where that has a mapping of its own).
    pub chunk: u64,
    pub blocks: u64,
    pub bytes: u64,
}

/// Follows all thread caches at once. Gives those that proved to be caches, and the chunks in them in order.
pub(super) fn follow_caches<M: ReadMemory + ?Sized>(
    memory: &M,
    anatomy: &Anatomy,
    settings: &Settings,
    candidates: &[u64],
    problems: &mut Vec<Problem>,
) -> (Vec<Cache>, Vec<u64>) {
    struct List {
        cache: usize,
        bin: u64,
        left: u64,
        /// The block to visit next.
        block: u64,
        head: u64,
    }
    let mut caches = Vec::new();
    let mut lists = Vec::new();
    let mut keys: Vec<Option<u64>> = Vec::new();
    for &chunk in candidates {
        let mut bytes = alloc::vec![0; anatomy.tcache.size as usize];
        let image = memory
            .read(chunk + 16, &mut bytes)
            .ok()
            .and_then(|()| CacheImage::read(anatomy, settings, &bytes));
        let Some(image) = image else { continue };
        memory.note(chunk + 16, &bytes);
        let cache = caches.len();
        lists.extend(image.bins.iter().map(|&(bin, left, head)| List {
            cache,
            bin,
            left,
            block: head,
            head,
        }));
        caches.push(Some(Cache {
            chunk,
            blocks: 0,
            bytes: 0,
        }));
        keys.push(anatomy.tcache.key_is_address.then_some(chunk + 16));
    }
    let mut held: Vec<(usize, u64)> = Vec::new();
    let (mut places, mut words) = (Vec::new(), Vec::new());
    let mut first = true;
    while !lists.is_empty() && held.len() < MOST_CACHED {
        places.clear();
        places.extend(
            lists
                .iter()
                .flat_map(|list| [list.block.wrapping_sub(8), list.block, list.block.wrapping_add(8)]),
        );
        memory.words(&places, &mut words);
        let mut answers = words.chunks_exact(3);
        lists.retain_mut(|list| {
            let answer = answers.next();
            if caches[list.cache].is_none() {
                return false;
            }
            let block = list.block;
            let entry = match answer {
                Some(&[Some(field), Some(next), Some(key)]) => {
                    for (place, word) in [
                        (block.wrapping_sub(8), field),
                        (block, next),
                        (block.wrapping_add(8), key),
                    ] {
                        memory.note(place, &word.to_le_bytes());
                    }
                    let size = field & !7;
                    let known = *keys[list.cache].get_or_insert(key);
                    (holds(anatomy, list.bin, size) && key == known).then_some((size, next))
                }
                _ => None,
            };
            let Some((size, next)) = entry else {
                // A head that leads to no cached block: these are some program's data, not a cache.
                if first {
                    caches[list.cache] = None;
                } else {
                    problems.push(Problem::ListEntry {
                        head: list.head,
                        entry: block,
                    });
                }
                return false;
            };
            if let Some(cache) = &mut caches[list.cache] {
                cache.blocks += 1;
                cache.bytes += size;
            }
            held.push((list.cache, block.wrapping_sub(16)));
            list.left -= 1;
            list.block = reveal(anatomy, block, next);
            if list.left == 0 && list.block != 0 {
                problems.push(Problem::ListLoop { head: list.head });
            } else if list.left > 0 && list.block == 0 {
                problems.push(Problem::ListEntry {
                    head: list.head,
                    entry: 0,
                });
            }
            list.left > 0 && list.block != 0
        });
        first = false;
    }
    let mut chunks: Vec<u64> = held
        .into_iter()
        .filter(|(cache, _)| caches[*cache].is_some())
        .map(|(_, chunk)| chunk)
        .collect();
    chunks.sort_unstable();
    chunks.dedup();
    (caches.into_iter().flatten().collect(), chunks)
}

/// Whether a bin of a thread cache takes chunks of this size.
fn holds(anatomy: &Anatomy, bin: u64, size: u64) -> bool {
    let small = anatomy.tcache.small_bins;
    if bin < small {
        size == 32 + bin * 16
    } else {
        size > 32 + (small - 1) * 16
    }
}

/// The chunks in an arena's fastbins, in order.
pub(super) fn follow_fastbins(
    anatomy: &Anatomy,
    arena: &ArenaBooks,
    links: &[(u64, u64)],
    problems: &mut Vec<Problem>,
) -> Vec<u64> {
    let mut chunks = Vec::new();
    for &head in arena.fastbins.iter().filter(|head| **head != 0) {
        let mut chunk = head;
        let mut left = links.len();
        let mut hint = Guess::default();
        while chunk != 0 {
            let Some(link) = hint.find(links, chunk) else {
                // Without mangling a link of zero is not kept, since too many blocks begin with one: the end it is.
                if anatomy.safe_linking {
                    problems.push(Problem::ListEntry { head, entry: chunk });
                } else {
                    chunks.push(chunk);
                }
                break;
            };
            if left == 0 {
                problems.push(Problem::ListLoop { head });
                break;
            }
            left -= 1;
            chunks.push(chunk);
            chunk = link;
        }
    }
    chunks.sort_unstable();
    chunks.dedup();
    chunks
}

/// Looks links up near the last one found before searching all: blocks freed in order are linked in order.
#[derive(Default)]
struct Guess {
    at: usize,
}

impl Guess {
    fn find(&mut self, links: &[(u64, u64)], chunk: u64) -> Option<u64> {
        let near = [self.at.wrapping_sub(1), self.at.wrapping_add(1)];
        let found = near
            .into_iter()
            .find(|index| links.get(*index).is_some_and(|link| link.0 == chunk));
        self.at = match found {
            Some(index) => index,
            None => links.binary_search_by_key(&chunk, |link| link.0).ok()?,
        };
        links.get(self.at).map(|link| link.1)
    }
}
