//! A look at another process from outside: its memory behind the traits of memtrace-analysis::glibc, and what /proc
//! tells of it.
//!
//! ```text
//! smaps + pagemap + process_vm_readv -> Heap -> Look       again, a few times, while the process moves under the reader
//! ```

pub mod library;
pub mod machine;
pub mod mappings;
pub mod page_cache;
pub mod proc_file;
pub mod process_memory;
pub mod stop;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use memtrace_analysis::glibc::account::Surroundings;
use memtrace_analysis::glibc::explain::{Inputs, explain};
use memtrace_analysis::glibc::look::{Look, Taken, Target};
use memtrace_analysis::glibc::{Heap, Mapping, Residency};

use self::library::Library;
use self::process_memory::ProcessMemory;
use self::stop::Stopped;

/// Looks at a process that runs on until it is called torn.
const TRIES: u32 = 4;

#[derive(Clone, Copy, Debug, Default)]
pub struct LookOptions {
    /// Let the process stand still meanwhile.
    pub stop: bool,
}

/// One look, without stopping the process.
pub fn look(pid: u32) -> Result<Look> {
    look_with(pid, LookOptions::default())
}

pub fn look_with(pid: u32, options: LookOptions) -> Result<Look> {
    take(pid, options).map(|capture| capture.explain())
}

/// Everything that was read of a process, before anything is concluded from it.
pub struct Capture {
    pub target: Target,
    pub taken: Taken,
    pub mappings: Vec<Mapping>,
    pub residency: Residency,
    pub stack_pointers: Vec<u64>,
    pub program: String,
    pub library: Option<Library>,
    pub heap: Result<Heap, String>,
    pub environment: Vec<(String, String)>,
    pub not_seen: Vec<String>,
    pub machine: Option<memtrace_analysis::glibc::look::Machine>,
    pub cgroup: Option<memtrace_analysis::glibc::look::Cgroup>,
}

impl Capture {
    pub fn explain(&self) -> Look {
        explain(Inputs {
            target: self.target.clone(),
            taken: self.taken.clone(),
            around: Surroundings {
                mappings: &self.mappings,
                residency: &self.residency,
                stack_pointers: &self.stack_pointers,
                program: &self.program,
            },
            heap: self.heap.as_ref().map_err(Clone::clone),
            environment: &self.environment,
            machine: self.machine,
            cgroup: self.cgroup.clone(),
            not_seen: self.not_seen.clone(),
        })
    }
}

/// Reads everything once; where the heap moved meanwhile, again.
pub fn take(pid: u32, options: LookOptions) -> Result<Capture> {
    let begun = Instant::now();
    let page = proc_file::page_size();
    let (name, command) = proc_file::names(pid)?;
    let threads = proc_file::thread_ids(pid)?.len() as u32;
    let mut not_seen = Vec::new();
    // What does not change is read before the process is stopped.
    let library = library::find(pid, &mappings::read_maps(pid)?).map_err(|error| format!("{error:#}"));
    let stopped = if options.stop {
        Some(Stopped::all_threads_of(pid)?)
    } else {
        None
    };
    let tries = if options.stop { 1 } else { TRIES };
    let mut best: Option<(Vec<Mapping>, Residency, Result<Heap, String>)> = None;
    let mut retries = 0;
    for attempt in 0..tries {
        retries = attempt;
        let (mappings, residency) = pages(pid, page, &mut not_seen)?;
        let heap = match &library {
            Ok(library) => {
                let memory = ProcessMemory::new(pid, &residency);
                Heap::read(&memory, &library.anatomy, library.base, &mappings, &residency)
                    .map_err(|error| error.to_string())
            }
            Err(reason) => Err(reason.clone()),
        };
        let problems = heap.as_ref().map_or(0, |heap| heap.problems.len());
        let settled = match (&best, &heap) {
            // The same twice is no motion but damage.
            (Some((_, _, Ok(before))), Ok(now)) => before.problems == now.problems,
            _ => false,
        };
        let better = best.as_ref().is_none_or(|(_, _, other)| match other {
            Ok(other) => problems <= other.problems.len(),
            Err(_) => true,
        });
        if better {
            best = Some((mappings, residency, heap));
        }
        if problems == 0 || settled {
            break;
        }
    }
    let (mappings, residency, heap) = best.context("taking a look")?;
    let stack_pointers = proc_file::stack_pointers(pid);
    let stopped_ns = stopped
        .as_ref()
        .map_or(0, |stopped| stopped.elapsed().as_nanos() as u64);
    let stood_still = stopped.is_some();
    drop(stopped);
    let cgroup = machine::cgroup(pid).map_err(|reason| not_seen.push(reason)).ok();
    let program = std::fs::read_link(format!("/proc/{pid}/exe"))
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    not_seen.sort_unstable();
    not_seen.dedup();
    Ok(Capture {
        target: Target {
            pid,
            name,
            command,
            threads,
            glibc: library.as_ref().ok().map(|library| library.anatomy.version.to_string()),
            library: library.as_ref().ok().map(|library| library.path.clone()),
            other_allocator: other_allocator(&mappings),
        },
        taken: Taken {
            unix_ms: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_millis() as u64),
            process_age_ns: proc_file::age_ns(pid).unwrap_or(0),
            stopped: stood_still,
            stopped_ns,
            retries,
            ran_on: false,
            duration_ns: begun.elapsed().as_nanos() as u64,
            page_size: page,
        },
        mappings,
        residency,
        stack_pointers,
        program,
        library: library.ok(),
        heap,
        environment: proc_file::malloc_environment(pid),
        not_seen,
        machine: machine::machine(),
        cgroup,
    })
}

fn pages(pid: u32, page: u64, not_seen: &mut Vec<String>) -> Result<(Vec<Mapping>, Residency)> {
    let mappings = mappings::read_smaps(pid)?;
    let residency = mappings::read_residency(pid, &mappings, page).unwrap_or_else(|error| {
        not_seen.push(format!("which pages are in memory ({error:#}); all are taken to be"));
        mappings::assumed_residency(&mappings, page)
    });
    Ok((mappings, residency))
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
