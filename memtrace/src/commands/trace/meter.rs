//! What the trace takes from the processes: hits, times what one costs here, and system calls, times what each is made longer
//! by, beside the CPU time that they use.
//!
//! How many system calls there are is not known while they are watched by the tracepoints of memory system calls, which no
//! other call passes. The time in the kernel bounds it; where that could be more than next to nothing, they are counted
//! for some milliseconds now and then (`look`), and what was counted stands for the time up to the next look.

use std::collections::BTreeMap;

use memtrace_analysis::event::{Cost, Entry, Totals};

use crate::probe::CostClass;
use crate::session::{Calibration, EveryCall, Source, SystemCall};

/// A part of a system call's time is shown as the program's own: of a loop of getppid one fifth.
const SHOWN_AS_OWN: f64 = 1.25;

pub struct Meter {
    calibration: Option<Calibration>,
    system_call: Option<SystemCall>,
    max_share: f64,
    /// What it costs to see every system call; None before that can be.
    every_call: Option<EveryCall>,
    seeing: Seeing,
    spent: BTreeMap<u32, Spent>,
    /// CPU time and cost of processes that have ended.
    gone: (u64, u64),
}

/// How system calls are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeing {
    pub source: Source,
    /// They are counted besides.
    pub counting: bool,
}

/// Of one process, since its trace began.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// What the process had used by then.
    cpu_before_ns: u64,
    cpu_ns: u64,
    hits: u64,
    trace_ns: u64,
    /// Of it, what probes took that were not counted any more, since they were on their way out.
    going_ns: u64,
    /// What hits had taken when a stretch of time began.
    marked_ns: u64,
    /// Time in the kernel, of that before the trace and of it.
    system_before_ns: u64,
    system_ns: u64,
    /// System calls counted so far, and what all of them have cost.
    counted: u64,
    syscalls_ns: u64,
    /// CPU time and system calls as counting began.
    counting_since: (u64, u64),
    /// System calls per nanosecond of CPU time, by the last look.
    rate: Option<f64>,
    /// CPU time of which their number is not known, but that it was low.
    unknown_ns: u64,
    /// What was seen when the bound was last asked for: CPU time, time in the kernel.
    bounded: (u64, u64),
}

impl Meter {
    pub const fn new(calibration: Option<Calibration>, system_call: Option<SystemCall>, max_share: f64) -> Self {
        Self {
            calibration,
            system_call,
            max_share,
            every_call: None,
            seeing: Seeing {
                source: Source::Tracepoints,
                counting: false,
            },
            spent: BTreeMap::new(),
            gone: (0, 0),
        }
    }

    /// Nanoseconds of a hit of a cheap probe: measured, or what was measured elsewhere at most.
    fn hit_ns(&self) -> f64 {
        let typical = f64::from(CostClass::Emulated.typical_ns().1);
        self.calibration.map_or(typical, |calibration| calibration.hit_ns)
    }

    /// A process is traced from its birth.
    pub fn born(&mut self, pid: u32) {
        self.spent.insert(pid, Spent::default());
    }

    /// A running process's trace begins.
    pub fn begin(&mut self, pid: u32) {
        let spent = Spent {
            cpu_before_ns: cpu_time_ns(pid).unwrap_or(0),
            system_before_ns: system_time_ns(pid).unwrap_or(0),
            ..Spent::default()
        };
        self.spent.insert(pid, spent);
    }

    /// Takes in what a process has come to; `stepped` are the entry points whose probes are of the dear kind.
    pub fn read(&mut self, pid: u32, totals: &Totals, stepped: &[Entry], counted: u64) {
        let hit_ns = self.hit_ns();
        let (source, added_ns, counted_ns) = (self.seeing.source, self.added_ns(), self.counted_ns());
        let spent = self.spent.entry(pid).or_default();
        // One that has just ended has used what it had used when last asked, and a little more.
        let before_ns = spent.cpu_ns;
        if let Some(now) = cpu_time_ns(pid) {
            spent.cpu_ns = spent.cpu_ns.max(now.saturating_sub(spent.cpu_before_ns));
        }
        let used_ns = spent.cpu_ns - before_ns;
        let calls = counted.saturating_sub(spent.counted);
        spent.counted = spent.counted.max(counted);
        match counted_ns {
            _ if source == Source::None => {}
            Some(ns) => spent.syscalls_ns += (calls as f64 * ns) as u64,
            None => match spent.rate {
                Some(rate) => spent.syscalls_ns += (rate * used_ns as f64 * added_ns) as u64,
                None => spent.unknown_ns += used_ns,
            },
        }
        spent.hits = totals.hits;
        let dear: u64 = Entry::ALL
            .iter()
            .zip(totals.calls)
            .filter(|(entry, _)| stepped.contains(entry))
            .map(|(_, calls)| calls)
            .sum();
        let (cheap, stepped) = (
            CostClass::Emulated.typical_ns().1,
            CostClass::SingleStepped.typical_ns().1,
        );
        let more = f64::from(stepped) / f64::from(cheap) - 1.0;
        let counted_ns = ((totals.hits as f64 + dear as f64 * more) * hit_ns) as u64;
        spent.trace_ns = counted_ns + spent.going_ns;
    }

    fn added_ns(&self) -> f64 {
        self.system_call.map_or(0.0, |call| call.added_ns())
    }

    /// What a system call costs that is counted now; None while they are not.
    fn counted_ns(&self) -> Option<f64> {
        match self.seeing {
            Seeing {
                source: Source::EveryCall,
                ..
            } => self.every_call.map(|every| every.watched_ns),
            Seeing { counting: true, .. } => self.every_call.map(|every| every.counted_ns + self.added_ns()),
            Seeing { .. } => None,
        }
    }

    /// System calls can be counted. What watching one in a window costs, as a multiple of what it costs outside of pauses.
    pub fn can_count(&mut self, every_call: EveryCall) -> f64 {
        self.every_call = Some(every_call);
        every_call.watched_ns / self.added_ns().max(1.0)
    }

    pub const fn max_share(&self) -> f64 {
        self.max_share
    }

    pub const fn counts(&self) -> bool {
        self.every_call.is_some()
    }

    /// From now on system calls are seen otherwise. What has been counted up to here says how many there are.
    pub fn see(&mut self, seeing: Seeing) {
        let counted_ns = self.counted_ns().map(|ns| ns - self.added_ns());
        for spent in self.spent.values_mut() {
            let (cpu_ns, counted) = spent.counting_since;
            let used_ns = spent.cpu_ns.saturating_sub(cpu_ns) as f64;
            if let Some(more_ns) = counted_ns
                && used_ns > 0.0
            {
                let calls = spent.counted.saturating_sub(counted) as f64;
                // Without what counting itself took, more get done in the same time; what was measured is not exact.
                spent.rate = Some(calls / (used_ns - calls * more_ns.max(0.0)).max(0.25 * used_ns));
            }
            spent.counting_since = (spent.cpu_ns, spent.counted);
        }
        self.seeing = seeing;
    }

    pub const fn seeing(&self) -> Seeing {
        self.seeing
    }

    /// The share of the CPU time since this was last asked that watching system calls has taken at most, by the time in the
    /// kernel.
    pub fn most_since(&mut self) -> f64 {
        let (mut cpu, mut system) = (0, 0);
        for (&pid, spent) in &mut self.spent {
            let (cpu_ns, system_ns) = spent.bounded;
            if let Some(now) = system_time_ns(pid) {
                spent.system_ns = spent.system_ns.max(now.saturating_sub(spent.system_before_ns));
            }
            cpu += spent.cpu_ns.saturating_sub(cpu_ns);
            system += spent.system_ns.saturating_sub(system_ns);
            spent.bounded = (spent.cpu_ns, spent.system_ns);
        }
        let most = self.system_call.map_or(0.0, |call| call.most());
        (SHOWN_AS_OWN * system as f64 / cpu.max(1) as f64).min(1.0) * most
    }

    /// The share of CPU time that system calls are made longer by, by the last look; None where there was none.
    pub fn share_of_syscalls(&self) -> Option<f64> {
        let rates = self.spent.values().filter_map(|spent| spent.rate);
        let most = rates.reduce(f64::max)?;
        Some(most * self.added_ns())
    }

    /// A stretch of time begins.
    pub fn mark(&mut self) {
        for spent in self.spent.values_mut() {
            spent.marked_ns = spent.trace_ns;
        }
    }

    /// Probes that were hit as they were in the stretch of time that ends are taken away: for a while they are still hit.
    pub fn take_away(&mut self, stretch_ns: u64) {
        let going_ns = self.calibration.map_or(0, |calibration| calibration.going_ns) as f64;
        for spent in self.spent.values_mut() {
            let in_stretch = spent.trace_ns.saturating_sub(spent.marked_ns) as f64;
            let going = (in_stretch / stretch_ns.max(1) as f64 * going_ns) as u64;
            spent.going_ns += going;
            spent.trace_ns += going;
        }
    }

    pub fn cost(&mut self, pid: u32, (attach_ns, detach_ns): (u64, u64)) -> Option<Cost> {
        let spent = self.spent.get_mut(&pid)?;
        if let Some(now) = system_time_ns(pid) {
            spent.system_ns = spent.system_ns.max(now.saturating_sub(spent.system_before_ns));
        }
        let in_system_calls = (SHOWN_AS_OWN * spent.system_ns as f64).min(spent.cpu_ns as f64);
        // By their number where it is known, and of the rest of the time no more than the kernel's part of it.
        let of_unknown = spent.unknown_ns as f64 / spent.cpu_ns.max(1) as f64;
        let at_most = |call: SystemCall| (in_system_calls * call.most() * of_unknown) as u64;
        Some(Cost {
            hits: spent.hits,
            hit_ns: self.calibration.map(|calibration| calibration.hit_ns),
            trace_ns: spent.trace_ns,
            cpu_ns: spent.cpu_ns,
            max_share: Some(self.max_share),
            attach_ns,
            detach_ns,
            pause_ns: self.calibration.map(|calibration| calibration.pause_ns),
            syscall_ns: self.system_call.map(|call| call.added_ns()),
            syscalls_ns: self.system_call.map(|call| spent.syscalls_ns + at_most(call)),
        })
    }

    /// A process has ended.
    pub fn end(&mut self, pid: u32) {
        if let Some(spent) = self.spent.remove(&pid) {
            self.gone.0 += spent.cpu_ns;
            self.gone.1 += spent.trace_ns + spent.syscalls_ns;
        }
    }

    /// CPU time and cost of all processes so far, those that have ended included.
    pub fn sums(&self) -> (u64, u64) {
        let spent = self.spent.values();
        spent.fold(self.gone, |(cpu, trace), spent| {
            (cpu + spent.cpu_ns, trace + spent.trace_ns + spent.syscalls_ns)
        })
    }
}

/// Nanoseconds that a process has spent in the kernel, to some hundredths of a second; None when it is gone.
fn system_time_ns(pid: u32) -> Option<u64> {
    const TICK_NS: u64 = 10_000_000;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, which may hold anything, ends at the last bracket.
    let ticks: u64 = stat
        .rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .nth(12)?
        .parse()
        .ok()?;
    Some(ticks * TICK_NS)
}

/// What all threads of a process have used, those that have ended included; None when the process is gone.
pub fn cpu_time_ns(pid: u32) -> Option<u64> {
    // The clock of a process's CPU time, as clock_getcpuclockid(3) makes it: the id's complement, and the kind in the
    // lowest bits.
    const SCHED: i32 = 2;
    let clock = !i32::try_from(pid).ok()? << 3 | SCHED;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours and writable.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    (result == 0).then(|| seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_cpu_time() {
        let before = cpu_time_ns(std::process::id()).unwrap();
        let mut sum = 0u64;
        while cpu_time_ns(std::process::id()).unwrap() - before < 2_000_000 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert_eq!(cpu_time_ns(4_194_304), None, "no process has this id");
    }

    /// What is added is a quarter of a system call, and of the time in the kernel no more can have been added.
    #[test]
    fn what_system_calls_cost_is_bounded_by_the_time_in_the_kernel() {
        let call = SystemCall {
            bare_ns: 150.0,
            traced_ns: 200.0,
        };
        let mut meter = Meter::new(None, Some(call), 0.05);
        let own = std::process::id();
        let before = system_time_ns(own).unwrap();
        meter.begin(own);
        while system_time_ns(own).unwrap() - before < 50_000_000 {}
        meter.read(own, &Totals::default(), &[], 0);
        let cost = meter.cost(own, (0, 0)).unwrap();
        let most = cost.syscalls_ns.unwrap() as f64;
        assert!(
            most >= 0.25 * 50e6 && most <= 0.25 * cost.cpu_ns as f64 + 1.0,
            "{cost:?}"
        );
        assert_eq!((cost.syscall_ns, cost.trace_ns), (Some(50.0), 0));
    }

    /// While they are counted each costs what a counted one does, afterwards as many are taken to go on; in a pause none is.
    #[test]
    fn counted_system_calls_are_charged() {
        let call = SystemCall {
            bare_ns: 150.0,
            traced_ns: 200.0,
        };
        let mut meter = Meter::new(None, Some(call), 0.05);
        let own = std::process::id();
        meter.begin(own);
        let source = Source::Tracepoints;
        let every_call = EveryCall {
            counted_ns: 50.0,
            watched_ns: 200.0,
        };
        assert!((meter.can_count(every_call) - 4.0).abs() < 1e-9);
        meter.see(Seeing { source, counting: true });
        let burn = || {
            let begin = cpu_time_ns(own).unwrap();
            while cpu_time_ns(own).unwrap() - begin < 5_000_000 {}
        };
        burn();
        meter.read(own, &Totals::default(), &[], 10_000);
        let (counting_ns, cost_ns) = meter.sums();
        assert_eq!(cost_ns, 1_000_000);
        meter.see(Seeing {
            source,
            counting: false,
        });
        burn();
        meter.read(own, &Totals::default(), &[], 10_000);
        let (cpu_ns, cost_ns) = meter.sums();
        let share = meter.share_of_syscalls().unwrap();
        // Other tests use this process's time too: what is due follows from what was used, not from how long this took.
        let due = 10_000.0 * 50.0 / (counting_ns - 500_000) as f64;
        assert!((share - due).abs() < 1e-9, "{share} instead of {due}");
        let charged = cost_ns as f64 - 1_000_000.0;
        assert!(
            (charged - due * (cpu_ns - counting_ns) as f64).abs() <= 1.0,
            "{charged} of {cpu_ns}"
        );
        meter.see(Seeing {
            source: Source::None,
            counting: false,
        });
        burn();
        meter.read(own, &Totals::default(), &[], 10_000);
        assert_eq!(meter.sums().1, cost_ns);
    }

    #[test]
    fn dear_probes_cost_more() {
        let calibration = Calibration {
            hit_ns: 1000.0,
            pause_ns: 5,
            going_ns: 50,
        };
        let system_call = SystemCall {
            bare_ns: 150.0,
            traced_ns: 200.0,
        };
        let mut meter = Meter::new(Some(calibration), Some(system_call), 0.05);
        let mut totals = Totals {
            hits: 100,
            ..Totals::default()
        };
        totals.calls[0] = 60;
        totals.calls[8] = 40;
        let own = std::process::id();
        meter.begin(own);
        meter.read(own, &totals, &[], 0);
        let cheap = meter.cost(own, (1, 2)).unwrap();
        assert_eq!((cheap.hits, cheap.trace_ns, cheap.pause_ns), (100, 100_000, Some(5)));
        meter.read(own, &totals, &[Entry::Free], 0);
        let dear = meter.cost(own, (1, 2)).unwrap();
        assert!(dear.trace_ns > 3 * cheap.trace_ns, "{dear:?}");
        let sums = meter.sums();
        assert_eq!(sums.1, dear.trace_ns);
        // What was hit all through a stretch of 100 ns is hit for half as long again.
        meter.take_away(100);
        let sums = meter.sums();
        assert_eq!(sums.1, dear.trace_ns * 3 / 2);
        meter.mark();
        meter.take_away(100);
        assert_eq!(meter.sums(), sums);
        meter.end(own);
        assert_eq!(meter.sums(), sums);
    }
}
