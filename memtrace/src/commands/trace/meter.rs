//! What the trace takes from the processes: hits, times what one costs here, beside the CPU time that they use.

use std::collections::BTreeMap;

use memtrace_analysis::event::{Cost, Entry, Totals};

use crate::probe::CostClass;
use crate::session::{Calibration, SystemCall};

/// A part of a system call's time is shown as the program's own: of a loop of getppid one fifth.
const SHOWN_AS_OWN: f64 = 1.25;

pub struct Meter {
    calibration: Option<Calibration>,
    system_call: Option<SystemCall>,
    max_share: f64,
    spent: BTreeMap<u32, Spent>,
    /// CPU time and cost of processes that have ended.
    gone: (u64, u64),
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
}

impl Meter {
    pub const fn new(calibration: Option<Calibration>, system_call: Option<SystemCall>, max_share: f64) -> Self {
        Self {
            calibration,
            system_call,
            max_share,
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
    pub fn read(&mut self, pid: u32, totals: &Totals, stepped: &[Entry]) {
        let hit_ns = self.hit_ns();
        let spent = self.spent.entry(pid).or_default();
        // One that has just ended has used what it had used when last asked, and a little more.
        if let Some(now) = cpu_time_ns(pid) {
            spent.cpu_ns = spent.cpu_ns.max(now.saturating_sub(spent.cpu_before_ns));
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
            syscalls_ns: self.system_call.map(|call| (in_system_calls * call.most()) as u64),
        })
    }

    /// A process has ended.
    pub fn end(&mut self, pid: u32) {
        if let Some(spent) = self.spent.remove(&pid) {
            self.gone.0 += spent.cpu_ns;
            self.gone.1 += spent.trace_ns;
        }
    }

    /// CPU time and cost of all processes so far, those that have ended included.
    pub fn sums(&self) -> (u64, u64) {
        let spent = self.spent.values();
        spent.fold(self.gone, |(cpu, trace), spent| {
            (cpu + spent.cpu_ns, trace + spent.trace_ns)
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
        meter.read(own, &Totals::default(), &[]);
        let cost = meter.cost(own, (0, 0)).unwrap();
        let most = cost.syscalls_ns.unwrap() as f64;
        assert!(
            most >= 0.25 * 50e6 && most <= 0.25 * cost.cpu_ns as f64 + 1.0,
            "{cost:?}"
        );
        assert_eq!((cost.syscall_ns, cost.trace_ns), (Some(50.0), 0));
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
        meter.read(own, &totals, &[]);
        let cheap = meter.cost(own, (1, 2)).unwrap();
        assert_eq!((cheap.hits, cheap.trace_ns, cheap.pause_ns), (100, 100_000, Some(5)));
        meter.read(own, &totals, &[Entry::Free]);
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
