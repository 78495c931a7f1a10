//! A command started under our eyes: stopped at its exec and when its libc is mapped, then left alone.
//!
//! ptrace belongs to the thread that began it, so all of it happens inside [`Spawned::start`], on the caller's thread,
//! and is over when that returns. Should memtrace be killed on the way, the kernel lets the child run on.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use super::TargetError;
use super::image::{self, Image, Loading};
use super::launch::{Identity, Launch};
use super::process::Process;

/// A child of memtrace that runs by itself.
#[derive(Debug)]
pub struct Spawned {
    pid: u32,
    /// Becomes readable when the child ends.
    pidfd: OwnedFd,
    ended: Option<ExitStatus>,
}

/// Why a command could not be started under our eyes.
#[derive(Debug)]
pub enum SpawnError {
    NoCommand,
    NulInCommand,
    NotFound {
        command: String,
    },
    NotExecutable {
        command: String,
    },
    /// Neither a program of this machine nor a script.
    NotAProgram {
        command: String,
    },
    Exec {
        command: String,
        error: io::Error,
    },
    UnknownUser {
        user: String,
    },
    BecomeUser {
        user: String,
        error: io::Error,
    },
    Fork(io::Error),
    /// A ptrace or wait call failed; the words say which.
    Trace {
        what: &'static str,
        error: io::Error,
    },
    Target(TargetError),
    /// What the caller does at a stop failed; the child has been ended, since it had not begun.
    Caller(anyhow::Error),
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCommand => write!(f, "there is no command to start"),
            Self::NulInCommand => write!(f, "the command has a NUL byte in it"),
            Self::NotFound { command } if command.is_empty() => write!(f, "the command's name is empty"),
            Self::NotFound { command } => write!(f, "the command {command} was not found"),
            Self::NotExecutable { command } => write!(f, "{command} may not be executed: permission denied"),
            Self::NotAProgram { command } => write!(f, "{command} is not a program that this machine can run"),
            Self::Exec { command, error: _ } => write!(f, "starting {command} failed"),
            Self::UnknownUser { user } => write!(f, "there is no user {user}"),
            Self::BecomeUser { user, error: _ } => write!(f, "becoming the user {user} failed"),
            Self::Fork(_) => write!(f, "making a process for the command failed"),
            Self::Trace { what, error: _ } => write!(f, "{what} failed"),
            Self::Target(error) => write!(f, "{error}"),
            Self::Caller(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for SpawnError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Exec { error, .. } | Self::BecomeUser { error, .. } | Self::Trace { error, .. } => Some(error),
            Self::Fork(error) => Some(error),
            Self::Target(error) => error.source(),
            Self::Caller(error) => error.source(),
            _ => None,
        }
    }
}

impl SpawnError {
    /// What to do about it, where something can be done.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::BecomeUser { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => {
                Some(String::from("starting a command as someone else needs root"))
            }
            Self::NotExecutable { command } => Some(not_executable(command)),
            Self::Target(error) => error.hint(),
            _ => None,
        }
    }

    /// The exit status that shells give: 127 for a command not found, 126 for one that cannot be executed.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } | Self::NotAProgram { .. } => 126,
            _ => 1,
        }
    }
}

/// What stands in the way of executing it, as far as it can be seen from here.
fn not_executable(command: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    match std::fs::metadata(command) {
        Ok(found) if found.is_dir() => format!("{command} is a directory: name a program in it"),
        Ok(found) if found.permissions().mode() & 0o111 != 0 => {
            format!(
                "its file is executable for some: may that user execute it, and enter every folder on the way to {command}?"
            )
        }
        _ => format!("if it is a program or a script: chmod +x {command}"),
    }
}

impl Spawned {
    /// Starts `command` (found through PATH), as `user` where one is given, and calls `at` at each [`Moment`] with the
    /// child stopped. When `start` returns, the child runs by itself or has ended. An error of `at` ends the child.
    pub fn start(
        command: &[OsString],
        user: Option<&str>,
        mut at: impl FnMut(u32, Moment) -> anyhow::Result<()>,
    ) -> Result<Self, SpawnError> {
        let program = command.first().ok_or(SpawnError::NoCommand)?;
        let identity = user.map(Identity::of).transpose()?;
        let mut launch = Launch::fork(command, identity.as_ref())?;
        let child = Tracee { pid: launch.pid };
        let spawned = child.pidfd().and_then(|pidfd| {
            child.seize()?;
            at(child.pid as u32, Moment::BeforeExec).map_err(SpawnError::Caller)?;
            launch.go().map_err(trace("letting the child go on"))?;
            Ok((child.run_until_ready(&mut at)?, pidfd))
        });
        let pid = child.pid as u32;
        match spawned {
            Ok((Reached::Ready, pidfd)) => Ok(Self {
                pid,
                pidfd,
                ended: None,
            }),
            Ok((Reached::Ended(status), pidfd)) => Ok(Self {
                pid,
                pidfd,
                ended: Some(status),
            }),
            Ok((Reached::NoExec, _)) => Err(launch.failure(program, user)),
            Err(error) => {
                child.end();
                Err(error)
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How the child ended, if it has.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = wait(self.pid as libc::pid_t, libc::WNOHANG)?;
        }
        Ok(self.ended)
    }

    /// Waits for the child to end. Its pidfd tells the same to an event loop.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.ended {
                return Ok(status);
            }
            self.ended = wait(self.pid as libc::pid_t, 0)?;
        }
    }
}

impl AsFd for Spawned {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// When a child is stopped on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Moment {
    /// It is still a copy of memtrace, and the exec is the next thing it does. Not the place for a look at it.
    BeforeExec,
    /// The new program is in place and has not executed an instruction.
    Executed,
    /// The code of its libc is mapped and has not been executed; for a program without one to wait for, straight after
    /// `Executed`. It does not come to this when the process ends before, for want of a library for example.
    LibcMapped,
}

/// How far a child has come.
enum Reached {
    Ready,
    Ended(ExitStatus),
    NoExec,
}

/// What a child has mapped so far.
struct Loaded {
    /// Where each piece of code stands, as the last look found it.
    code: Vec<u64>,
    loading: Loading,
}

/// A child under ptrace.
struct Tracee {
    pid: libc::pid_t,
}

/// What a wait for a tracee tells.
enum Stop {
    Exec,
    Syscall,
    /// It is about to get this signal.
    Signal(libc::c_int),
    /// It is stopped as a whole (job control).
    Group,
    /// Nothing to be done but to go on.
    Other,
    Ended(ExitStatus),
}

impl Tracee {
    fn seize(&self) -> Result<(), SpawnError> {
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
        self.ptrace(
            libc::PTRACE_SEIZE,
            options as usize,
            "watching the child's start (ptrace)",
        )
    }

    fn run_until_ready(&self, at: &mut impl FnMut(u32, Moment) -> anyhow::Result<()>) -> Result<Reached, SpawnError> {
        let pid = self.pid as u32;
        loop {
            match self.next_stop()? {
                Stop::Exec => break,
                Stop::Ended(_) => return Ok(Reached::NoExec),
                other => self.resume(libc::PTRACE_CONT, &other)?,
            }
        }
        at(pid, Moment::Executed).map_err(SpawnError::Caller)?;
        let mut stop = Stop::Exec;
        let mut loaded = Loaded {
            code: Vec::new(),
            loading: Loading::WaitsForLibc { loader: 0..u64::MAX },
        };
        loop {
            if matches!(stop, Stop::Exec | Stop::Syscall) && self.is_ready(&stop, &mut loaded)? {
                at(pid, Moment::LibcMapped).map_err(SpawnError::Caller)?;
                self.ptrace(libc::PTRACE_DETACH, 0, "letting go of the child (ptrace)")?;
                return Ok(Reached::Ready);
            }
            self.resume(libc::PTRACE_SYSCALL, &stop)?;
            stop = self.next_stop()?;
            if let Stop::Ended(status) = stop {
                return Ok(Reached::Ended(status));
            }
        }
    }

    /// Whether its libc is mapped, or it has none to wait for.
    fn is_ready(&self, stop: &Stop, loaded: &mut Loaded) -> Result<bool, SpawnError> {
        match self.look(loaded) {
            Ok(()) => {}
            // Killed while it was stopped: the next wait tells.
            Err(TargetError::NoSuchProcess { .. } | TargetError::Zombie { .. }) => return Ok(false),
            Err(error) => return Err(SpawnError::Target(error)),
        }
        match (&loaded.loading, stop) {
            (Loading::Done, _) => Ok(true),
            // A program without a libc that is known by name: its loader has done its work when other code makes calls.
            (Loading::WaitsForLibc { loader }, Stop::Syscall) => {
                Ok(self.instruction_pointer()?.is_some_and(|ip| !loader.contains(&ip)))
            }
            (Loading::WaitsForLibc { .. }, _) => Ok(false),
        }
    }

    /// Files are opened only when new code has been mapped; the loader makes some fifty calls for each library.
    fn look(&self, loaded: &mut Loaded) -> Result<(), TargetError> {
        let pid = self.pid as u32;
        let code = image::code_mapped(pid)?;
        if code != loaded.code {
            loaded.loading = Image::of(&Process::read(pid)?)?.loading();
            loaded.code = code;
        }
        Ok(())
    }

    /// Where it made the system call at which it is stopped.
    fn instruction_pointer(&self) -> Result<Option<u64>, SpawnError> {
        // SAFETY: a zeroed structure of plain numbers; the kernel writes at most the size it is told.
        let (info, written) = unsafe {
            let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
            let size = size_of::<libc::ptrace_syscall_info>();
            let written = libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, self.pid, size, &raw mut info);
            (info, written)
        };
        if written < 0 {
            return Err(trace("reading the child's registers (ptrace)")(
                io::Error::last_os_error(),
            ));
        }
        Ok((info.instruction_pointer != 0).then_some(info.instruction_pointer))
    }

    fn next_stop(&self) -> Result<Stop, SpawnError> {
        let status = loop {
            let mut status = 0;
            // SAFETY: writes the status into a live variable.
            if unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) } == self.pid {
                break status;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(trace("waiting for the child")(error));
            }
        };
        if !libc::WIFSTOPPED(status) {
            return Ok(Stop::Ended(ExitStatus::from_raw(status)));
        }
        let signal = libc::WSTOPSIG(status);
        Ok(match status >> 16 {
            libc::PTRACE_EVENT_EXEC => Stop::Exec,
            // With PTRACE_SEIZE, a stop of the whole process shows as this event with the stopping signal.
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => Stop::Group,
            0 if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
            0 => Stop::Signal(signal),
            _ => Stop::Other,
        })
    }

    /// Goes on from a stop, the way that `how` says where nothing special is due.
    fn resume(&self, how: libc::c_uint, stop: &Stop) -> Result<(), SpawnError> {
        let what = "letting the child go on (ptrace)";
        match stop {
            Stop::Group => self.ptrace(libc::PTRACE_LISTEN, 0, what),
            Stop::Signal(signal) => self.ptrace(how, *signal as usize, what),
            Stop::Exec | Stop::Syscall | Stop::Other => self.ptrace(how, 0, what),
            Stop::Ended(_) => Ok(()),
        }
    }

    fn ptrace(&self, request: libc::c_uint, data: usize, what: &'static str) -> Result<(), SpawnError> {
        // SAFETY: these requests take numbers only.
        if unsafe { libc::ptrace(request, self.pid, 0_usize, data) } >= 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            // Killed while it was stopped: the next wait tells.
            error if error.raw_os_error() == Some(libc::ESRCH) && request != libc::PTRACE_SEIZE => Ok(()),
            error => Err(trace(what)(error)),
        }
    }

    /// Kills and buries a child that must not go on.
    fn end(&self) {
        // SAFETY: the child has not been waited for to its end, so the id is still its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        while let Ok(None) = wait(self.pid, libc::__WALL) {}
    }

    /// Valid also when the child has been waited for and its id is free again.
    fn pidfd(&self) -> Result<OwnedFd, SpawnError> {
        // SAFETY: pidfd_open takes two numbers, and what it returns is a descriptor of nobody else's.
        unsafe {
            match libc::syscall(libc::SYS_pidfd_open, self.pid, 0) {
                fd @ 0.. => Ok(OwnedFd::from_raw_fd(fd as libc::c_int)),
                _ => Err(trace("opening a descriptor of the child")(io::Error::last_os_error())),
            }
        }
    }
}

fn trace(what: &'static str) -> impl Fn(io::Error) -> SpawnError {
    move |error| SpawnError::Trace { what, error }
}

/// The child's end, or None when it has not ended (or has merely stopped).
fn wait(pid: libc::pid_t, options: libc::c_int) -> io::Result<Option<ExitStatus>> {
    loop {
        let mut status = 0;
        // SAFETY: writes the status into a live variable.
        match unsafe { libc::waitpid(pid, &raw mut status, options) } {
            0 => return Ok(None),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ if libc::WIFSTOPPED(status) || libc::WIFCONTINUED(status) => return Ok(None),
            _ => return Ok(Some(ExitStatus::from_raw(status))),
        }
    }
}
