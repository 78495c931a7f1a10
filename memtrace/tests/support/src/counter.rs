//! The oracle: counts of the preloaded library support/c/counter.c.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cc::{self, Kind};
use crate::glibc::Release;
use crate::scratch::Scratch;

/// Entry points, in the order of the library's tables.
pub const ENTRIES: [&str; 10] = [
    "malloc",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "free",
    "malloc_trim",
];

/// What the library has counted in one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By entry point's name.
    pub calls: BTreeMap<String, u64>,
    /// Calls that returned no block although one was asked for.
    pub failed: BTreeMap<String, u64>,
    /// Bytes asked for by calls that returned a new block.
    pub bytes: BTreeMap<String, u64>,
    pub free_null: u64,
    /// By free, or by realloc with size 0.
    pub freed_chunk_bytes: u64,
    pub freed_mapped: u64,
    pub realloc_null: u64,
    pub realloc_zero: u64,
    pub realloc_in_place: u64,
    pub realloc_moved: u64,
}

impl Counts {
    /// New blocks: calls of all entry points but free that returned one, without those that resized a block.
    pub fn new_blocks(&self) -> u64 {
        let allocating = |name: &&str| !matches!(*name, "free" | "malloc_trim" | "realloc");
        let calls: u64 = ENTRIES
            .into_iter()
            .filter(allocating)
            .map(|name| self.calls[name] - self.failed[name])
            .sum();
        calls + self.realloc_null
    }

    pub fn freed_blocks(&self) -> u64 {
        self.calls["free"] - self.free_null + self.realloc_zero
    }

    fn parse(bytes: &[u8]) -> Self {
        let mut words = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
        let mut next = || words.next().expect("the library writes all of its counts");
        let mut table = || {
            ENTRIES
                .iter()
                .map(|&name| (name.to_owned(), next()))
                .collect::<BTreeMap<_, _>>()
        };
        let (calls, failed, bytes) = (table(), table(), table());
        Self {
            calls,
            failed,
            bytes,
            free_null: next(),
            freed_chunk_bytes: next(),
            freed_mapped: next(),
            realloc_null: next(),
            realloc_zero: next(),
            realloc_in_place: next(),
            realloc_moved: next(),
        }
    }
}

/// The compiled library, with a place for its files.
pub struct Counter {
    library: PathBuf,
    prefix: PathBuf,
}

impl Counter {
    /// Compiles the library into `scratch`, to run under `oldest` and later (else under the machine's glibc).
    pub fn build(oldest: Option<&Release>, scratch: &Scratch) -> Self {
        Self {
            library: cc::compile("counter", Kind::Library, oldest, scratch),
            prefix: scratch.file("counts"),
        }
    }

    /// What LD_PRELOAD (or the loader's --preload) has to name.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// COUNTER_FILES and its value.
    pub fn environment(&self) -> (&'static str, &Path) {
        ("COUNTER_FILES", &self.prefix)
    }

    /// What was counted in process `pid`.
    pub fn counts(&self, pid: u32) -> Counts {
        let file = PathBuf::from(format!("{}.{pid}", self.prefix.display()));
        Counts::parse(&fs::read(&file).unwrap_or_else(|error| panic!("reading {}: {error}", file.display())))
    }
}
