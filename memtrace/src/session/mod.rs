//! Loads the kernel side, attaches it, and turns what it sends into events. The only user of aya and of the raw ABI.
//!
//! ```text
//! load     requirements -> tracefs -> kernel facts -> programs loaded, tracepoints attached
//! add      target + plan -> process state, uprobes
//! events   ring buffer -> raw record -> Event           totals   counters -> Totals
//! detach   all links closed side by side
//! ```

mod attach;
mod btf;
mod calibrate;
mod decode;
mod depth;
mod diagnostics;
mod facts;
mod follow;
mod held;
mod memory;
mod multi;
mod object;
mod probed;
mod requirements;
mod returns;
mod state;
mod tables;
mod tracefs;
mod unwind;

use crate::page_size::page_size;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use aya::maps::{MapData, RingBuf};
use aya::{Ebpf, EbpfLoader};
use aya_log::EbpfLogger;
use memtrace_analysis::event::{Capabilities, Depth, Event, EventKind, Totals};
use memtrace_common::{ProcessState, active, global_names, map_names, untouched};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout_at};

use crate::probe::ProbePlan;
use crate::target::{MappedLibrary, Target};

use attach::Links;
use decode::Decoder;
use depth::Watched;
use diagnostics::StandardError;
use facts::{Found, RawKernelFacts};
use tables::Tables;
use unwind::Unwinder;

pub use attach::Source;
pub use calibrate::{Calibration, EveryCall, SystemCall};
pub use memory::bound as memory_bound;
pub use object::has_kernel_side;
pub use requirements::{check as check_requirements, release as check_release};
pub use returns::are_safe as return_probes_are_safe;
pub use tracefs::mount_if_missing;

/// How long a record of no urgency may lie in the ring buffer before it is taken.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Sizes of what the kernel side keeps; all of it is allocated when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of the ring buffer: a power of two, at least a page.
    pub ring_bytes: u32,
    pub processes: u32,
    pub threads: u32,
    /// Let the kernel side say on standard error what it does.
    pub debug: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ring_bytes: 8 << 20,
            processes: 256,
            threads: 16384,
            debug: false,
        }
    }
}

/// From when on a process counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    Now,
    /// When [`Session::activate`] says so.
    Later,
}

/// A loaded kernel side. Dropping it detaches everything.
pub struct Session {
    ring: AsyncFd<RingBuf<MapData>>,
    /// When the ring buffer is looked into without being woken; kept here, since waiting is given up now and then.
    next_look: Instant,
    tables: Tables,
    links: Links,
    ebpf: Ebpf,
    log: Option<EbpfLogger<StandardError>>,
    facts: Found,
    decoder: Decoder,
    /// Processes with a libc that can be probed.
    watched: BTreeMap<u32, Watched>,
    /// None where it could not be measured.
    system_call: Option<SystemCall>,
    /// How memory system calls are seen now, and how often that has changed.
    source: Source,
    pauses: u32,
}

/// A process as it was taken up.
#[derive(Clone, Debug)]
pub struct Added {
    pub capabilities: Capabilities,
    pub watching: Depth,
    /// Whose a system call is, is told by following the stack.
    pub followed: bool,
}

impl Session {
    /// Loads the kernel side and attaches to the system calls. Must be called inside a tokio runtime.
    ///
    /// A missing tracefs has to be mounted before ([`mount_if_missing`]), before the runtime starts its threads.
    pub fn load(options: &Options) -> Result<Self> {
        let object = object::embedded()?;
        requirements::check()?;
        let facts = facts::find();
        let shards = facts.kernel.shards;
        let kernel = RawKernelFacts(facts.kernel);
        let mut loader = EbpfLoader::new();
        loader
            .override_global(global_names::KERNEL, &kernel, true)
            .map_max_entries(map_names::EVENTS, options.ring_bytes)
            .map_max_entries(map_names::PROCESSES, options.processes)
            .map_max_entries(map_names::STATES, options.processes)
            .map_max_entries(map_names::COUNTERS, options.processes.saturating_mul(shards))
            .map_max_entries(map_names::FREE_PLACES, options.processes)
            .map_max_entries(map_names::THREADS, options.threads)
            .map_max_entries(map_names::THREAD_STATES, options.threads)
            .map_max_entries(map_names::FREE_THREADS, options.threads);
        diagnostics::set_level(&mut loader, options.debug);
        let mut ebpf = loader.load(object).context("loading the kernel side")?;
        let mut links = Links::default();
        links.load_programs(object, &mut ebpf)?;
        let ring = RingBuf::try_from(take_map(&mut ebpf, map_names::EVENTS)?).context("opening the ring buffer")?;
        let tables = Tables::new(&mut ebpf, options, shards)?;
        // SAFETY: the ring owns its file descriptor, always gives the same one, and is dropped by the AsyncFd alone.
        let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }
            .context("waiting for the ring buffer")?;
        let log = diagnostics::listen(&mut ebpf, options.debug)?;
        let mut child = calibrate::Child::start().ok();
        let bare_ns = child.as_mut().and_then(|child| child.time_system_call().ok());
        links.attach_tracepoints(&mut ebpf)?;
        let traced_ns = child.as_mut().and_then(|child| child.time_system_call().ok());
        let system_call = bare_ns
            .zip(traced_ns)
            .map(|(bare_ns, traced_ns)| SystemCall { bare_ns, traced_ns });
        Ok(Self {
            ring,
            next_look: Instant::now(),
            tables,
            links,
            ebpf,
            log,
            facts,
            decoder: Decoder::new(page_size()),
            watched: BTreeMap::new(),
            system_call,
            source: Source::Tracepoints,
            pauses: 0,
        })
    }

    /// What the tracepoints add to a system call here.
    pub const fn system_call(&self) -> Option<SystemCall> {
        self.system_call
    }

    /// What a trace without probes can see on this kernel.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            probed: Vec::new(),
            frame_check: self.facts.kernel.frame_check != 0,
            realloc_returns: false,
            trim_returns: false,
            heap_state: false,
            resident: self.facts.resident(),
            limits: self.facts.limits.clone(),
        }
    }

    /// Traces a process, its children too with `follow`: every call, with probes at the plan's sites in the libc it maps, or
    /// without a plan its system calls alone. What is then visible is returned.
    ///
    /// A process that is traced already keeps its counters and goes on being traced.
    pub fn add(
        &mut self,
        target: &Target,
        plan: Option<&ProbePlan>,
        follow: bool,
        begin: Begin,
    ) -> Result<Capabilities> {
        let added = self.add_at(Depth::Calls, target, plan, follow, begin)?;
        Ok(added.capabilities)
    }

    /// The same at a depth of choice, or at the next one that is possible.
    pub fn add_at(
        &mut self,
        wanted: Depth,
        target: &Target,
        plan: Option<&ProbePlan>,
        follow: bool,
        begin: Begin,
    ) -> Result<Added> {
        let mut capabilities = self.capabilities();
        let Some(plan) = plan else {
            self.tables.set(self.configured(target.pid, follow, begin))?;
            self.watched.remove(&target.pid);
            return Ok(Added {
                capabilities,
                watching: if self.source == Source::None {
                    Depth::Nothing
                } else {
                    Depth::Syscalls
                },
                followed: false,
            });
        };
        let library = target
            .libc
            .as_ref()
            .with_context(|| format!("process {} has no glibc to probe", target.pid))?;
        let sites = attach::sites(plan, returns::are_safe());
        let tables = self.follow_frames(target, library, plan, &mut capabilities)?;
        let followed = tables && self.facts.kernel.frame_check != 0;
        let depth = depth::possible(wanted, plan, followed, &mut capabilities.limits);
        let exits = attach::thread_exits(plan, self.decoder.unwinder(target.pid));
        let mut process = self.configured(target.pid, follow, begin);
        process.libc = state::libc_facts(plan, &sites, exits.as_deref());
        process.depth = state::depth_number(depth);
        // Hits may have come of another library's probes, after an exec.
        process.libc_base = if depth == Depth::Calls { 0 } else { library.base };
        if self.has_lost_its_probes(target.pid) {
            self.links.detach_process(target.pid);
            self.decoder.bereft.remove(&target.pid);
        }
        // Nothing is counted before all probes are there, or there would be mallocs without their frees; what is traced
        // already goes on.
        let wanted = process.active;
        process.active = self.tables.get(target.pid).map_or(active::NOT_YET, |now| now.active);
        self.tables.set(process)?;
        let watched = Watched {
            target: target.clone(),
            plan: plan.clone(),
            sites,
            exits: exits.unwrap_or_default(),
            follow,
        };
        let places = watched.places(depth);
        self.links.set_probes(&mut self.ebpf, target, library, places, follow)?;
        process.active = wanted;
        self.tables.set(process)?;
        capabilities.limits.extend(plan.limits.iter().cloned());
        capabilities.probed = watched.probed(depth);
        capabilities.heap_state = plan.main_arena.is_some() && plan.mp.is_some();
        state::returns_seen(&mut capabilities, plan, &watched.sites);
        self.watched.insert(target.pid, watched);
        Ok(Added {
            capabilities,
            watching: depth,
            followed,
        })
    }

    fn configured(&self, pid: u32, follow: bool, begin: Begin) -> ProcessState {
        let mut process = self.tables.get(pid).unwrap_or_else(|| state::new_process(pid));
        process.follow = u32::from(follow);
        process.untouched = untouched::ALL;
        process.source = state::source_number(self.source);
        process.pause = self.pauses;
        process.active = match begin {
            Begin::Now => active::NOW,
            Begin::Later => active::NOT_YET,
        };
        process
    }

    /// Prepares for following allocator frames through the process's libc; tells whether that can be done.
    fn follow_frames(
        &mut self,
        target: &Target,
        library: &MappedLibrary,
        plan: &ProbePlan,
        capabilities: &mut Capabilities,
    ) -> Result<bool> {
        let file = (library.device, library.inode);
        let unwinder = if self.decoder.knows(file) {
            None
        } else {
            let bytes = library.read().with_context(|| format!("reading {}", library.shown))?;
            Unwinder::for_library(&bytes, plan.text, plan.code.clone())
        };
        let can = self.decoder.set_library(target.pid, file, unwinder);
        if !can {
            capabilities.limits.push(format!(
                "{} has no unwind tables: which allocator call made a system call is likely, not proven",
                library.shown
            ));
        }
        Ok(can)
    }

    /// Begins to count a process that was added with [`Begin::Later`].
    pub fn activate(&mut self, pid: u32) -> Result<()> {
        let mut process = self
            .tables
            .get(pid)
            .with_context(|| format!("the kernel side does not know process {pid}"))?;
        process.active = active::NOW;
        self.tables.set(process)
    }

    /// A process's totals since its trace began; None when it is not traced (any more).
    pub fn totals(&self, pid: u32) -> Option<Totals> {
        Some(state::totals(&self.tables.counters(pid)?))
    }

    /// System calls of a process, of whatever kind, in the time in which they were counted.
    pub fn counted_syscalls(&self, pid: u32) -> u64 {
        self.tables.counters(pid).map_or(0, |counters| counters.all_syscalls)
    }

    /// Load address of the libc as the kernel side has seen it at the first hit; None before.
    pub fn libc_base(&self, pid: u32) -> Option<u64> {
        let base = self.tables.get(pid)?.libc_base;
        (base != 0).then_some(base)
    }

    /// Processes that the kernel side traces: those added, and with `follow` their children.
    pub fn pids(&self) -> Vec<u32> {
        self.tables.pids()
    }

    /// Forgets a process: its totals and what is kept of its threads.
    pub fn remove(&mut self, pid: u32) -> Result<()> {
        self.decoder.forget(pid);
        self.watched.remove(&pid);
        self.tables.remove(pid)
    }

    /// Waits until there are events and takes all that are there. Cancel-safe: nothing is taken before it is returned.
    pub async fn events(&mut self) -> Result<Vec<Event>> {
        loop {
            // The kernel side wakes us only for what cannot wait, and where records pile up.
            let events = match timeout_at(self.next_look, self.ring.readable_mut()).await {
                Ok(guard) => {
                    let mut guard = guard.context("waiting for the ring buffer")?;
                    let events = drain(guard.get_inner_mut(), &mut self.decoder);
                    guard.clear_ready();
                    events
                }
                Err(_) => drain(self.ring.get_mut(), &mut self.decoder),
            };
            self.next_look = Instant::now() + BETWEEN_LOOKS;
            if !events.is_empty() {
                self.note_children(&events);
                return Ok(events);
            }
        }
    }

    /// Takes the events that are there, without waiting; passes on what the kernel side has to say.
    pub fn pending(&mut self) -> Vec<Event> {
        if let Some(log) = &mut self.log {
            log.flush();
        }
        let events = drain(self.ring.get_mut(), &mut self.decoder);
        self.note_children(&events);
        events
    }

    /// A child that is followed is watched as its parent is, and goes on so when that has ended.
    fn note_children(&mut self, events: &[Event]) {
        for event in events {
            if let EventKind::Fork { child, followed: true } = event.kind
                && let Some(watched) = self.watched.get(&event.pid)
            {
                let watched = watched.of_child(child);
                self.watched.insert(child, watched);
            }
        }
    }

    /// Takes what is left when nothing comes any more, also what waited for more to be known of it.
    pub fn rest(&mut self) -> Vec<Event> {
        let mut events = self.pending();
        self.decoder.flush(None, &mut events);
        events
    }

    /// The same for a process that has ended.
    pub fn rest_of(&mut self, pid: u32) -> Vec<Event> {
        let mut events = self.pending();
        self.decoder.flush(Some(pid), &mut events);
        events
    }

    /// Records of a kind or length that this version does not know, by kind.
    pub fn unknown_records(&self) -> &BTreeMap<u16, u64> {
        &self.decoder.unknown
    }

    /// Whether this kernel takes probes away side by side, in about 100 ms, or one after the other.
    pub fn detaches_together(&self) -> bool {
        self.links.are_side_by_side()
    }

    /// Whether the probes of a process are gone since it replaced its program: where they were its alone, they do not
    /// outlive an exec that another thread than the first has made. Adding it again sets new ones.
    pub fn has_lost_its_probes(&self, pid: u32) -> bool {
        self.decoder.bereft.contains(&pid) && self.links.has_own(pid)
    }

    /// Takes the probes of a process away and keeps the rest; those that are for its children too are the session's.
    pub fn detach_process(&mut self, pid: u32) {
        self.links.detach_process(pid);
    }

    /// Takes all probes away. Totals and pending events can still be read.
    pub fn detach(&mut self) {
        self.links.detach_all();
    }
}

fn drain(ring: &mut RingBuf<MapData>, decoder: &mut Decoder) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(record) = ring.next() {
        decoder.take(&record, &mut events);
    }
    events
}

fn take_map(ebpf: &mut Ebpf, name: &str) -> Result<aya::maps::Map> {
    ebpf.take_map(name)
        .ok_or_else(|| anyhow!("the kernel side has no map {name}"))
}
