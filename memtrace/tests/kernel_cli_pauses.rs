//! The budget, on programs that do little but system calls, each of which is made longer by watching a few: memtrace pauses,
//! watches them in windows, says so, and claims nothing across a pause. When the storm is over it watches everything again.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use common::run::{finish, memtrace, run};
use common::schema;
use memtrace_test_support::child::Talker;
use memtrace_test_support::kernel::shows_registers;
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::{cc, skip};
use serde_json::Value;

/// Tells each step of its break, all of which it makes itself; 4096 bytes are its own, the rest malloc's.
const STORM: Program = Program("getppid_storm", include_str!("programs/getppid_storm.c"));
/// Most of its system calls are those of signal handlers, which interrupt malloc.
const HANDLERS: Program = Program("handler_storm", include_str!("programs/handler_storm.c"));

struct Program(&'static str, &'static str);

/// How long it storms while it is traced: long enough for a pause and for windows in it.
const STORMING: Duration = Duration::from_secs(10);
/// How long a trace takes that sees the end of the storm, and one that may miss it.
const BEYOND: &str = "30s";
const NOT_BEYOND: &str = "12s";
/// How a storm is built that has a malloc of its own, where there is nothing to probe.
const OWN_MALLOC: &str = "-DOWN_MALLOC";

/// While one trace is at the system calls, nothing is left for another one to add to them.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    // A test that has failed is no reason for the others.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program that storms, in a directory of its own.
struct Storm {
    talker: Talker,
    scratch: Scratch,
    has_children: bool,
}

impl Storm {
    fn start(program: &Program, options: &[&str], words: &[&str]) -> Self {
        let scratch = Scratch::new();
        let Program(name, source) = program;
        let built = cc::build("cc", name, source, options, &scratch).unwrap_or_else(|problem| panic!("{problem}"));
        let mut talker = Talker::start(Command::new(built).args(words));
        assert_eq!(talker.line(), "ready");
        Self {
            talker,
            scratch,
            has_children: !words.is_empty(),
        }
    }

    /// It is traced from now on, and may have its children.
    fn begin(&mut self) {
        if self.has_children {
            self.talker.go_on();
        }
    }

    fn pid(&self) -> u32 {
        self.talker.pid()
    }

    /// Ends the storm; what it has told up to there.
    fn rest(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        self.talker.go_on();
        loop {
            match self.talker.line() {
                line if line == "rests" => return told,
                line => told.push(line),
            }
        }
    }

    /// The rest of what it tells.
    fn end(self) -> Vec<String> {
        let (told, status) = self.talker.finish();
        assert!(status.success(), "the program ended with {status}");
        told.lines().map(str::to_owned).collect()
    }
}

/// What was reported of each process, and what the programs themselves have told.
struct Watched {
    reports: BTreeMap<u32, Value>,
    told: Vec<String>,
    /// The report as text.
    text: String,
}

/// Traces storms, which are over before the trace ends where that is [`BEYOND`].
fn watch(mut storms: Vec<Storm>, length: &str, words: &[&str]) -> Watched {
    let record = storms[0].scratch.file("trace");
    let record = record.to_str().expect("a path in UTF-8").to_owned();
    let mut command = memtrace(&["--for", length, "--output", "json", "--record", &record]);
    command.args(words);
    for storm in &storms {
        command.args(["--pid", &storm.pid().to_string()]);
    }
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("starting memtrace");
    let mut said = BufReader::new(child.stderr.take().expect("its standard error"));
    let mut line = String::new();
    said.read_line(&mut line).expect("reading what it says");
    assert!(line.contains("attached to "), "{line}");
    for storm in &mut storms {
        storm.begin();
    }
    thread::sleep(STORMING);
    let mut told = Vec::new();
    for storm in &mut storms {
        told.extend(storm.rest());
    }
    let ran = finish(child);
    assert_eq!(ran.code, Some(0));
    let again = run(&["replay", &record, "--output", "json"]);
    assert!(again.stdout == ran.stdout, "a record of it replays to the same report");
    let text = run(&["replay", &record]).stdout;
    for storm in storms {
        told.extend(storm.end());
    }
    schema::check(&ran.stdout);
    let document: Value = serde_json::from_str(&ran.stdout).expect("a document");
    let reports = match document["processes"].as_array() {
        Some(processes) => processes.clone(),
        None => vec![document],
    };
    let of = |report: Value| (u32::try_from(number(&report["target"]["pid"])).expect("a pid"), report);
    Watched {
        reports: reports.into_iter().map(of).collect(),
        told,
        text: text.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

impl Watched {
    fn only(&self) -> &Value {
        assert_eq!(self.reports.len(), 1);
        self.reports.values().next().expect("a report")
    }

    /// Each step of a process's break, as it has told them.
    fn steps_of(&self, pid: u32) -> Vec<(u64, u64)> {
        let numbers = self.told.iter().map(|line| {
            let numbers = line.split(' ').map(|number| number.parse().expect("a number"));
            numbers.collect::<Vec<u64>>()
        });
        numbers
            .filter(|numbers| numbers[0] == u64::from(pid))
            .map(|numbers| (numbers[1], numbers[2]))
            .collect()
    }

    /// Each step of the break that was seen is one of the process's own, or a part of one, and what that says of its cause is so.
    fn check_steps(&self, pid: u32, is_direct: fn(u64) -> bool) {
        let (report, own) = (&self.reports[&pid], self.steps_of(pid));
        let growth = &report["growth"];
        let of_break = growth["steps"].as_array().unwrap().iter();
        for (nth, step) in of_break.filter(|step| step["kind"] == "brk").enumerate() {
            let (from, to) = (number(&step["from"]), number(&step["to"]));
            // Without registers what made a call, and so from where it moved the break, is likely at most: malloc and sbrk take
            // turns.
            if !shows_registers() && step["cause"]["attribution"] != "direct" {
                assert!(own.iter().any(|whole| whole.0 < to && to <= whole.1), "{step:#}");
                continue;
            }
            // malloc takes two where somebody else has moved the break.
            // Where the break is at the start is looked up before the trace begins: a step in between is in the first one.
            let is_in = |whole: &&(u64, u64)| (whole.0 <= from || nth == 0 && whole.0 < to) && to <= whole.1;
            // Where the break was at the end of a pause only malloc's books can tell, and they know nothing of an sbrk in it.
            let after_sbrk =
                |pair: &&[(u64, u64)]| pair[0].0 == from && by_itself(pair[0].1 - pair[0].0) && to <= pair[1].1;
            let whole = own.iter().find(is_in).or_else(|| {
                let pair = own
                    .windows(2)
                    .find(after_sbrk)
                    .filter(|_| step["cause"]["entry"] == "malloc");
                pair.map(|pair| &pair[1])
            });
            let whole = whole.unwrap_or_else(|| panic!("no step of process {pid}: {step:#}"));
            assert_eq!(
                step["cause"]["entry"] == "direct",
                is_direct(whole.1 - whole.0),
                "{step:#}"
            );
        }
        assert!(number(&growth["brk_steps_total"]) <= 2 * own.len() as u64);
        assert!(number(&report["syscalls"]["brk"]["count"]) <= 2 * own.len() as u64);
    }
}

/// What the storm takes from the break by sbrk.
const fn by_itself(step: u64) -> bool {
    step == 4096
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number: {value}"))
}

/// Not in an emulated machine: what things cost there, and how much gets done in a window, says nothing.
fn tells_time() -> bool {
    !cc::is_ahead()
}

fn has_steps(report: &Value) -> bool {
    !report["growth"]["steps"].as_array().unwrap().is_empty()
}

/// Whether there was a pause; where there was, that it is told as one, and nothing is claimed across it.
fn has_paused(report: &Value) -> bool {
    let coverage = &report["coverage"];
    if number(&coverage["depths"]["nothing_ns"]) == 0 {
        // Where another tracer is at the system calls already, nothing is left to add to them.
        let cost = &report["cost"];
        let most = cost["max_share"].as_f64().unwrap() * number(&cost["cpu_ns"]) as f64;
        assert!(!tells_time() || number(&cost["syscalls_ns"]) as f64 <= most, "{cost:#}");
        eprintln!(
            "there was no pause: another tracer makes every system call longer already, or the machine is emulated"
        );
        return false;
    }
    let watched = coverage["syscalls_fraction"].as_f64().unwrap();
    assert!((0.0..1.0).contains(&watched), "{coverage:#}");
    assert!(
        coverage["not_seen"]
            .to_string()
            .contains("memory system calls were watched in"),
        "{coverage:#}"
    );
    assert_eq!(report["live_blocks"], Value::Null);
    for finding in report["findings"].as_array().unwrap() {
        assert_ne!(finding["confidence"], "proven", "{finding:#}");
    }
    true
}

/// What was on its way when a pause began or ended is not lost, and makes no sense of its own.
fn is_sound(report: &Value) {
    let coverage = &report["coverage"];
    // Where all is slow, the buffer may be full before memtrace comes to read it.
    assert!(!tells_time() || number(&coverage["lost_events"]) == 0, "{coverage:#}");
    assert_eq!(coverage["oddities"], serde_json::json!({}));
}

#[test]
fn a_storm_of_system_calls_is_watched_in_windows_and_nothing_wrong_is_said_of_it() {
    if !skip::root("a_storm_of_system_calls_is_watched_in_windows_and_nothing_wrong_is_said_of_it") {
        return;
    }
    let _alone = alone();
    let watched = watch(vec![Storm::start(&STORM, &[], &[])], BEYOND, &[]);
    let (&pid, report) = watched.reports.first_key_value().expect("a report");
    if has_paused(report) {
        assert!(number(&report["coverage"]["depths"]["syscalls_ns"]) > 0);
        for words in [
            "system calls watched in ",
            "while system calls were watched",
            ", nothing for ",
        ] {
            assert!(watched.text.contains(words), "{words:?} is missing: {}", watched.text);
        }
    }
    // The storm has been over for long.
    assert!(
        !tells_time() || report["coverage"]["depth"] == "calls",
        "{:#}",
        report["coverage"]
    );
    is_sound(report);
    assert!(!tells_time() || has_steps(report));
    watched.check_steps(pid, by_itself);
}

/// The budget holds for whatever memtrace does to a process: also where its allocator is not probed.
#[test]
fn a_process_without_probes_has_a_budget_too() {
    if !skip::root("a_process_without_probes_has_a_budget_too") {
        return;
    }
    let _alone = alone();
    let watched = watch(vec![Storm::start(&STORM, &[OWN_MALLOC], &[])], BEYOND, &[]);
    let (&pid, report) = watched.reports.first_key_value().expect("a report");
    assert_eq!(report["coverage"]["depth_automatic"], true);
    assert_eq!(number(&report["cost"]["hits"]), 0);
    has_paused(report);
    assert!(
        !tells_time() || report["coverage"]["depth"] == "syscalls",
        "{:#}",
        report["coverage"]
    );
    is_sound(report);
    assert!(!tells_time() || has_steps(report));
    watched.check_steps(pid, |_| true);
}

/// Of several processes, one of which has no probes, each has its own story.
#[test]
fn several_processes_pause_together() {
    if !skip::root("several_processes_pause_together") {
        return;
    }
    let _alone = alone();
    let storms: Vec<Storm> = [&[][..], &[OWN_MALLOC]]
        .map(|options| Storm::start(&STORM, options, &[]))
        .into();
    let pids: Vec<u32> = storms.iter().map(Storm::pid).collect();
    let watched = watch(storms, NOT_BEYOND, &[]);
    assert_eq!(watched.reports.len(), 2);
    let paused: Vec<bool> = watched.reports.values().map(has_paused).collect();
    assert_eq!(paused[0], paused[1], "a pause is one of all");
    watched.reports.values().for_each(is_sound);
    watched.check_steps(pids[0], by_itself);
    watched.check_steps(pids[1], |_| true);
    assert!(!tells_time() || watched.reports.values().any(has_steps));
}

/// In an emulated guest only some of them come to be.
const CHILDREN: usize = 40;

/// Children are born and die in pauses and in windows; each is there, and what is said of it is its own.
#[test]
fn children_are_followed_through_pauses() {
    if !skip::root("children_are_followed_through_pauses") {
        return;
    }
    let _alone = alone();
    let storm = Storm::start(&STORM, &[], &[&CHILDREN.to_string()]);
    let parent = storm.pid();
    let watched = watch(vec![storm], NOT_BEYOND, &["--follow"]);
    let born = watched
        .told
        .iter()
        .map(|line| line.split(' ').next().unwrap().parse().unwrap());
    let born: BTreeSet<u32> = born.collect();
    let reported: BTreeSet<u32> = watched.reports.keys().copied().collect();
    assert_eq!(reported, born);
    assert!(!tells_time() || born.len() > 2, "there were hardly any children");
    has_paused(&watched.reports[&parent]);
    for (&pid, report) in &watched.reports {
        is_sound(report);
        watched.check_steps(pid, by_itself);
    }
}

/// A handler that interrupts malloc makes system calls of its own, pauses begin and end in it, and malloc goes on after it.
#[test]
fn signal_handlers_are_told_from_malloc_across_pauses() {
    if !skip::root("signal_handlers_are_told_from_malloc_across_pauses") {
        return;
    }
    let _alone = alone();
    let watched = watch(vec![Storm::start(&HANDLERS, &[], &[])], NOT_BEYOND, &[]);
    let report = watched.only();
    has_paused(report);
    is_sound(report);
    if !shows_registers() {
        eprintln!("this kernel shows no registers at system calls, so what made one is not told here");
        return;
    }
    let told = |name: &str| -> u64 {
        let line = watched.told.iter().find_map(|line| line.strip_prefix(name));
        line.expect("it tells that").trim().parse().expect("a number")
    };
    let mmap = &report["syscalls"]["mmap"];
    let (of_malloc, direct) = (number(&mmap["attributed"]), number(&mmap["direct"]));
    assert!(of_malloc <= told("allocated"), "{mmap:#}");
    assert!(direct <= told("own"), "{mmap:#}");
    assert!(!tells_time() || direct > 0 && has_steps(report), "{mmap:#}");
    for step in report["growth"]["steps"].as_array().unwrap() {
        assert_eq!(step["cause"]["entry"], "malloc", "{step:#}");
        if step["kind"] == "mmap" && step["cause"]["request_known"] != false {
            assert_eq!(number(&step["cause"]["request"]), 400_000, "{step:#}");
        }
    }
}
