//! The kernel side's tables: which process has which place, what it is told there, and what it has counted.

use anyhow::{Context, Result, ensure};
use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, MapError, Queue};
use memtrace_common::{Counters, ProcessState, ThreadState, active, map_names};

use super::state::{self, RawCounters, RawProcess, RawThread};
use super::{Options, take_map};

/// A process's place in the tables, or a thread's in its own.
type Place = u32;

pub struct Tables {
    places: HashMap<MapData, u32, Place>,
    states: Array<MapData, RawProcess>,
    counters: Array<MapData, RawCounters>,
    free: Queue<MapData, Place>,
    threads: HashMap<MapData, u64, Place>,
    thread_states: Array<MapData, RawThread>,
    free_threads: Queue<MapData, Place>,
    shards: u32,
}

impl Tables {
    /// Takes the maps of a kernel side that was loaded with these sizes.
    pub fn new(ebpf: &mut Ebpf, sizes: &Options, shards: u32) -> Result<Self> {
        let mut tables = Self {
            places: open(ebpf, map_names::PROCESSES)?,
            states: open(ebpf, map_names::STATES)?,
            counters: open(ebpf, map_names::COUNTERS)?,
            free: open(ebpf, map_names::FREE_PLACES)?,
            threads: open(ebpf, map_names::THREADS)?,
            thread_states: open(ebpf, map_names::THREAD_STATES)?,
            free_threads: open(ebpf, map_names::FREE_THREADS)?,
            shards,
        };
        for place in 0..sizes.processes {
            tables.free.push(place, 0).context("listing the places for processes")?;
        }
        for place in 0..sizes.threads {
            let listing = "listing the places for threads";
            tables.free_threads.push(place, 0).context(listing)?;
        }
        Ok(tables)
    }

    /// What the kernel side was told of a process; None when it does not trace it.
    pub fn get(&self, pid: u32) -> Option<ProcessState> {
        let RawProcess(state) = self.states.get(&self.place(pid)?, 0).ok()?;
        Some(state)
    }

    /// Tells it something new, or takes the process up. Counters are not touched.
    pub fn set(&mut self, state: ProcessState) -> Result<()> {
        let pid = state.pid;
        let adding = || format!("making room for process {pid} in the kernel side");
        if let Some(place) = self.place(pid) {
            return self
                .states
                .set(place, RawProcess(state), 0)
                .with_context(|| format!("telling the kernel side of process {pid}"));
        }
        let place = match self.free.pop(0) {
            Ok(place) => Some(place),
            Err(MapError::ElementNotFound) => None,
            Err(error) => return Err(error).with_context(adding),
        };
        ensure!(place.is_some(), "as many processes are traced as there is room for");
        let place = place.unwrap_or_default();
        self.states.set(place, RawProcess(state), 0).with_context(adding)?;
        self.places.insert(pid, place, 0).with_context(adding)
    }

    /// What a process has counted; None when it is not traced (any more).
    pub fn counters(&self, pid: u32) -> Option<Counters> {
        let place = self.place(pid)?;
        let mut sum = Counters::ZERO;
        for shard in 0..self.shards {
            let RawCounters(counters) = self.counters.get(&(place * self.shards + shard), 0).ok()?;
            state::add(&mut sum, &counters);
        }
        Some(sum)
    }

    pub fn pids(&self) -> Vec<u32> {
        self.places.keys().filter_map(Result::ok).collect()
    }

    /// Forgets a process and its threads.
    pub fn remove(&mut self, pid: u32) -> Result<()> {
        let Some(place) = self.place(pid) else { return Ok(()) };
        let removing = || format!("removing process {pid} from the kernel side");
        let mut last = state::new_process(pid);
        last.active = active::NOT_YET;
        self.states.set(place, RawProcess(last), 0).with_context(removing)?;
        self.places.remove(&pid).with_context(removing)?;
        let keys: Vec<u64> = self.threads.keys().filter_map(Result::ok).collect();
        for key in keys.into_iter().filter(|key| (key >> 32) as u32 == pid) {
            self.remove_thread(key).with_context(removing)?;
        }
        for shard in 0..self.shards {
            self.counters
                .set(place * self.shards + shard, RawCounters(Counters::ZERO), 0)
                .with_context(removing)?;
        }
        self.free.push(place, 0).with_context(removing)
    }

    /// Gives a thread's place back. It may end meanwhile, which does so too: who takes it out of the table has done it.
    fn remove_thread(&mut self, key: u64) -> Result<(), MapError> {
        let place = match self.threads.get(&key, 0) {
            Ok(place) => place,
            Err(MapError::KeyNotFound) => return Ok(()),
            Err(error) => return Err(error),
        };
        match self.threads.remove(&key) {
            Ok(()) => {}
            Err(MapError::KeyNotFound) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.thread_states.set(place, RawThread(ThreadState::NOBODY), 0)?;
        self.free_threads.push(place, 0)
    }

    fn place(&self, pid: u32) -> Option<Place> {
        self.places.get(&pid, 0).ok()
    }
}

fn open<T>(ebpf: &mut Ebpf, name: &'static str) -> Result<T>
where
    T: TryFrom<aya::maps::Map, Error = MapError>,
{
    T::try_from(take_map(ebpf, name)?).with_context(|| format!("opening the table {name} of the kernel side"))
}
