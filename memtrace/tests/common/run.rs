//! Running memtrace as a user would.

use std::ffi::OsStr;
use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// No run of these tests takes longer on a machine that works, an emulated one included.
const PATIENCE: Duration = Duration::from_secs(300);

/// memtrace with these arguments, its streams captured, a plain environment.
pub fn memtrace<A: AsRef<OsStr>>(args: &[A]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memtrace"));
    command.args(args).env_remove("NO_COLOR").env_remove("RUST_BACKTRACE");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// What a run came to.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs to the end.
pub fn run<A: AsRef<OsStr>>(args: &[A]) -> Ran {
    let child = memtrace(args).spawn().expect("memtrace can be started");
    finish(child)
}

/// Waits for a child, ending it by force (and the test with it) when it takes too long.
pub fn finish(child: Child) -> Ran {
    let pid = child.id();
    let (done, wait) = mpsc::channel();
    let waiter = thread::spawn(move || {
        let output = child.wait_with_output();
        // The other side may have given up; then nobody wants the result.
        let _given_up = done.send(());
        output
    });
    if wait.recv_timeout(PATIENCE).is_err() {
        let pid = i32::try_from(pid).expect("process ids fit");
        // SAFETY: the child has not been waited for, so the id is still its own.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        let output = waiter.join().expect("the waiter does not panic");
        panic!("memtrace did not end within {PATIENCE:?}: {output:?}");
    }
    let output = waiter
        .join()
        .expect("the waiter does not panic")
        .expect("the child can be waited for");
    let Output { status, stdout, stderr } = output;
    Ran {
        code: status.code(),
        stdout: String::from_utf8(stdout).expect("memtrace prints UTF-8"),
        stderr: String::from_utf8(stderr).expect("memtrace prints UTF-8"),
    }
}

/// A run that must fail with exit status 1, a sentence that holds all of `words`, and nothing on standard output.
pub fn fails<A: AsRef<OsStr>>(args: &[A], words: &[&str]) {
    let ran = run(args);
    said(&ran, 1, words);
    assert_eq!(ran.stdout, "", "an error is no data");
}

/// Checks exit status and the words of standard error, and that both are fit for people.
pub fn said(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.code, Some(code), "{ran:#?}");
    for word in words {
        assert!(ran.stderr.contains(word), "{word:?} is missing: {ran:#?}");
    }
    assert!(!ran.stderr.contains("panicked"), "{ran:#?}");
    assert!(!ran.stderr.contains("Os {"), "an error's innards: {ran:#?}");
}

/// A child that lives until it is dropped.
pub struct Victim(pub Child);

impl Victim {
    pub fn start(program: &str, args: &[&str]) -> Self {
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("starting {program}: {error}"));
        Self(child)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits until the program is up, by its first output of `bytes` bytes.
    pub fn hear(&mut self, bytes: usize) -> Vec<u8> {
        let mut heard = vec![0; bytes];
        let out = self.0.stdout.as_mut().expect("its output is ours");
        out.read_exact(&mut heard).expect("it says something");
        heard
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.0.kill();
        let _waited = self.0.wait();
    }
}
