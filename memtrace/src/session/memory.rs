//! How much memory the kernel side takes: all of it when it is loaded, whatever the process does.

use memtrace_common::{Counters, LAST_SEEN, ProcessState, ThreadState, map_names};

use super::{Options, facts};

/// What the kernel keeps for each element of a hash beside key and value (struct htab_elem), and for its bucket.
const HASH_OVERHEAD: u64 = 48 + 16;

/// An element of an array takes eight bytes at least.
const ARRAY_ELEMENT: u64 = 8;

/// By map; the small ones that are not listed hold a few bytes.
pub fn bound(options: &Options) -> Vec<(&'static str, u64)> {
    let (processes, threads) = (u64::from(options.processes), u64::from(options.threads));
    let hash = |entries: u64, key: u64, value: u64| entries * (key + value + HASH_OVERHEAD);
    vec![
        (map_names::EVENTS, options.ring_bytes.into()),
        (map_names::PROCESSES, hash(processes, 4, 4)),
        (map_names::STATES, processes * size_of::<ProcessState>() as u64),
        (
            map_names::COUNTERS,
            processes * u64::from(facts::shards()) * size_of::<Counters>() as u64,
        ),
        (map_names::FREE_PLACES, processes * 4),
        (map_names::THREADS, hash(threads, 8, 4)),
        (map_names::THREAD_STATES, threads * size_of::<ThreadState>() as u64),
        (map_names::FREE_THREADS, threads * 4),
        (map_names::LAST_SEEN, u64::from(LAST_SEEN) * ARRAY_ELEMENT),
    ]
}
