//! memtrace on a terminal: what becomes of it and of the process when that is gone, and that nothing a process is called is
//! obeyed there.

mod common;

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::ptr::{null, null_mut};
use std::thread;
use std::time::{Duration, Instant};

use common::run::{Victim, memtrace, run};
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::{cc, skip};

const PATIENCE: Duration = Duration::from_secs(60);
/// Clears a terminal, if it is obeyed.
const CLEAR: &str = "\x1b[2J";
/// It can be given any name: in the virtual machines cat is a program of many, which it tells by its name.
const WAITS: &str = include_str!("programs/waits.c");

/// The two ends of a new terminal.
fn terminal() -> (File, OwnedFd) {
    let (mut master, mut slave) = (-1, -1);
    // SAFETY: both places can be written to, and the optional arguments are left out.
    let failed = unsafe { libc::openpty(&raw mut master, &raw mut slave, null_mut(), null(), null()) };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
    // Whoever inherits the master keeps the terminal alive.
    // SAFETY: new descriptors that are nobody else's.
    let kept = unsafe { libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC) };
    assert_eq!(kept, 0);
    // SAFETY: as above.
    unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) }
}

/// memtrace with that terminal as its controlling one, all its streams on it.
fn on_terminal(words: &[&str], slave: OwnedFd) -> Child {
    let mut command = memtrace(words);
    let copy = || slave.try_clone().unwrap();
    command.stdin(copy()).stdout(copy()).stderr(copy());
    // SAFETY: system calls alone, none of which allocates.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    command.spawn().unwrap()
}

/// Reads until all of `words` have come.
fn read_until(master: &mut File, words: &[&str]) -> String {
    let mut seen = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&seen);
        if words.iter().all(|word| text.contains(word)) {
            return text.into_owned();
        }
        let count = master.read(&mut piece).unwrap_or(0);
        assert!(count > 0, "it ended after {text:?}");
        seen.extend_from_slice(&piece[..count]);
    }
}

fn end_of(child: &mut Child) {
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it goes on without a terminal");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_lost_terminal_ends_it_and_not_the_process() {
    if !skip::root("a_lost_terminal_ends_it_and_not_the_process") {
        return;
    }
    let mut victim = Victim::start("cat", &[]);
    let pid = victim.pid().to_string();
    for words in [&[][..], &["--output", "json"], &["--depth", "syscalls", "--events"]] {
        let (mut master, slave) = terminal();
        let mut all = vec!["--pid", &pid];
        all.extend(words);
        let mut child = on_terminal(&all, slave);
        read_until(&mut master, &["attached to cat"]);
        drop(master);
        end_of(&mut child);
        assert!(victim.0.try_wait().unwrap().is_none(), "the process runs on");
    }
}

/// A process whose name, path, words, settings and open file would all clear a terminal.
fn odd(scratch: &Scratch) -> Victim {
    let path = scratch.file(&format!("x{CLEAR}name"));
    let plain = cc::build("cc", "waits", WAITS, &[], scratch).unwrap_or_else(|problem| panic!("{problem}"));
    std::fs::rename(plain, &path).unwrap();
    let held = scratch.file(&format!("y{CLEAR}\n\u{9b}2Jfile"));
    std::fs::write(&held, vec![0; 1 << 16]).unwrap();
    let child = Command::new(path)
        .args(["-".to_owned(), format!("{CLEAR}\u{9b}2J\r\u{202e}word")])
        .env("GLIBC_TUNABLES", format!("glibc.malloc.{CLEAR}=1"))
        .env("MALLOC_ARENA_MAX", format!("2{CLEAR}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(File::create(&held).unwrap())
        .spawn();
    Victim(child.unwrap())
}

#[test]
fn a_report_on_a_terminal_has_nothing_of_the_process_that_it_would_obey() {
    if !skip::root("a_report_on_a_terminal_has_nothing_of_the_process_that_it_would_obey") {
        return;
    }
    let scratch = Scratch::new();
    let victim = odd(&scratch);
    let (mut master, slave) = terminal();
    let mut child = on_terminal(&["--for", "2500ms", "--pid", &victim.pid().to_string()], slave);
    let text = read_until(&mut master, &["attached to x[2Jname", "NOT SEEN"]);
    assert!(!text.contains(CLEAR) && !text.contains('\u{9b}'), "{text:?}");
    drop(master);
    end_of(&mut child);
}

#[test]
fn no_output_has_what_a_terminal_would_obey() {
    if !skip::root("no_output_has_what_a_terminal_would_obey") {
        return;
    }
    let scratch = Scratch::new();
    let victim = odd(&scratch);
    let pid = victim.pid().to_string();
    for (words, names) in [
        (&["--for", "200ms"][..], true),
        (&["--for", "200ms", "--output", "json"], true),
        (&["--for", "200ms", "--events"], false),
        (&["doctor"], true),
        (&["doctor", "--output", "json"], true),
        (&["probes"], false),
        (&["explain"], true),
        (&["explain", "--output", "json"], true),
        (&["explain", "--files"], true),
        (&["explain", "--output", "svg"], false),
    ] {
        let mut all = words.to_vec();
        all.extend(["--pid", &pid]);
        let ran = run(&all);
        assert!(matches!(ran.code, Some(0 | 1)), "{words:?}: {ran:#?}");
        assert!(!names || ran.stdout.contains("[2Jname"), "{words:?}: {ran:#?}");
        for text in [&ran.stdout, &ran.stderr] {
            let obeyed = text.chars().find(|&c| c.is_control() && c != '\n' || c == '\u{202e}');
            assert_eq!(obeyed, None, "{words:?}: {text}");
            // JSON's way to write them.
            assert!(
                !text.contains("\\u001b") && !text.contains("\\u009b"),
                "{words:?}: {text}"
            );
        }
    }
}
