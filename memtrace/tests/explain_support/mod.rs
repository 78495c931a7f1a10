//! The program support/c/heaps.c under several releases of glibc, and looks at it.
#![expect(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;

use memtrace::inspect::{self, LookOptions};
use memtrace_analysis::glibc::look::{Look, Resident};
use memtrace_test_support::cc::{self, Kind};
use memtrace_test_support::child::Talker;
use memtrace_test_support::counter::Counter;
use memtrace_test_support::glibc::{Release, oldest, releases, system_version};
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::skip::skip;

/// The program, ready to run under one glibc.
pub struct Heaps {
    pub shown: String,
    pub version: (u32, u32),
    release: Option<Release>,
    program: PathBuf,
    counter: Rc<Counter>,
    scratch: Rc<Scratch>,
}

impl Heaps {
    /// Under the machine's own glibc.
    pub fn under_own_glibc() -> Heaps {
        let scratch = Rc::new(Scratch::new());
        let counter = Rc::new(Counter::build(None, &scratch));
        Heaps {
            shown: "the machine's glibc".to_owned(),
            version: system_version(),
            release: None,
            program: cc::compile("heaps", Kind::Program, None, &scratch),
            counter,
            scratch,
        }
    }

    /// Under the machine's own glibc and under all that were unpacked; says so aloud where there are none.
    pub fn under_every_glibc(test: &str) -> Vec<Heaps> {
        let mut all = vec![Heaps::under_own_glibc()];
        // In a virtual machine, which is slow, each kernel has another release for its own.
        if cc::is_ahead() {
            return all;
        }
        let releases = releases();
        let Some(oldest) = oldest(&releases) else {
            skip(
                test,
                "only the machine's own glibc: no other release is unpacked (cargo xtask glibcs)",
            );
            return all;
        };
        let scratch = Rc::new(Scratch::new());
        let program = cc::compile("heaps", Kind::Program, Some(oldest), &scratch);
        let counter = Rc::new(Counter::build(Some(oldest), &scratch));
        all.extend(releases.iter().map(|release| Heaps {
            shown: release.shown(),
            version: release.version,
            release: Some(release.clone()),
            program: program.clone(),
            counter: counter.clone(),
            scratch: scratch.clone(),
        }));
        all
    }

    /// Under one of the releases that were unpacked, not under the machine's own.
    pub const fn is_unpacked(&self) -> bool {
        self.release.is_some()
    }

    /// Starts a kind of heap, with its numbers behind a blank.
    pub fn start(&self, kind: &str) -> Process {
        self.start_with(kind, None, &[])
    }

    /// With something of its environment set.
    pub fn start_set(&self, kind: &str, environment: &[(&str, &str)]) -> Process {
        self.start_with(kind, None, environment)
    }

    /// The same with calls counted by the preloaded library.
    pub fn start_counted(&self, kind: &str) -> Process {
        self.start_with(kind, Some(self.counter.clone()), &[])
    }

    fn start_with(&self, kind: &str, counter: Option<Rc<Counter>>, environment: &[(&str, &str)]) -> Process {
        let preload = counter.as_ref().map(|counter| counter.library());
        let mut words: Vec<OsString> = match &self.release {
            Some(release) => release.runner(preload),
            None => Vec::new(),
        };
        words.push(self.program.clone().into());
        words.extend(kind.split(' ').map(OsString::from));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(environment.iter().copied());
        if let Some(counter) = &counter {
            let (name, value) = counter.environment();
            command.env(name, value);
            if self.release.is_none() {
                command.env("LD_PRELOAD", counter.library());
            }
        }
        Process {
            talker: Talker::start(&mut command),
            facts: BTreeMap::new(),
            counter,
        }
    }
}

/// A running one, at one of its points.
pub struct Process {
    pub talker: Talker,
    /// What it said last of itself.
    pub facts: BTreeMap<String, u64>,
    counter: Option<Rc<Counter>>,
}

impl Process {
    /// Lets it go on until it comes to this point.
    pub fn skip_to(&mut self, point: &str) {
        loop {
            if !self.facts.is_empty() {
                self.talker.go_on();
            }
            let line = self.talker.line();
            let mut words = line.split(' ');
            let here = words.next() == Some(point);
            self.facts = words
                .filter_map(|fact| {
                    let (name, value) = fact.split_once('=')?;
                    Some((name.to_owned(), value.parse().ok()?))
                })
                .collect();
            self.facts.insert("point".to_owned(), 1);
            if here {
                return;
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.talker.pid()
    }

    /// A look without stopping it; it waits for a line and stands still anyway.
    pub fn look(&self) -> Look {
        inspect::look(self.pid()).unwrap_or_else(|error| panic!("looking at process {}: {error:#}", self.pid()))
    }

    pub fn look_stopped(&self) -> Look {
        let options = LookOptions {
            stop: true,
            ..LookOptions::default()
        };
        let capture = inspect::take(self.pid(), options);
        capture
            .unwrap_or_else(|error| panic!("stopping process {}: {error:#}", self.pid()))
            .explain()
    }

    /// Blocks that were handed out at the interface and not given back.
    pub fn counted_live_blocks(&self) -> u64 {
        let counts = self.counter.as_ref().expect("its calls are counted").counts(self.pid());
        counts.new_blocks() - counts.freed_blocks()
    }
}

/// The parts that are to make up the total, added up apart from the code under test.
pub fn sum_of_parts(resident: &Resident) -> u64 {
    resident.live
        + resident.retained
        + resident.allocator_overhead
        + resident.file
        + resident.shared
        + resident.stacks
        + resident.other_anon
}

/// Where a look contradicts itself, the program or glibc's own statistics. Of blocks that glibc itself keeps (a dtv for
/// each thread, for one) there may be a few more than the program knows.
pub fn differs(whose: &str, look: &Look, facts: &BTreeMap<String, u64>) -> Vec<String> {
    let mut wrong = Vec::new();
    let heap = look
        .heap
        .as_ref()
        .unwrap_or_else(|| panic!("{whose}: no heap: {:?}", look.heap_unknown));
    let mut check = |what: &str, found: u64, low: u64, high: u64| {
        if !(low..=high).contains(&found) {
            wrong.push(format!("{whose}: {what} is {found}, not {low} to {high}"));
        }
    };
    let threads = u64::from(look.target.threads) + heap.arenas.len() as u64;
    check(
        "live blocks",
        heap.live_blocks,
        facts["blocks"],
        facts["blocks"] + 2 * threads,
    );
    // A mapped block's usable bytes depend on its alignment; its pages are what can be told.
    let slack = 4096 * (heap.mapped_blocks + 1) + 2048 * threads;
    check(
        "live usable bytes",
        heap.live_usable_bytes,
        facts["usable"].saturating_sub(slack),
        facts["usable"] + slack,
    );
    check("free bytes", heap.free_bytes, facts["fordblks"], facts["fordblks"]);
    check("mapped blocks", heap.mapped_blocks, facts["hblks"], facts["hblks"]);
    check("mapped bytes", heap.mapped_bytes, facts["hblkhd"], facts["hblkhd"]);
    check("system bytes", heap.system_bytes, facts["arena"], facts["arena"]);
    let in_arenas: u64 = heap
        .arenas
        .iter()
        .map(|arena| arena.live_bytes + arena.cached_bytes + arena.overhead_bytes)
        .sum();
    check("bytes in use", in_arenas, facts["uordblks"], facts["uordblks"]);
    let resident = &look.resident;
    // Saying its facts takes the program some pages of its stack, which a kernel may hand out 64 KiB at a time.
    let room = 192 << 10;
    check(
        "resident anonymous bytes",
        resident.total - resident.file - resident.shared,
        facts["anonymous"].saturating_sub(room),
        facts["anonymous"] + room,
    );
    let sum = sum_of_parts(resident);
    check("the sum of resident parts", sum, resident.total, resident.total);
    let parts = resident.retained_parts;
    check(
        "the sum of retained parts",
        parts.trimmable + parts.pinned + parts.kept,
        resident.retained,
        resident.retained,
    );
    if look.torn {
        wrong.push(format!("{whose}: torn though nothing moved: {:#?}", look.problems));
    }
    wrong
}
