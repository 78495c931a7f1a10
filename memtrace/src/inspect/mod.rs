//! A look at another process from outside: its memory behind the traits of memtrace-analysis::glibc, and what /proc
//! tells of it.
//!
//! ```text
//! smaps + pagemap + process_vm_readv -> Heap -> Look       again, a few times, while the process moves under the reader
//! ```

pub mod image;
pub mod library;
pub mod machine;
pub mod mappings;
pub mod page_cache;
pub mod proc_file;
pub mod process_memory;
pub mod stop;
mod threads;

use crate::page_size::page_size;
use crate::sentence;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use memtrace_analysis::glibc::account::Surroundings;
use memtrace_analysis::glibc::explain::{Inputs, explain};
use memtrace_analysis::glibc::image::{Header, LibraryFacts, Recorder};
use memtrace_analysis::glibc::look::{Look, Taken, Target};
use memtrace_analysis::glibc::{Heap, Mapping, Problem, Residency};

use self::library::Library;
use self::process_memory::ProcessMemory;
use self::stop::Stopped;
use self::threads::Threads;

/// Looks at a process that runs on until it is called torn.
const TRIES: u32 = 4;
/// Between two looks that find the same fault, so that a thread in the midst of a change can finish it.
const BREATH: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, Default)]
pub struct LookOptions {
    /// Let the process stand still meanwhile.
    pub stop: bool,
    /// Keep the words that were made use of, for an image.
    pub keep_words: bool,
}

/// One look, without stopping the process.
pub fn look(pid: u32) -> Result<Look> {
    take(pid, LookOptions::default()).map(|capture| capture.explain())
}

/// Everything that was read of a process, before anything is concluded from it.
pub struct Capture {
    pub header: Header,
    pub residency: Residency,
    pub heap: Result<Heap, String>,
    /// With [`LookOptions::keep_words`].
    pub words: Vec<(u64, u64)>,
}

impl Capture {
    pub fn explain(&self) -> Look {
        let Header {
            target,
            taken,
            program,
            mappings,
            stack_pointers,
            environment,
            machine,
            cgroup,
            not_seen,
            damaged,
            library: _,
            heap_unknown: _,
            pages: _,
        } = &self.header;
        explain(Inputs {
            target: target.clone(),
            taken: taken.clone(),
            around: Surroundings {
                mappings,
                residency: &self.residency,
                stack_pointers,
                program,
            },
            heap: self.heap.as_ref().map_err(Clone::clone),
            environment,
            machine: *machine,
            cgroup: cgroup.clone(),
            not_seen: not_seen.clone(),
            damaged: *damaged,
        })
    }
}

/// One reading of everything that can change under the reader.
struct Reading {
    mappings: Vec<Mapping>,
    residency: Residency,
    heap: Result<Heap, String>,
    words: Vec<(u64, u64)>,
    /// As the reading ended.
    threads: Threads,
}

impl Reading {
    fn problems(&self) -> usize {
        self.heap.as_ref().map_or(0, |heap| heap.problems.len())
    }

    /// The same did not fit together before.
    fn has_the_fault_of(&self, before: &Reading) -> bool {
        match (&before.heap, &self.heap) {
            (Ok(before), Ok(now)) => {
                before.is_torn() && before.problems == now.problems && !now.problems.iter().any(Problem::is_motion)
            }
            _ => false,
        }
    }
}

/// Reads everything once; where the heap moved meanwhile, again.
pub fn take(pid: u32, options: LookOptions) -> Result<Capture> {
    let begun = Instant::now();
    let page = page_size();
    let (name, command) = proc_file::names(pid)?;
    let threads = proc_file::thread_ids(pid)?.len() as u32;
    // What does not change is read before the process is stopped.
    let library = library::find(pid, &mappings::read_maps(pid)?).map_err(|error| sentence::of(&error));
    let mut not_seen = Vec::new();

    let stopped = if options.stop {
        Some(Stopped::all_threads_of(pid)?)
    } else {
        None
    };
    let mut best = read(pid, &library, page, options, &mut not_seen)?;
    let (mut retries, mut persisted, mut damaged) = (0, 0, false);
    while stopped.is_none() && best.problems() > 0 && !damaged && retries + 1 < TRIES {
        retries += 1;
        let again = read(pid, &library, page, options, &mut not_seen)?;
        if again.has_the_fault_of(&best) {
            // What no thread can be changing does not come right. What a thread may be changing has to outlast several of
            // its changes: it may come by the same place again.
            let still = again.threads.none_in_malloc() && best.threads.none_in_malloc();
            persisted += u32::from(again.threads.have_moved_on_since(&best.threads));
            damaged = still || persisted + 1 == TRIES;
            if !damaged {
                std::thread::sleep(BREATH);
            }
        }
        if again.problems() <= best.problems() {
            best = again;
        }
    }
    if stopped.is_some()
        && let Ok(heap) = &best.heap
    {
        // A thread that was stopped inside of malloc may have left things half done; with others beside it, it has the
        // arena's lock.
        let locked = heap.arenas.iter().any(|arena| arena.books.locked);
        damaged = heap.is_torn() && !locked && best.threads.none_in_malloc();
    }
    let stack_pointers = proc_file::stack_pointers(pid);
    let stood_still = stopped.as_ref().map(Stopped::elapsed);
    drop(stopped);

    let cgroup = machine::cgroup(pid).map_err(|reason| not_seen.push(reason)).ok();
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    not_seen.sort_unstable();
    not_seen.dedup();
    let header = Header {
        target: Target {
            pid,
            name,
            command,
            threads,
            glibc: library.as_ref().ok().map(|library| library.anatomy.version.to_string()),
            library: library.as_ref().ok().map(|library| library.path.clone()),
            other_allocator: other_allocator(&best.mappings),
        },
        taken: Taken {
            unix_ms: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_millis() as u64),
            process_age_ns: proc_file::age_ns(pid).unwrap_or(0),
            stopped: stood_still.is_some(),
            stopped_ns: stood_still.map_or(0, |time| time.as_nanos() as u64),
            retries,
            ran_on: false,
            duration_ns: begun.elapsed().as_nanos() as u64,
            page_size: page,
        },
        program: program.to_string_lossy().into_owned(),
        mappings: best.mappings,
        stack_pointers,
        environment: proc_file::malloc_environment(pid),
        machine: machine::machine(),
        cgroup,
        not_seen,
        damaged,
        library: library
            .as_ref()
            .ok()
            .map(|library| LibraryFacts::of(&library.anatomy, library.base)),
        heap_unknown: best.heap.as_ref().err().cloned(),
        pages: Vec::new(),
    };
    Ok(Capture {
        header,
        residency: best.residency,
        heap: best.heap,
        words: best.words,
    })
}

fn read(
    pid: u32,
    library: &Result<Library, String>,
    page: u64,
    options: LookOptions,
    not_seen: &mut Vec<String>,
) -> Result<Reading> {
    let mappings = mappings::read_smaps(pid).with_context(|| format!("looking at process {pid}"))?;
    let residency = mappings::read_residency(pid, &mappings, page).unwrap_or_else(|error| {
        not_seen.push(format!(
            "which pages are in memory ({}); all are taken to be",
            sentence::of(&error)
        ));
        mappings::assumed_residency(&mappings, page)
    });
    let memory = ProcessMemory::new(pid, &residency);
    let mut words = Vec::new();
    let heap = library.as_ref().map_err(Clone::clone).and_then(|library| {
        let (anatomy, base) = (&library.anatomy, library.base);
        let heap = if options.keep_words {
            let recorder = Recorder::new(&memory);
            let heap = Heap::read(&recorder, anatomy, base, &mappings, &residency);
            words = recorder.finish();
            heap
        } else {
            Heap::read(&memory, anatomy, base, &mappings, &residency)
        };
        heap.map_err(|error| format!("{error}"))
    });
    let path = library.as_ref().ok().map(|library| library.path.as_str());
    let threads = Threads::now(pid, &mappings, path);
    Ok(Reading {
        mappings,
        residency,
        heap,
        words,
        threads,
    })
}

/// The library of another allocator that the process maps.
fn other_allocator(mappings: &[Mapping]) -> Option<String> {
    const NAMES: [&str; 6] = [
        "libjemalloc",
        "libtcmalloc",
        "libmimalloc",
        "libsnmalloc",
        "librpmalloc",
        "libhoard",
    ];
    mappings
        .iter()
        .filter(|mapping| mapping.executable)
        .map(|mapping| &mapping.path)
        .find(|path| {
            NAMES
                .iter()
                .any(|name| path.rsplit('/').next().unwrap_or("").starts_with(name))
        })
        .cloned()
}
