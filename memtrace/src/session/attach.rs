//! Programs to their places, and away again.

use std::num::NonZeroU32;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use aya::Ebpf;
use aya::programs::raw_trace_point::RawTracePointLink;
use aya::programs::trace_point::TracePointLink;
use aya::programs::uprobe::UProbeScope;
use aya::programs::{Program, RawTracePoint, TracePoint, UProbe};
use memtrace_analysis::event::{Depth, Entry, SyscallKind};

use crate::privileges::{self, Capabilities, Task};
use crate::probe::ProbePlan;
use crate::target::{MappedLibrary, Target};

use super::decode::FileId;
use super::multi::Programs;
use super::probed;
use super::unwind::Unwinder;

/// A place in a library, as it will be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    pub entry: Entry,
    /// ELF virtual address and file offset of the probed instruction.
    pub address: u64,
    pub file_offset: u64,
    pub stack_moved: u32,
    pub first_argument: u8,
    /// With a return probe at the same place.
    pub with_return: bool,
}

/// The places to probe.
///
/// A return probe exchanges the word at the stack pointer, so it can only be where the stack pointer has not moved; and
/// the entry probe must not come after it, since it would take the exchanged word for the return address. So both sit
/// at one place: the plan's, or where the stack pointer has moved by then, the function's first instruction.
pub fn sites(plan: &ProbePlan, returns: bool) -> Vec<Site> {
    plan.sites
        .iter()
        .map(|site| {
            let with_return = returns && matches!(site.entry, Entry::Realloc | Entry::MallocTrim);
            let back = if with_return && site.stack_moved != 0 {
                site.offset
            } else {
                0
            };
            Site {
                entry: site.entry,
                address: site.function + site.offset - back,
                file_offset: site.file_offset - back,
                stack_moved: if back == 0 { site.stack_moved } else { 0 },
                first_argument: if back == 0 { site.first_argument } else { 0 },
                with_return,
            }
        })
        .collect()
}

/// Where thread exit is seen, by the file offsets of the code that makes its frees; None when that code cannot be told
/// from what lies around it.
pub fn thread_exits(plan: &ProbePlan, unwinder: Option<&mut Unwinder>) -> Option<Vec<u64>> {
    let first = plan.sites.first()?;
    let in_file = first.file_offset.wrapping_sub(first.function + first.offset);
    let unwinder = unwinder?;
    let mut places = plan
        .spurious_free_returns
        .iter()
        .map(|&behind| Some(unwinder.function(behind - 1)?.wrapping_add(in_file)))
        .collect::<Option<Vec<u64>>>()?;
    places.sort_unstable();
    places.dedup();
    Some(places)
}

/// By which tracepoints memory system calls are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// By those of each kind: for long. While one of them is there, every system call takes the kernel's slow way; and the
    /// kernel takes them away one after the other, with a grace period for each, together half a second and more.
    Tracepoints,
    /// By the two that every system call passes. They cost more a call, and go at once: for windows.
    EveryCall,
    /// Not at all.
    None,
}

/// Everything that is attached; closing a link takes it away.
#[derive(Default)]
pub struct Links {
    tracepoints: Vec<TracePointLink>,
    /// Those of system calls.
    syscalls: Vec<TracePointLink>,
    /// At what every system call passes.
    every_call: Vec<RawTracePointLink>,
    raw: Vec<RawTracePointLink>,
    probes: Vec<Attached>,
    /// Files that are others by another mount: a container's, and the one that is probed.
    same: Vec<(FileId, FileId)>,
    /// Probes on their way out.
    closing: Vec<JoinHandle<Duration>>,
    /// Tracepoints of system calls on their way out.
    syscalls_closing: Option<JoinHandle<()>>,
    attach_time: Duration,
    detach_time: Duration,
    /// The programs of the probes, where they are not aya's.
    multi: Option<Programs>,
}

/// A program and where it sits, by file offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub program: String,
    pub offset: u64,
}

struct Attached {
    scope: Scope,
    /// The library.
    file: FileId,
    place: Place,
    link: Link,
}

/// Where a probe is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// In this process alone.
    Process(u32),
    /// In all that map the file: any of them may be a child of a process that is traced, or become one. Probed once,
    /// however many processes are traced, and for as long as any is.
    All,
}

/// What holds a probe in its place, of either kind; dropped, it is gone.
pub type Link = Box<dyn Send>;

/// The programs and places of a depth.
pub fn places(plan: &ProbePlan, sites: &[Site], thread_exits: &[u64], depth: Depth) -> Vec<Place> {
    let mut places = Vec::new();
    let mut add = |program: String, offset| places.push(Place { program, offset });
    for site in sites.iter().filter(|site| is_probed(site.entry, depth)) {
        let name = site.entry.name();
        add(format!("on_{name}"), site.file_offset);
        // What realloc came to is only counted.
        if site.with_return && (depth == Depth::Calls || site.entry == Entry::MallocTrim) {
            add(format!("on_{name}_return"), site.file_offset);
        }
    }
    match (depth, &plan.slow_path) {
        (Depth::Calls, _) => thread_exits
            .iter()
            .for_each(|&place| add(String::from("on_thread_exit"), place)),
        (Depth::SlowPath, Ok(slow)) => add(String::from("on_slow_path"), slow.file_offset),
        _ => {}
    }
    places
}

/// The slow path has no need of a probe at the entry points that lead to it and nowhere else than to a thread cache. The
/// others are never served by one in most releases, and say what is asked for as no later place does.
pub const fn is_probed(entry: Entry, depth: Depth) -> bool {
    match depth {
        Depth::Calls => true,
        Depth::SlowPath => !matches!(entry, Entry::Malloc | Entry::Calloc | Entry::Free),
        Depth::Syscalls | Depth::Nothing => false,
    }
}

/// Tracepoints besides those of the system calls: program, category, name.
const SIGNAL: (&str, &str, &str) = ("signal_deliver", "signal", "signal_deliver");
const SIGRETURN: (&str, &str, &str) = ("enter_rt_sigreturn", "syscalls", "sys_enter_rt_sigreturn");
/// At what every system call passes; few traces need them, and so they are loaded when one does.
const EVERY_ENTRY: &str = "sys_enter";
const EVERY_EXIT: &str = "sys_exit";
const LIFE: [&str; 3] = ["task_newtask", "sched_process_exec", "sched_process_exit"];

impl Links {
    /// Has the kernel verify and load every program.
    pub fn load_programs(&mut self, object: &[u8], ebpf: &mut Ebpf) -> Result<()> {
        self.multi = Programs::load(object, ebpf)?;
        for (name, program) in ebpf.programs_mut() {
            match program {
                Program::UProbe(_) if self.multi.is_some() => Ok(()),
                Program::UProbe(program) => program.load(),
                Program::TracePoint(program) => program.load(),
                Program::RawTracePoint(_) if [EVERY_ENTRY, EVERY_EXIT].contains(&name) => Ok(()),
                Program::RawTracePoint(program) => program.load(),
                _ => return Err(anyhow!("the kernel side has a program of an unexpected kind, {name}")),
            }
            .with_context(|| format!("having the kernel verify the program {name}"))?;
        }
        Ok(())
    }

    pub fn attach_tracepoints(&mut self, ebpf: &mut Ebpf) -> Result<()> {
        self.attach_syscalls(ebpf)?;
        self.tracepoints.push(tracepoint(ebpf, SIGNAL)?);
        for name in LIFE {
            self.raw.push(raw_tracepoint(ebpf, name)?);
        }
        Ok(())
    }

    /// Those of system calls.
    pub fn attach_syscalls(&mut self, ebpf: &mut Ebpf) -> Result<()> {
        for kind in SyscallKind::ALL {
            for (program, side) in [("enter_syscall", "enter"), ("exit_syscall", "exit")] {
                let name = format!("sys_{side}_{}", kind.name());
                self.syscalls.push(tracepoint(ebpf, (program, "syscalls", &name))?);
            }
        }
        self.syscalls.push(tracepoint(ebpf, SIGRETURN)?);
        Ok(())
    }

    /// Takes those of system calls away, beside what goes on.
    pub fn close_syscalls(&mut self) {
        let links = std::mem::take(&mut self.syscalls);
        let before = self.syscalls_closing.take();
        self.syscalls_closing = Some(thread::spawn(move || {
            close(links);
            // A thread that only closes files does not panic.
            before.map(JoinHandle::join);
        }));
    }

    /// Those of system calls that are no longer wanted are all gone.
    pub fn syscalls_are_closed(&self) -> bool {
        self.syscalls_closing.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Has the kernel verify and load what sees every system call; nothing where it has done so.
    pub fn load_every_call(ebpf: &mut Ebpf) -> Result<()> {
        for name in [EVERY_ENTRY, EVERY_EXIT] {
            let program: &mut RawTracePoint = find(ebpf, name)?;
            program
                .load()
                .with_context(|| format!("having the kernel verify the program {name}"))?;
        }
        Ok(())
    }

    /// Every system call is seen as it begins, and so counted; `ends`: also as it ends, as watching takes.
    pub fn attach_every_call(&mut self, ebpf: &mut Ebpf, ends: bool) -> Result<()> {
        self.every_call.push(raw_tracepoint(ebpf, EVERY_ENTRY)?);
        if ends {
            self.every_call.push(raw_tracepoint(ebpf, EVERY_EXIT)?);
        }
        Ok(())
    }

    /// The kernel does not wait for anything here.
    pub fn close_every_call(&mut self) {
        self.every_call.clear();
    }

    /// Probes a library as `target` maps it at these places and no others: in that process alone, or with `follow` in all
    /// that map it (a child must be probed before it runs; the kernel side tells whose hit it is). What is there already
    /// stays; what is there and not wanted is taken away meanwhile.
    pub fn set_probes(
        &mut self,
        ebpf: &mut Ebpf,
        target: &Target,
        library: &MappedLibrary,
        places: Vec<Place>,
        follow: bool,
    ) -> Result<()> {
        let (scope, file) = self.scope(target, library, &places, follow)?;
        let wanted = |probe: &Attached| probe.file == file && places.contains(&probe.place);
        let (kept, gone): (Vec<Attached>, Vec<Attached>) =
            std::mem::take(&mut self.probes)
                .into_iter()
                .partition(|probe| match scope {
                    Scope::Process(_) => probe.scope != scope || wanted(probe),
                    // Other files' are for other processes.
                    Scope::All => probe.scope != scope || probe.file != file || wanted(probe),
                });
        self.probes = kept;
        self.close_meanwhile(gone.into_iter().map(|probe| probe.link).collect());
        self.add(ebpf, target, library, places, (scope, file))
    }

    /// Those of them that are missing, beside what is there.
    pub fn add_probes(
        &mut self,
        ebpf: &mut Ebpf,
        target: &Target,
        library: &MappedLibrary,
        places: Vec<Place>,
        follow: bool,
    ) -> Result<()> {
        let where_to = self.scope(target, library, &places, follow)?;
        self.add(ebpf, target, library, places, where_to)
    }

    /// Whose calls probes are to see, and the file that they are in.
    fn scope(
        &mut self,
        target: &Target,
        library: &MappedLibrary,
        places: &[Place],
        follow: bool,
    ) -> Result<(Scope, FileId)> {
        let file = (library.device, library.inode);
        Ok(if follow {
            (Scope::All, self.probed_file(file, library, places)?)
        } else {
            (Scope::Process(target.pid), file)
        })
    }

    fn add(
        &mut self,
        ebpf: &mut Ebpf,
        target: &Target,
        library: &MappedLibrary,
        places: Vec<Place>,
        (scope, file): (Scope, FileId),
    ) -> Result<()> {
        let begin = Instant::now();
        for place in places {
            let there = |probe: &Attached| probe.scope == scope && probe.file == file && probe.place == place;
            if self.probes.iter().any(there) {
                continue;
            }
            let name = &place.program;
            let link = self
                .probe(ebpf, name, place.offset, &library.opened, scope)
                .with_context(refusal)
                .with_context(|| format!("probing {} of process {} for {name}", library.shown, target.pid))?;
            self.probes.push(Attached {
                scope,
                file,
                place,
                link,
            });
        }
        self.attach_time = self.attach_time.max(begin.elapsed());
        Ok(())
    }

    /// The file as whose probes those of `file` count: containers of one image map one file by several mounts.
    fn probed_file(&mut self, file: FileId, library: &MappedLibrary, places: &[Place]) -> Result<FileId> {
        if let Some((_, known)) = self.same.iter().find(|(other, _)| *other == file) {
            return Ok(*known);
        }
        let in_all = |probe: &&Attached| probe.scope == Scope::All;
        let has = |other: FileId| self.probes.iter().filter(in_all).any(|probe| probe.file == other);
        let alike = |other: FileId, place: &Place| {
            let mut of_other = self.probes.iter().filter(in_all).filter(|probe| probe.file == other);
            of_other.any(|probe| probe.place == *place)
        };
        let Some(first) = places.first().filter(|_| !has(file)) else {
            return Ok(file);
        };
        let mut others = self.probes.iter().filter(in_all).map(|probe| probe.file);
        let Some(other) = others.find(|other| places.iter().all(|place| alike(*other, place))) else {
            return Ok(file);
        };
        let probed = probed::is_probed(&library.opened, first.offset)
            .with_context(|| format!("looking for probes in {}", library.shown))?;
        if probed {
            self.same.push((file, other));
        }
        Ok(if probed { other } else { file })
    }

    /// Closes probes beside what goes on. They are not hit any more when the kernel begins to wait for its grace period.
    fn close_meanwhile(&mut self, links: Vec<Link>) {
        let (done, going_on): (Vec<_>, Vec<_>) = std::mem::take(&mut self.closing)
            .into_iter()
            .partition(JoinHandle::is_finished);
        self.closing = going_on;
        self.join(done);
        if !links.is_empty() {
            self.closing.push(thread::spawn(move || timed(|| close(links))));
        }
    }

    fn join(&mut self, handles: Vec<JoinHandle<Duration>>) {
        for handle in handles {
            // A thread that only closes files does not panic.
            if let Ok(took) = handle.join() {
                self.detach_time = self.detach_time.max(took);
            }
        }
    }

    /// Longest time that probes took to be put in place at once, and to be taken away.
    pub fn times(&mut self) -> (Duration, Duration) {
        self.close_meanwhile(Vec::new());
        (self.attach_time, self.detach_time)
    }

    /// A probe in any file, for one process.
    pub fn probe_own(&self, ebpf: &mut Ebpf, name: &str, place: u64, file: &Path, pid: u32) -> Result<Link> {
        self.probe(ebpf, name, place, file, Scope::Process(pid))
            .with_context(refusal)
    }

    /// Has the end of a thread that closes probes waited for at the end of the session.
    pub fn wait_for(&mut self, closing: JoinHandle<()>) {
        self.closing.push(thread::spawn(move || {
            // A thread that only closes files does not panic.
            timed(|| drop(closing.join()))
        }));
    }

    fn probe(&self, ebpf: &mut Ebpf, name: &str, place: u64, file: &Path, scope: Scope) -> Result<Link> {
        let pid = match scope {
            Scope::Process(pid) => NonZeroU32::new(pid),
            Scope::All => None,
        };
        if let Some(multi) = &self.multi {
            let pid = pid.map(NonZeroU32::get);
            return Ok(Box::new(multi.attach(name, place, file, pid)?));
        }
        let program: &mut UProbe = find(ebpf, name)?;
        let scope = pid.map_or(UProbeScope::AllProcesses, UProbeScope::OneProcess);
        let id = program.attach(place, file, scope)?;
        Ok(Box::new(program.take_link(id)?))
    }

    /// Probes are links of their own, not perf events.
    pub const fn are_side_by_side(&self) -> bool {
        self.multi.is_some()
    }

    /// Whether there are probes in this process alone.
    pub fn has_own(&self, pid: u32) -> bool {
        self.probes.iter().any(|probe| probe.scope == Scope::Process(pid))
    }

    /// Takes the probes away that are in one process alone.
    pub fn detach_process(&mut self, pid: u32) {
        let (gone, kept): (Vec<Attached>, Vec<Attached>) = std::mem::take(&mut self.probes)
            .into_iter()
            .partition(|probe| probe.scope == Scope::Process(pid));
        self.probes = kept;
        close(gone.into_iter().map(|probe| probe.link).collect());
    }

    pub fn detach_all(&mut self) {
        let mut tracepoints = std::mem::take(&mut self.tracepoints);
        tracepoints.append(&mut self.syscalls);
        self.close_every_call();
        let raw = std::mem::take(&mut self.raw);
        let probes: Vec<Link> = std::mem::take(&mut self.probes)
            .into_iter()
            .map(|probe| probe.link)
            .collect();
        let had_probes = !probes.is_empty();
        let took = thread::scope(|scope| {
            scope.spawn(|| close(tracepoints));
            scope.spawn(|| close(raw));
            scope.spawn(|| timed(|| close(probes))).join()
        });
        if let (Ok(took), true) = (took, had_probes) {
            self.detach_time = self.detach_time.max(took);
        }
        let closing = std::mem::take(&mut self.closing);
        self.join(closing);
        // A thread that only closes files does not panic.
        self.syscalls_closing.take().map(JoinHandle::join);
    }
}

fn tracepoint(ebpf: &mut Ebpf, (program, category, name): (&str, &str, &str)) -> Result<TracePointLink> {
    let program: &mut TracePoint = find(ebpf, program)?;
    let context = || format!("attaching to the tracepoint {category}:{name}");
    let id = program.attach(category, name).with_context(context)?;
    program.take_link(id).with_context(context)
}

/// The program has its tracepoint's name.
fn raw_tracepoint(ebpf: &mut Ebpf, name: &str) -> Result<RawTracePointLink> {
    let program: &mut RawTracePoint = find(ebpf, name)?;
    let context = || format!("attaching to the tracepoint {name}");
    let id = program.attach(name).with_context(context)?;
    program.take_link(id).with_context(context)
}

fn timed(what: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    what();
    begin.elapsed()
}

/// What stands behind the kernel's refusal of a probe, as far as it can be told.
fn refusal() -> String {
    let capabilities = Capabilities::effective().unwrap_or_default();
    match privileges::missing(capabilities, &[Task::AttachProbes]).first() {
        Some(missing) => missing.to_string(),
        None => String::from("the kernel refused the probe"),
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        let Self {
            tracepoints,
            syscalls,
            every_call,
            raw,
            probes,
            closing,
            syscalls_closing,
            ..
        } = self;
        let attached = !tracepoints.is_empty() || !syscalls.is_empty() || !every_call.is_empty();
        let closing = !closing.is_empty() || syscalls_closing.is_some();
        if attached || !raw.is_empty() || !probes.is_empty() || closing {
            self.detach_all();
        }
    }
}

/// Closing one waits for the kernel's grace period, about 100 ms: so each has a thread, and they wait together (those of
/// perf events still in turn, for the kernel's lock over them).
fn close<T: Send>(links: Vec<T>) {
    thread::scope(|scope| {
        for link in links {
            scope.spawn(move || drop(link));
        }
    });
}

fn find<'a, T>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut T>
where
    &'a mut T: TryFrom<&'a mut Program, Error = aya::programs::ProgramError>,
{
    let program = ebpf
        .program_mut(name)
        .ok_or_else(|| anyhow!("the kernel side has no program {name}"))?;
    <&mut T>::try_from(program).with_context(|| format!("the kernel side's program {name} is of another kind"))
}
