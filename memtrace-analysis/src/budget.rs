//! Which depth a trace can afford: decided after each short stretch of time from what that stretch has cost.
//!
//! ```text
//! two accounts: + the allowed share of the CPU time used      - what the hits, and system calls being watched, have cost
//!
//! calls  --too dear-->  slow path  --too dear-->  system calls  --too dear-->  nothing        the base
//!   ^                        \                        /    ^                      |
//!   |                         windows of calls, when       |                  windows of system calls
//!   |                         the account allows one,      |                      |
//!   |                         or a look is due             |                      |
//!   +--- two windows in a row would have fit ---+          +--- the same ---------+
//! ```
//!
//! The account of the whole trace keeps the limit: a window is opened when it can be paid, and what a storm has overdrawn is
//! paid back before the next one. Looks, so that the end of a storm is seen, take a tenth of the limit. The account of
//! the base begins anew with it, and says when the base is too dear: when it is overdrawn by a little, so that a burst that
//! is paid for does not end it. Where hits may come, the accounts are looked at many times a second, since a storm can slow a
//! process down a hundred times from one moment to the next.
//! Nothing here reads a clock: times and costs are given.

use crate::event::Depth;

/// The first stretch, and how soon an account that is being overdrawn is looked at again.
pub const SOON_NS: u64 = 10_000_000;
/// How often an account is looked at while all goes well: for so long a storm can last unseen.
const GLANCE_NS: u64 = 50_000_000;
/// Longest stretch without probes.
const STRETCH_NS: u64 = 1_000_000_000;
/// Shortest and longest window that is opened because it can be paid. Taking probes away costs what 20 ms of hits do.
const WINDOW_NS: u64 = 50_000_000;
const LONGEST_WINDOW_NS: u64 = 250_000_000;
/// A window that is due, and the part of others after which it is seen whether they can still be paid.
const PART_NS: u64 = 25_000_000;
/// Between two windows at least, and in a pause, where the kernel has more to do for one.
const BETWEEN_NS: u64 = 250_000_000;
const BETWEEN_IN_PAUSE_NS: u64 = 1_000_000_000;
/// A look is due after this time, or later where the limit is low.
const LOOK_NS: u64 = 5_000_000_000;
/// The part of the limit that looks may take.
const FOR_LOOKS: f64 = 0.1;
/// Trying the slow path once more when it was too dear.
const TRIAL_NS: u64 = 25_000_000;
const FIRST_RETRY_NS: u64 = 10_000_000_000;
const LAST_RETRY_NS: u64 = 300_000_000_000;
/// What would fit must fit with room to spare before it is taken up again.
const ROOM: f64 = 0.8;
/// Windows in a row that have to say so.
const WINDOWS_IN_A_ROW: u32 = 2;
/// What can be saved up, and what a base may owe: seconds of what the limit allows of each CPU in use.
const MOST_SAVED: f64 = 0.25;
const MOST_OWED: f64 = 0.25;
/// So little of a CPU is nothing, whatever share of a process's rest it is.
const NOTHING: f64 = 1e-4;

/// A stretch of time that is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    pub depth: Depth,
    pub wall_ns: u64,
    /// CPU time that the processes have used, what the hits took included.
    pub cpu_ns: u64,
    /// What the hits took, and what made system calls longer.
    pub cost_ns: u64,
}

impl Stretch {
    const fn nothing(depth: Depth) -> Self {
        Self {
            depth,
            wall_ns: 0,
            cpu_ns: 0,
            cost_ns: 0,
        }
    }

    const fn add(&mut self, more: &Self) {
        self.wall_ns = self.wall_ns.saturating_add(more.wall_ns);
        self.cpu_ns = self.cpu_ns.saturating_add(more.cpu_ns);
        self.cost_ns = self.cost_ns.saturating_add(more.cost_ns);
    }

    /// Cost as a part of CPU time.
    fn share(&self) -> f64 {
        ratio(self.cost_ns, self.cpu_ns)
    }

    fn is_nothing(&self) -> bool {
        ratio(self.cost_ns, self.wall_ns) <= NOTHING
    }

    fn fits(&self, share: f64) -> bool {
        self.share() <= share || self.is_nothing()
    }

    /// What it leaves of its share, nanoseconds; less than nothing where it took more.
    fn leaves(&self, share: f64) -> f64 {
        share * self.cpu_ns as f64 - self.cost_ns as f64
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if part == 0 {
        return 0.0;
    }
    part as f64 / whole.max(1) as f64
}

/// The share of CPU time that something takes which takes this one where it is so many times as dear.
fn without_dearer(share: f64, dearer: f64) -> f64 {
    let of_rest = share / (1.0 - share).max(f64::MIN_POSITIVE) / dearer.max(1.0);
    of_rest / (1.0 + of_rest)
}

/// What to watch next, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    pub depth: Depth,
    pub for_ns: u64,
}

/// Calls are counted for a while, or the slow path is tried, or system calls are watched, above a lesser base.
#[derive(Clone, Copy, Debug)]
struct Window {
    left_ns: u64,
    so_far: Stretch,
}

#[derive(Clone, Debug)]
pub struct Budget {
    max_share: f64,
    /// The slow path can be watched.
    slow_path: bool,
    /// Nothing can be watched for a while; then what watching a system call costs in a window, as a multiple of what it costs
    /// the base.
    pauses: Option<f64>,
    base: Depth,
    /// What may be spent, nanoseconds: by the whole trace, and by the base since it is one.
    account: f64,
    of_base: f64,
    /// The window that is open.
    window: Option<Window>,
    /// What calls, and system calls, cost by the last window, per nanosecond.
    calls_per_ns: f64,
    syscalls_per_ns: f64,
    /// CPU time used per nanosecond.
    cpu_per_ns: f64,
    /// Windows in a row that would have fit.
    fitting: u32,
    since_window_ns: u64,
    until_retry_ns: u64,
    retry_ns: u64,
}

impl Budget {
    /// `max_share`: the part of the processes' CPU time that the trace may take.
    pub const fn new(max_share: f64, slow_path: bool) -> Self {
        Self {
            max_share,
            slow_path,
            pauses: None,
            base: Depth::Calls,
            account: 0.0,
            of_base: 0.0,
            window: None,
            calls_per_ns: 0.0,
            syscalls_per_ns: 0.0,
            cpu_per_ns: 0.0,
            fitting: 0,
            since_window_ns: 0,
            until_retry_ns: 0,
            retry_ns: FIRST_RETRY_NS,
        }
    }

    /// From now on there may be pauses, in which a window is so many times as dear as the base that it stands for.
    pub const fn can_pause(&mut self, factor: f64) {
        self.pauses = Some(factor);
    }

    pub const fn first(&self) -> Next {
        Next {
            depth: Depth::Calls,
            for_ns: SOON_NS,
        }
    }

    /// The deepest depth that fits all the time.
    pub const fn base(&self) -> Depth {
        self.base
    }

    /// Takes in what is over, and decides.
    pub fn next(&mut self, done: &Stretch) -> Next {
        self.pay(done);
        if self.window.is_none() || done.depth < self.window_depth() {
            self.since_window_ns = self.since_window_ns.saturating_add(done.wall_ns);
        }
        self.until_retry_ns = self.until_retry_ns.saturating_sub(done.wall_ns);
        if let Some(window) = self.window.take() {
            return self.after_look(window, done);
        }
        if self.is_overdrawn() {
            self.step_down(done);
            return self.stay();
        }
        match self.base {
            Depth::Calls => self.stay(),
            _ => self.open_window().unwrap_or_else(|| self.stay()),
        }
    }

    /// Probes have come or gone since the last decision: what that took is nothing that a depth is to be judged by.
    pub fn changed(&mut self, change: &Stretch) {
        self.book(change.leaves(self.max_share));
    }

    fn pay(&mut self, done: &Stretch) {
        if done.wall_ns > 0 {
            self.cpu_per_ns = ratio(done.cpu_ns, done.wall_ns);
        }
        let left = done.leaves(self.max_share);
        self.book(left);
        if self.window.is_none() {
            // Beside calls there is nothing to look for.
            let looks = if self.base == Depth::Calls { 0.0 } else { FOR_LOOKS };
            let left = done.leaves(self.max_share * (1.0 - looks));
            let left = if done.is_nothing() { left.max(0.0) } else { left };
            self.of_base = (self.of_base + left).min(self.most_saved());
        }
    }

    fn book(&mut self, left: f64) {
        // At a low limit a window costs more than what may be saved.
        let window = 2.0 * self.window_per_ns() * WINDOW_NS as f64;
        self.account = (self.account + left).min(self.most_saved().max(window));
    }

    fn most_saved(&self) -> f64 {
        MOST_SAVED * self.second()
    }

    /// What the limit allows in a second, nanoseconds.
    fn second(&self) -> f64 {
        1e9 * self.max_share * self.cpu_per_ns.max(1.0)
    }

    /// What a window above the base watches.
    fn window_depth(&self) -> Depth {
        if self.base == Depth::Nothing {
            Depth::Syscalls
        } else {
            Depth::Calls
        }
    }

    /// What such a window costs per nanosecond, by the last one.
    fn window_per_ns(&self) -> f64 {
        if self.base == Depth::Nothing {
            self.syscalls_per_ns
        } else {
            self.calls_per_ns
        }
    }

    fn is_overdrawn(&self) -> bool {
        let least = if self.pauses.is_some() {
            Depth::Nothing
        } else {
            Depth::Syscalls
        };
        self.base != least && self.of_base < -MOST_OWED * self.second()
    }

    fn step_down(&mut self, done: &Stretch) {
        match self.base {
            Depth::Calls => {
                self.calls_per_ns = ratio(done.cost_ns, done.wall_ns);
                self.fitting = 0;
                self.since_window_ns = 0;
                self.set_base(if self.slow_path {
                    Depth::SlowPath
                } else {
                    Depth::Syscalls
                });
            }
            Depth::SlowPath => {
                self.retry_later();
                self.set_base(Depth::Syscalls);
            }
            Depth::Syscalls | Depth::Nothing => {
                self.syscalls_per_ns = ratio(done.cost_ns, done.wall_ns) * self.pauses.unwrap_or(1.0);
                self.fitting = 0;
                self.since_window_ns = 0;
                self.set_base(Depth::Nothing);
            }
        }
    }

    const fn set_base(&mut self, depth: Depth) {
        self.base = depth;
        self.of_base = 0.0;
    }

    fn retry_later(&mut self) {
        self.until_retry_ns = self.retry_ns;
        self.retry_ns = self.retry_ns.saturating_mul(2).min(LAST_RETRY_NS);
    }

    /// A part of a window is over: it goes on while it can be paid.
    fn after_look(&mut self, mut window: Window, done: &Stretch) -> Next {
        window.left_ns = window.left_ns.saturating_sub(done.wall_ns);
        window.so_far.add(done);
        let depth = window.so_far.depth;
        if depth == self.window_depth() {
            let per_ns = ratio(window.so_far.cost_ns, window.so_far.wall_ns);
            match depth {
                Depth::Calls => self.calls_per_ns = per_ns,
                _ => self.syscalls_per_ns = per_ns,
            }
            if window.left_ns >= PART_NS && self.account >= per_ns * PART_NS as f64 {
                self.window = Some(window);
                return Next { depth, for_ns: PART_NS };
            }
            self.after_window(&window.so_far);
        } else if window.so_far.fits(self.max_share * ROOM) {
            self.retry_ns = FIRST_RETRY_NS;
            self.set_base(Depth::SlowPath);
        } else {
            self.retry_later();
        }
        self.stay()
    }

    fn after_window(&mut self, whole: &Stretch) {
        self.since_window_ns = 0;
        let share = match self.pauses {
            Some(dearer) if self.base == Depth::Nothing => without_dearer(whole.share(), dearer),
            _ => whole.share(),
        };
        // Not the other way round: what is no number does not fit.
        let fits = share <= self.max_share * ROOM || whole.is_nothing();
        if !fits {
            self.fitting = 0;
            return;
        }
        self.fitting = self.fitting.saturating_add(1);
        if self.fitting >= WINDOWS_IN_A_ROW {
            self.retry_ns = FIRST_RETRY_NS;
            self.fitting = 0;
            self.set_base(self.window_depth());
        }
    }

    fn stay(&self) -> Next {
        let for_ns = match self.base {
            Depth::Nothing => self.until_window(),
            // Without pauses nothing can be done about what it costs.
            Depth::Syscalls if self.pauses.is_none() => self.until_window(),
            _ if self.of_base <= 0.0 => SOON_NS,
            _ => GLANCE_NS,
        };
        Next {
            depth: self.base,
            for_ns,
        }
    }

    fn open_window(&mut self) -> Option<Next> {
        let (depth, left_ns) = if let Some(for_ns) = self.possible_window() {
            (self.window_depth(), for_ns)
        } else if self.slow_path && self.base == Depth::Syscalls && self.until_retry_ns == 0 && self.account > 0.0 {
            (Depth::SlowPath, TRIAL_NS)
        } else {
            return None;
        };
        self.window = Some(Window {
            left_ns,
            so_far: Stretch::nothing(depth),
        });
        Some(Next {
            depth,
            for_ns: left_ns.min(PART_NS),
        })
    }

    /// How long a window of calls may be now; None when it has to wait.
    fn possible_window(&self) -> Option<u64> {
        if self.since_window_ns < self.between_ns() {
            return None;
        }
        let can_pay = self.account / self.window_per_ns().max(f64::MIN_POSITIVE);
        if can_pay >= WINDOW_NS as f64 {
            return Some(can_pay.min(LONGEST_WINDOW_NS as f64) as u64);
        }
        // A window that fits is looked at once more soon.
        let due = if self.fitting > 0 {
            self.between_ns()
        } else {
            self.look_ns()
        };
        (self.since_window_ns >= due).then_some(PART_NS)
    }

    fn between_ns(&self) -> u64 {
        if self.base == Depth::Nothing {
            BETWEEN_IN_PAUSE_NS
        } else {
            BETWEEN_NS
        }
    }

    /// Were all of a look's time cost, it is what looks may take.
    fn look_ns(&self) -> u64 {
        let lowest = PART_NS as f64 / (FOR_LOOKS * self.max_share).max(f64::MIN_POSITIVE);
        LOOK_NS.max(lowest.min(u64::MAX as f64) as u64)
    }

    /// Until the account can pay a window, or a look is due.
    fn until_window(&self) -> u64 {
        let missing = self.window_per_ns() * WINDOW_NS as f64 - self.account;
        let income = (self.max_share * self.cpu_per_ns).max(f64::MIN_POSITIVE);
        let paid = (missing.max(0.0) / income).min(u64::MAX as f64) as u64;
        let due = self.look_ns().saturating_sub(self.since_window_ns);
        paid.min(due).clamp(BETWEEN_NS, STRETCH_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A machine where each depth takes a fixed part of the CPU time that the processes use.
    #[derive(Clone, Copy, Debug)]
    struct Model {
        cpus: f64,
        calls: f64,
        slow_path: f64,
        /// At each depth, and so many times as much in a window of a pause.
        syscalls: f64,
    }

    const DEARER: f64 = 4.0;

    impl Model {
        /// Without system calls that cost anything.
        const fn of(cpus: f64, calls: f64, slow_path: f64) -> Self {
            Self {
                cpus,
                calls,
                slow_path,
                syscalls: 0.0,
            }
        }

        fn run(&self, next: Next, base: Depth) -> Stretch {
            let cpu = next.for_ns as f64 * self.cpus;
            let share = match next.depth {
                Depth::Calls => self.calls + self.syscalls,
                Depth::SlowPath => self.slow_path + self.syscalls,
                Depth::Syscalls if base == Depth::Nothing => dearer(self.syscalls),
                Depth::Syscalls => self.syscalls,
                Depth::Nothing => 0.0,
            };
            Stretch {
                depth: next.depth,
                wall_ns: next.for_ns,
                cpu_ns: cpu as u64,
                cost_ns: (cpu * share) as u64,
            }
        }
    }

    /// What takes this share of CPU time takes another one where it is dearer.
    fn dearer(share: f64) -> f64 {
        let of_rest = share / (1.0 - share) * DEARER;
        of_rest / (1.0 + of_rest)
    }

    /// Runs for so many seconds; CPU time and cost of all, and the time that calls were counted.
    fn run(budget: &mut Budget, next: &mut Next, model: &Model, seconds: u64) -> (f64, f64, f64) {
        let (mut wall, mut cpu, mut cost, mut calls) = (0u64, 0.0, 0.0, 0.0);
        while wall < seconds * 1_000_000_000 {
            let done = model.run(*next, budget.base());
            wall += done.wall_ns;
            cpu += done.cpu_ns as f64;
            cost += done.cost_ns as f64;
            if done.depth == Depth::Calls {
                calls += done.wall_ns as f64;
            }
            *next = budget.next(&done);
        }
        (cpu, cost, calls / wall as f64)
    }

    fn models() -> impl Strategy<Value = (Model, f64)> {
        (0.05f64..64.0, 0.0f64..1.0, 0.0f64..1.0, 0.002f64..0.5)
            .prop_map(|(cpus, calls, slow, max)| (Model::of(cpus, calls, calls * slow), max))
    }

    /// Models where system calls cost something too, and a budget that can pause.
    fn storms_of_syscalls() -> impl Strategy<Value = (Model, f64)> {
        (models(), 0.0f64..1.0).prop_map(|((mut model, max), part)| {
            // Of a CPU time that is all taken nothing is left.
            model.syscalls = part;
            model.calls *= 1.0 - part;
            model.slow_path *= 1.0 - part;
            (model, max)
        })
    }

    fn with_pauses(max: f64, slow_path: bool) -> Budget {
        let mut budget = Budget::new(max, slow_path);
        budget.can_pause(DEARER);
        budget
    }

    proptest! {
        #[test]
        fn the_limit_is_kept_once_settled((model, max) in models(), possible in any::<bool>()) {
            let mut budget = Budget::new(max, possible);
            let mut next = budget.first();
            run(&mut budget, &mut next, &model, 60);
            let (cpu, cost, _) = run(&mut budget, &mut next, &model, 600);
            // What was saved before, what the base may owe, and one window more than was paid are all that can come on top.
            let slack = ((MOST_SAVED + MOST_OWED) * max * model.cpus.max(1.0) + 0.1 * model.cpus) * 1e9;
            prop_assert!(cost <= max * cpu + slack, "{} of {}, base {:?}", cost / cpu, max, budget.base());
        }

        #[test]
        fn with_pauses_the_limit_is_kept_whatever_system_calls_cost((model, max) in storms_of_syscalls(), possible in any::<bool>()) {
            let mut budget = with_pauses(max, possible);
            let mut next = budget.first();
            run(&mut budget, &mut next, &model, 60);
            let (cpu, cost, _) = run(&mut budget, &mut next, &model, 600);
            let slack = ((MOST_SAVED + 2.0 * MOST_OWED) * max * model.cpus.max(1.0) + 0.1 * model.cpus) * 1e9;
            prop_assert!(cost <= max * cpu + slack, "{} of {}, base {:?}", cost / cpu, max, budget.base());
        }

        #[test]
        fn a_storm_of_system_calls_is_seen_in_windows(cpus in 0.5f64..64.0, max in 0.01f64..0.1, syscalls in 0.25f64..0.5) {
            let model = Model { cpus, calls: 0.0, slow_path: 0.0, syscalls };
            let mut budget = with_pauses(max, true);
            let mut next = budget.first();
            run(&mut budget, &mut next, &model, 30);
            prop_assert_eq!(budget.base(), Depth::Nothing);
            let (mut watched, mut wall) = (0u64, 0u64);
            while wall < 120_000_000_000 {
                let done = model.run(next, budget.base());
                wall += done.wall_ns;
                watched += if done.depth > Depth::Nothing { done.wall_ns } else { 0 };
                next = budget.next(&done);
            }
            let share = watched as f64 / wall as f64;
            // What the limit pays for is used for the better part, looks and the time between windows left aside.
            prop_assert!(share > 0.4 * max / dearer(syscalls), "{share}");
            prop_assert_eq!(budget.base(), Depth::Nothing);
        }

        #[test]
        fn when_a_storm_of_system_calls_is_over_all_is_watched_again((storm, max) in storms_of_syscalls(), possible in any::<bool>()) {
            let mut budget = with_pauses(max, possible);
            let mut next = budget.first();
            run(&mut budget, &mut next, &storm, 120);
            let calm = Model::of(storm.cpus, max * 0.1, 0.0);
            run(&mut budget, &mut next, &calm, 120 + (8.0 * PART_NS as f64 / 1e9 / (FOR_LOOKS * max)) as u64);
            prop_assert_eq!(budget.base(), Depth::Calls);
        }

        #[test]
        fn what_fits_is_watched_all_the_time(cpus in 0.05f64..64.0, max in 0.002f64..0.5, part in 0.0f64..0.9) {
            let model = Model::of(cpus, max * part, 0.0);
            let mut budget = with_pauses(max, true);
            let mut next = budget.first();
            let (_, _, calls) = run(&mut budget, &mut next, &model, 60);
            prop_assert!((calls - 1.0).abs() < 1e-9);
        }

        #[test]
        fn when_the_storm_is_over_every_call_is_counted_again((storm, max) in models(), possible in any::<bool>()) {
            let mut budget = Budget::new(max, possible);
            let mut next = budget.first();
            run(&mut budget, &mut next, &storm, 120);
            let calm = Model::of(storm.cpus, max * 0.1, 0.0);
            run(&mut budget, &mut next, &calm, 60 + (4.0 * PART_NS as f64 / 1e9 / (FOR_LOOKS * max)) as u64);
            prop_assert_eq!(budget.base(), Depth::Calls);
        }

        #[test]
        fn a_storm_overdraws_little_whenever_it_begins(
            (storm, max) in storms_of_syscalls(),
            part in 0.0f64..0.9,
            possible in any::<bool>(),
            begin_ns in 0u64..20_000_000_000,
        ) {
            let calm = Model::of(storm.cpus, max * part, 0.0);
            let mut budget = with_pauses(max, possible);
            let mut next = budget.first();
            let (mut now, mut left, mut least) = (0, 0.0f64, 0.0f64);
            while now < begin_ns + 60_000_000_000 {
                // It does not wait for a stretch to end.
                let before = next.for_ns.min(begin_ns.saturating_sub(now));
                let mut done = calm.run(Next { for_ns: before, ..next }, budget.base());
                done.add(&storm.run(Next { for_ns: next.for_ns - before, ..next }, budget.base()));
                if done.wall_ns > before {
                    left += done.leaves(max);
                    least = least.min(left);
                }
                now += done.wall_ns;
                next = budget.next(&done);
            }
            // Counting calls, then the slow path, then system calls: until that is seen, and what each may owe before it is given
            // up; one window that was opened too early.
            let unseen = 3.0 * (GLANCE_NS + SOON_NS) as f64 + 2.0 * WINDOW_NS as f64;
            let most = unseen * storm.cpus + (3.0 * MOST_OWED + MOST_SAVED) * 1e9 * max * storm.cpus.max(1.0);
            prop_assert!(-least <= most, "{} ms of {} ms", -least / 1e6, most / 1e6);
        }

        #[test]
        fn a_storm_that_the_slow_path_does_not_feel_keeps_it(cpus in 0.5f64..64.0, max in 0.01f64..0.5) {
            let model = Model::of(cpus, 0.95, max * 0.2);
            let mut budget = Budget::new(max, true);
            let mut next = budget.first();
            run(&mut budget, &mut next, &model, 30);
            prop_assert_eq!(budget.base(), Depth::SlowPath);
            let (_, _, calls) = run(&mut budget, &mut next, &model, 120);
            // What the slow path leaves is used for windows.
            prop_assert!(calls > max * 0.3, "{calls} of {max}");
        }

        #[test]
        fn no_figures_make_it_fail(
            max in any::<f64>(),
            factor in any::<f64>(),
            depths in prop::collection::vec((0u8..4, any::<u64>(), any::<u64>(), any::<u64>()), 0..40),
        ) {
            let mut budget = Budget::new(max, true);
            budget.can_pause(factor);
            for (depth, wall_ns, cpu_ns, cost_ns) in depths {
                let depth = [Depth::Calls, Depth::SlowPath, Depth::Syscalls, Depth::Nothing][depth as usize];
                let next = budget.next(&Stretch { depth, wall_ns, cpu_ns, cost_ns });
                prop_assert!(next.for_ns >= SOON_NS);
            }
        }
    }

    #[test]
    fn an_idle_process_is_watched_in_full() {
        let model = Model::of(0.000_01, 0.9, 0.5);
        let mut budget = Budget::new(0.05, true);
        let mut next = budget.first();
        run(&mut budget, &mut next, &model, 60);
        assert_eq!(budget.base(), Depth::Calls);
    }
}
