//! What one hit costs on this machine, and what pause a thread sees while probes come and go: measured on a child of
//! memtrace's own, before anything else is touched.
//!
//! The child calls two functions of memtrace's own code in a loop, with and without the very programs that are to watch
//! malloc and free, on an instruction of the cheap kind. Between them it reads more memory than the nearest cache holds, as a
//! process does that uses what it allocates: in a bare loop a hit costs a quarter less than in python3. It runs nothing of
//! Rust's and nothing of malloc's.

use std::arch::global_asm;
use std::fs;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use memtrace_common::{active, entry};

use super::Session;
use super::attach::{Link, Source};
use super::state;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Nanoseconds of one hit.
    pub hit_ns: f64,
    /// Longest time that the child, which did nothing but look at the clock, lost at once while two probes were put in
    /// place and taken away; times at which the CPU was taken away from it for another process do not count.
    pub pause_ns: u64,
    /// For how long the child's calls still trapped when probes were taken away: the kernel waits before it gives the code
    /// its own instructions back, and counts no hit meanwhile.
    pub going_ns: u64,
}

/// What a system call that does next to nothing takes, without the tracepoints of memory system calls and with them:
/// while those are there, every system call of the machine passes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SystemCall {
    pub bare_ns: f64,
    pub traced_ns: f64,
}

impl SystemCall {
    /// What is added to each.
    pub fn added_ns(&self) -> f64 {
        (self.traced_ns - self.bare_ns).max(0.0)
    }

    /// The part of the time of system calls that is added, at most: those that do more take longer.
    pub fn most(&self) -> f64 {
        self.added_ns() / self.traced_ns.max(f64::MIN_POSITIVE)
    }
}

/// What a system call is made longer by where every one is seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EveryCall {
    /// By being counted, beside the tracepoints of memory system calls.
    pub counted_ns: f64,
    /// By being watched in a window of a pause; at most, since those were there when it was measured.
    pub watched_ns: f64,
}

// Two functions whose first instruction the kernel emulates (push) or simulates (adr).
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl memtrace_calibrate_malloc",
    "memtrace_calibrate_malloc:",
    "push rbp",
    "pop rbp",
    "ret",
    ".globl memtrace_calibrate_free",
    "memtrace_calibrate_free:",
    "push rbp",
    "pop rbp",
    "ret",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl memtrace_calibrate_malloc",
    "memtrace_calibrate_malloc:",
    "adr x9, memtrace_calibrate_malloc",
    "ret",
    ".globl memtrace_calibrate_free",
    "memtrace_calibrate_free:",
    "adr x9, memtrace_calibrate_free",
    "ret",
);

unsafe extern "C" {
    fn memtrace_calibrate_malloc(request: u64);
    fn memtrace_calibrate_free(pointer: *const u64);
}

/// Calls of both whose times are added up, and how often: the median counts.
const PAIRS: u64 = 50;
const ROUNDS: usize = 21;
/// What is read between two pairs, and the part of it that is fetched at once.
const READ: usize = 256 << 10;
const LINE: usize = 64;
/// How long the child watches the clock after the probes have begun to go.
const WATCH: Duration = Duration::from_millis(20);

/// What the child is asked to do.
const TIME: u8 = b't';
const WATCH_CLOCK: u8 = b'w';
const STOP: u8 = b's';
const CALL: u8 = b'c';
const ENTER_KERNEL: u8 = b'k';

/// A call of both functions takes no longer without a trap.
const TRAPPED_NS: u64 = 400;
/// That many in a row are no coincidence.
const IN_A_ROW: u32 = 4;
/// How long the child goes on calling after probes have begun to go; they are gone well before.
const GOING: Duration = Duration::from_millis(60);

impl Session {
    /// Measures; leaves nothing behind.
    pub fn calibrate(&mut self) -> Result<Calibration> {
        let mut child = Child::start().context("starting a child to measure what a probe costs")?;
        let result = self.measure(&mut child);
        let removed = self.tables.remove(child.pid);
        drop(child);
        removed?;
        result
    }

    /// What a system call of a traced process is made longer by where every one is seen. The tracepoints of memory system calls
    /// are there meanwhile.
    pub(super) fn measure_every_call(&mut self, call: SystemCall) -> Result<EveryCall> {
        let mut child = Child::start().context("starting a child to measure what a system call costs")?;
        let mut process = state::new_process(child.pid);
        process.active = active::NOW;
        let mut time = |source, ends| {
            process.source = state::source_number(source);
            self.tables.set(process)?;
            let attached = self.links.attach_every_call(&mut self.ebpf, ends);
            let timed = attached.and_then(|()| child.time_system_call());
            self.links.close_every_call();
            timed
        };
        let counted_ns = time(Source::Tracepoints, false);
        let watched_ns = time(Source::EveryCall, true);
        self.tables.remove(child.pid)?;
        Ok(EveryCall {
            counted_ns: (counted_ns? - call.traced_ns).max(0.0),
            watched_ns: (watched_ns? - call.bare_ns).max(0.0),
        })
    }

    fn measure(&mut self, child: &mut Child) -> Result<Calibration> {
        let bare = child.time()?;
        let functions = [
            (
                "on_malloc",
                entry::MALLOC,
                memtrace_calibrate_malloc as *const () as u64,
            ),
            ("on_free", entry::FREE, memtrace_calibrate_free as *const () as u64),
        ];
        let mut process = state::new_process(child.pid);
        process.active = active::NOW;
        let mut places = Vec::new();
        for (program, number, address) in functions {
            // The load address does not matter; with 0 for it, virtual addresses are those of this very process.
            process.libc.site[usize::from(number)] = address;
            places.push((program, file_offset(address)?));
        }
        self.tables.set(process)?;
        child.begin(WATCH_CLOCK)?;
        let links = self.probe_child(&places, child);
        let attaching = child.stop()?;
        let links = links?;
        let probed = child.time()?;
        child.begin(WATCH_CLOCK)?;
        let closing = thread::spawn(move || drop(links));
        thread::sleep(WATCH);
        let detaching = child.stop()?;
        self.links.wait_for(closing);
        let counted = self.tables.counters(child.pid).map_or(0, |counters| {
            counters.blocks[usize::from(entry::MALLOC)] + counters.blocks[usize::from(entry::FREE)]
        });
        ensure!(
            counted == 2 * PAIRS * ROUNDS as u64,
            "of {} hits {counted} were counted",
            2 * PAIRS * ROUNDS as u64
        );
        Ok(Calibration {
            hit_ns: ((probed - bare) / 2.0).max(0.0),
            pause_ns: attaching.max(detaching),
            going_ns: self.measure_going(&places, child)?,
        })
    }

    fn probe_child(&mut self, places: &[(&str, u64)], child: &Child) -> Result<Vec<Link>> {
        let executable = Path::new("/proc/self/exe");
        let probe = |&(program, offset): &(&str, u64)| {
            self.links
                .probe_own(&mut self.ebpf, program, offset, executable, child.pid)
        };
        places.iter().map(probe).collect()
    }

    fn measure_going(&mut self, places: &[(&str, u64)], child: &mut Child) -> Result<u64> {
        let links = self.probe_child(places, child)?;
        child.begin(CALL)?;
        let begun = clock();
        let closing = thread::spawn(move || drop(links));
        thread::sleep(GOING);
        let last_trap = child.stop()?;
        self.links.wait_for(closing);
        Ok(last_trap.saturating_sub(begun))
    }
}

/// Where an address of this process's own code lies in its file.
fn file_offset(address: u64) -> Result<u64> {
    let maps = fs::read_to_string("/proc/self/maps").context("reading this process's own maps")?;
    let offset = maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (begin, end) = fields.next()?.split_once('-')?;
        let (begin, end) = (u64::from_str_radix(begin, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
        (begin..end).contains(&address).then(|| address - begin + offset)
    });
    offset.context("memtrace's own code is not in its maps")
}

/// The child, which waits for orders.
pub struct Child {
    pid: u32,
    orders: File,
    answers: File,
}

impl Child {
    pub fn start() -> io::Result<Self> {
        let (orders_in, orders) = pipe()?;
        let (answers, answers_out) = pipe()?;
        // SAFETY: the child calls nothing but system calls and the functions above, on memory that it has.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => serve(orders_in.as_raw_fd(), answers_out.as_raw_fd()),
            _ => Ok(Self {
                pid: pid.cast_unsigned(),
                orders: orders.into(),
                answers: answers.into(),
            }),
        }
    }

    fn order(&mut self, order: u8) -> Result<()> {
        self.orders.write_all(&[order]).context("asking the measuring child")
    }

    fn answer(&mut self) -> Result<u64> {
        let mut word = [0; 8];
        self.answers
            .read_exact(&mut word)
            .context("waiting for the measuring child")?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Nanoseconds of a call of both functions: the median of some rounds.
    fn time(&mut self) -> Result<f64> {
        self.median(TIME)
    }

    /// Nanoseconds of a system call: the same.
    pub fn time_system_call(&mut self) -> Result<f64> {
        self.median(ENTER_KERNEL)
    }

    fn median(&mut self, order: u8) -> Result<f64> {
        self.order(order)?;
        let mut rounds = [0; ROUNDS];
        for round in &mut rounds {
            *round = self.answer()?;
        }
        rounds.sort_unstable();
        Ok(rounds[ROUNDS / 2] as f64 / PAIRS as f64)
    }

    /// Has it do something until it is told to stop.
    fn begin(&mut self, order: u8) -> Result<()> {
        self.order(order)?;
        // It is at it.
        match self.answer()? {
            0 => Ok(()),
            other => bail!("the measuring child says {other} where it should begin"),
        }
    }

    /// The longest time between two looks at the clock, or when a call trapped last.
    fn stop(&mut self) -> Result<u64> {
        self.order(STOP)?;
        self.answer()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of this process that has not been waited for; both calls take plain numbers.
        unsafe {
            libc::kill(self.pid.cast_signed(), libc::SIGKILL);
            libc::waitpid(self.pid.cast_signed(), std::ptr::null_mut(), 0);
        }
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for both ends.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both are new and nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// The child's life. It holds none of memtrace's files, so that no probe outlives memtrace by it, and ends when memtrace
/// does.
fn serve(orders: i32, answers: i32) -> ! {
    // SAFETY: plain system calls; what they point to lives on this stack.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::dup2(orders, 0);
        libc::dup2(answers, 1);
        libc::syscall(libc::SYS_close_range, 2u32, u32::MAX, 0u32);
        let chunk = [0u64, 0x31, 0, 0];
        let memory = [1u8; READ];
        loop {
            let mut order = 0u8;
            if libc::read(0, (&raw mut order).cast(), 1) != 1 {
                libc::_exit(0);
            }
            match order {
                TIME => {
                    for _ in 0..ROUNDS {
                        let mut taken = 0;
                        for _ in 0..PAIRS {
                            for place in (0..READ).step_by(LINE) {
                                (&raw const memory[place]).read_volatile();
                            }
                            // What reading takes varies by more than what a hit does.
                            let begin = clock();
                            memtrace_calibrate_malloc(40);
                            memtrace_calibrate_free(&raw const chunk[2]);
                            taken += clock() - begin;
                        }
                        say(taken);
                    }
                }
                WATCH_CLOCK => {
                    libc::fcntl(0, libc::F_SETFL, libc::O_NONBLOCK);
                    say(0);
                    let mut longest = 0;
                    let mut preempted = preemptions();
                    let mut before = clock();
                    let mut looks = 0u64;
                    loop {
                        let now = clock();
                        if now - before > longest {
                            let since = preemptions();
                            if since == preempted {
                                longest = now - before;
                            }
                            preempted = since;
                        }
                        before = clock();
                        looks += 1;
                        // Asking takes longer than looking.
                        if looks.is_multiple_of(256) {
                            match libc::read(0, (&raw mut order).cast(), 1) {
                                1 => break,
                                0 => libc::_exit(0),
                                _ => {
                                    preempted = preemptions();
                                    before = clock();
                                }
                            }
                        }
                    }
                    libc::fcntl(0, libc::F_SETFL, 0);
                    say(longest);
                }
                CALL => {
                    libc::fcntl(0, libc::F_SETFL, libc::O_NONBLOCK);
                    say(0);
                    let (mut last_trap, mut in_a_row) = (0, 0);
                    loop {
                        for _ in 0..PAIRS {
                            let before = clock();
                            memtrace_calibrate_malloc(40);
                            memtrace_calibrate_free(&raw const chunk[2]);
                            let after = clock();
                            in_a_row = if after - before > TRAPPED_NS { in_a_row + 1 } else { 0 };
                            if in_a_row >= IN_A_ROW {
                                last_trap = after;
                            }
                        }
                        match libc::read(0, (&raw mut order).cast(), 1) {
                            1 => break,
                            0 => libc::_exit(0),
                            _ => {}
                        }
                    }
                    libc::fcntl(0, libc::F_SETFL, 0);
                    say(last_trap);
                }
                ENTER_KERNEL => {
                    for _ in 0..ROUNDS {
                        let begin = clock();
                        for _ in 0..PAIRS {
                            libc::syscall(libc::SYS_getppid);
                        }
                        say(clock() - begin);
                    }
                }
                _ => {}
            }
        }
    }
}

fn say(word: u64) {
    let bytes = word.to_ne_bytes();
    // SAFETY: the bytes live through the call. That nobody listens any more shows at the next order.
    unsafe { libc::write(1, bytes.as_ptr().cast(), bytes.len()) };
}

/// How often this process had to leave the CPU to another one.
fn preemptions() -> i64 {
    // SAFETY: zeros are a value of this structure of integers, which is ours.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage.ru_nivcsw
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
fn clock() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
