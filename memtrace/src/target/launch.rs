//! A child that is forked, waits to be seized, becomes another user if asked to, and executes a command.
//!
//! ```text
//! parent                          child
//!   fork ------------------------> waits for the "go" pipe
//!   PTRACE_SEIZE
//!   writes "go" -----------------> becomes the user, execs
//!   waits for the exec event       (or writes where and why it failed, and ends)
//! ```

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use super::spawn::SpawnError;

/// A child between fork and exec.
pub(super) struct Launch {
    pub pid: libc::pid_t,
    go: File,
    failure: File,
}

/// Whom the command runs as.
pub(super) struct Identity {
    uid: libc::uid_t,
    gid: libc::gid_t,
    groups: Vec<libc::gid_t>,
}

/// At which step the child failed.
const BECOMING_USER: u8 = 1;
const EXECUTING: u8 = 2;

impl Launch {
    /// Forks; the child does nothing yet.
    pub fn fork(command: &[OsString], identity: Option<&Identity>) -> Result<Self, SpawnError> {
        let words: Vec<CString> = command
            .iter()
            .map(|word| CString::new(word.as_bytes()).map_err(|_| SpawnError::NulInCommand))
            .collect::<Result<_, _>>()?;
        let mut arguments: Vec<*const libc::c_char> = words.iter().map(|word| word.as_ptr()).collect();
        arguments.push(std::ptr::null());
        let (waits, go) = pipe().map_err(SpawnError::Fork)?;
        let (failure, tells) = pipe().map_err(SpawnError::Fork)?;

        // SAFETY: the child calls only what is safe after a fork of a process with threads, on memory made before.
        match unsafe { libc::fork() } {
            -1 => Err(SpawnError::Fork(io::Error::last_os_error())),
            0 => {
                // The child's own copy of this end would keep the pipe open when memtrace dies.
                // SAFETY: closes a descriptor that only the parent goes on using.
                unsafe { libc::close(go.as_raw_fd()) };
                // SAFETY: as above; `arguments` ends with a null pointer and its strings live in `words`.
                unsafe { run(waits.as_raw_fd(), tells.as_raw_fd(), &arguments, identity) }
            }
            pid => Ok(Self {
                pid,
                go: File::from(go),
                failure: File::from(failure),
            }),
        }
    }

    /// Lets the child go on to its exec.
    pub fn go(&mut self) -> io::Result<()> {
        self.go.write_all(&[1])
    }

    /// Why the child has ended before its exec.
    pub fn failure(mut self, name: &OsString, user: Option<&str>) -> SpawnError {
        let command = super::printable(name.as_bytes());
        let mut report = [0; 5];
        if let Err(error) = self.failure.read_exact(&mut report) {
            return SpawnError::Exec { command, error };
        }
        let [step, code @ ..] = report;
        let error = io::Error::from_raw_os_error(i32::from_ne_bytes(code));
        match (step, error.raw_os_error()) {
            (BECOMING_USER, _) => SpawnError::BecomeUser {
                user: user.unwrap_or_default().to_owned(),
                error,
            },
            (_, Some(libc::ENOENT | libc::ENOTDIR)) => SpawnError::NotFound { command },
            // The search goes on past a folder of PATH that may not be read, and remembers its error.
            (_, Some(libc::EACCES)) if !name.as_bytes().contains(&b'/') && !is_in_path(name) => {
                SpawnError::NotFound { command }
            }
            (_, Some(libc::EACCES)) => SpawnError::NotExecutable { command },
            (_, Some(libc::ENOEXEC)) => SpawnError::NotAProgram { command },
            _ => SpawnError::Exec { command, error },
        }
    }
}

/// The child's way to its exec.
///
/// # Safety
///
/// To be called in a forked child; `arguments` are strings, the last is null.
unsafe fn run(
    waits: libc::c_int,
    tells: libc::c_int,
    arguments: &[*const libc::c_char],
    identity: Option<&Identity>,
) -> ! {
    let fail = |step: u8| -> ! {
        let [a, b, c, d] = io::Error::last_os_error().raw_os_error().unwrap_or(0).to_ne_bytes();
        let report = [step, a, b, c, d];
        // SAFETY: writes five bytes of a live array, then ends this process without running anything of the parent's.
        unsafe {
            libc::write(tells, report.as_ptr().cast(), report.len());
            libc::_exit(127)
        }
    };
    let mut byte = 0_u8;
    // SAFETY: reads one byte into a live variable.
    let got = unsafe { libc::read(waits, (&raw mut byte).cast(), 1) };
    if got != 1 {
        // The parent is gone.
        // SAFETY: ends this process without running anything of the parent's.
        unsafe { libc::_exit(127) }
    }
    // SAFETY: a signal set is plain data; Rust's own start-up has set SIGPIPE to be ignored, which exec would keep.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
    if let Some(Identity { uid, gid, groups }) = identity {
        // The C library's own functions take locks that another thread may have held at the fork.
        // SAFETY: raw system calls with plain numbers and a live slice.
        let became = unsafe {
            libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0
                && libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid) == 0
                && libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid) == 0
        };
        if !became {
            fail(BECOMING_USER);
        }
    }
    // SAFETY: the caller vouches for `arguments`.
    unsafe { libc::execvp(arguments[0], arguments.as_ptr()) };
    fail(EXECUTING)
}

impl Identity {
    /// The user's id, group and supplementary groups.
    pub fn of(user: &str) -> Result<Self, SpawnError> {
        let unknown = || SpawnError::UnknownUser { user: user.to_owned() };
        let name = CString::new(user).map_err(|_| unknown())?;
        let mut buffer = vec![0_u8; 16 << 10];
        let (uid, gid) = loop {
            let mut found = std::ptr::null_mut();
            // SAFETY: a zeroed passwd is only written to; the buffer is as long as said.
            let (entry, code) = unsafe {
                let mut entry: libc::passwd = std::mem::zeroed();
                let room = buffer.as_mut_ptr().cast();
                let code = libc::getpwnam_r(name.as_ptr(), &raw mut entry, room, buffer.len(), &raw mut found);
                (entry, code)
            };
            match code {
                libc::ERANGE => buffer.resize(buffer.len() * 2, 0),
                0 if found.is_null() => return Err(unknown()),
                0 => break (entry.pw_uid, entry.pw_gid),
                code => {
                    let error = io::Error::from_raw_os_error(code);
                    return Err(SpawnError::BecomeUser {
                        user: user.to_owned(),
                        error,
                    });
                }
            }
        };
        let mut groups = vec![0; 64];
        loop {
            let mut count = libc::c_int::try_from(groups.len()).unwrap_or(libc::c_int::MAX);
            // SAFETY: writes at most `count` groups into a slice of that length.
            let found = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
            let count = usize::try_from(count).unwrap_or(0);
            if found >= 0 {
                groups.truncate(count);
                return Ok(Self { uid, gid, groups });
            }
            groups.resize(count.max(groups.len() * 2), 0);
        }
    }
}

/// Whether some folder of PATH has a file of this name, executable or not.
fn is_in_path(name: &OsString) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    Ok((reader.into(), writer.into()))
}
