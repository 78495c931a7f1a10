//! What /proc says of a process as such: is it one that can be traced at all?

use std::io;
use std::path::{Path, PathBuf};

use super::{TargetError, printable};

/// Names and state of a process, before its mappings are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub pid: u32,
    pub name: String,
    pub command: String,
    pub threads: u32,
    pub seccomp: u8,
}

/// PF_KTHREAD of the kernel's include/linux/sched.h, in the flags of /proc/PID/stat.
const KERNEL_THREAD: u64 = 0x0020_0000;

impl Process {
    pub fn read(pid: u32) -> Result<Self, TargetError> {
        let status = read(pid, "status")?;
        let status = Status::parse(&status);
        if status.tgid.is_some_and(|tgid| tgid != pid) {
            return Err(TargetError::Thread {
                tid: pid,
                pid: status.tgid.unwrap_or(0),
            });
        }
        // The name in status is the same with escapes of the kernel's.
        let comm = read(pid, "comm")?;
        let name = printable(comm.strip_suffix(b"\n").unwrap_or(&comm));
        match status.state {
            'Z' => return Err(TargetError::Zombie { pid, name }),
            'X' | 'x' => return Err(TargetError::NoSuchProcess { pid }),
            _ => {}
        }
        if Stat::parse(&read(pid, "stat")?).is_some_and(|stat| stat.flags & KERNEL_THREAD != 0) {
            return Err(TargetError::KernelThread { pid, name });
        }
        let command = command_line(&read(pid, "cmdline")?);
        let command = if command.is_empty() { name.clone() } else { command };
        Ok(Self {
            pid,
            name,
            command,
            threads: status.threads,
            seccomp: status.seccomp,
        })
    }
}

/// The fields of /proc/PID/status that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Status {
    state: char,
    tgid: Option<u32>,
    threads: u32,
    seccomp: u8,
}

impl Status {
    fn parse(text: &[u8]) -> Self {
        let mut status = Self {
            threads: 1,
            state: '?',
            ..Self::default()
        };
        for line in text.split(|&byte| byte == b'\n') {
            let Some(colon) = line.iter().position(|&byte| byte == b':') else {
                continue;
            };
            let (key, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            let number = || {
                std::str::from_utf8(value)
                    .ok()
                    .and_then(|value| value.parse::<u32>().ok())
            };
            match key {
                b"State" => status.state = value.first().map_or('?', |&letter| char::from(letter)),
                b"Tgid" => status.tgid = number(),
                b"Threads" => status.threads = number().unwrap_or(1),
                b"Seccomp" => status.seccomp = number().and_then(|mode| u8::try_from(mode).ok()).unwrap_or(0),
                _ => {}
            }
        }
        status
    }
}

/// The fields of /proc/PID/stat that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub name: String,
    pub state: char,
    pub flags: u64,
    /// Clock ticks after boot.
    pub began: u64,
}

impl Stat {
    /// Fields 2, 3, 9 and 22 (proc_pid_stat(5)); the second is a name in brackets that may hold anything.
    pub fn parse(stat: &[u8]) -> Option<Self> {
        let name_begins = stat.iter().position(|&byte| byte == b'(')? + 1;
        let name_ends = stat.iter().rposition(|&byte| byte == b')')?;
        let name = printable(stat.get(name_begins..name_ends)?);
        let mut fields = std::str::from_utf8(&stat[name_ends + 1..])
            .ok()?
            .split_ascii_whitespace();
        Some(Self {
            name,
            state: fields.next()?.chars().next()?,
            flags: fields.nth(5)?.parse().ok()?,
            began: fields.nth(12)?.parse().ok()?,
        })
    }

    /// A zombie, or what is left of one.
    pub const fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Arguments joined by blanks, without those that a program leaves behind a title of its own.
fn command_line(cmdline: &[u8]) -> String {
    let words = cmdline.strip_suffix(b"\0").unwrap_or(cmdline).split(|&byte| byte == 0);
    let line = words.map(printable).collect::<Vec<_>>().join(" ");
    line.trim_end().to_owned()
}

/// /proc/PID/`file`, whole.
pub(super) fn read(pid: u32, file: &str) -> Result<Vec<u8>, TargetError> {
    std::fs::read(path(pid, file)).map_err(|error| TargetError::from_proc(pid, file, error))
}

pub(super) fn path(pid: u32, file: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(file)
}

/// Whether an error says that the process is gone.
pub(super) fn says_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_file() {
        let status = Status::parse(
            b"Name:\tfake\\nState:\tZ\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t42\nThreads:\t7\nSeccomp:\t2\n",
        );
        let expected = Status {
            state: 'S',
            tgid: Some(42),
            threads: 7,
            seccomp: 2,
        };
        assert_eq!(status, expected);
        assert_eq!(Status::parse(b"").threads, 1);
    }

    #[test]
    fn flags_stand_behind_whatever_the_name_holds() {
        let stat = Stat::parse(b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 17 0 0").unwrap();
        assert_eq!((stat.flags, stat.began), (2_129_984, 17));
        let stat = Stat::parse(b"42 (a) b (c) d) R 1 42 42 0 -1 4194560 5 0 0 0 1 2 0 0 20 0 1 0 99 4096 1\n").unwrap();
        let expected = Stat {
            name: String::from("a) b (c) d"),
            state: 'R',
            flags: 4_194_560,
            began: 99,
        };
        assert_eq!(stat, expected);
        assert_eq!(Stat::parse(b"42 (unfinished"), None);
        assert_eq!(Stat::parse(b"42 ) ("), None);
        assert_eq!(Stat::parse(b""), None);
    }

    #[test]
    fn arguments_are_joined_by_blanks() {
        assert_eq!(command_line(b"python3\0-c\0print(1)\0"), "python3 -c print(1)");
        assert_eq!(command_line(b"renamed: worker"), "renamed: worker");
        assert_eq!(command_line(b""), "");
    }

    #[test]
    fn this_process_can_be_read() {
        let process = Process::read(std::process::id()).unwrap();
        assert!(process.threads >= 1 && !process.name.is_empty() && process.command.contains("memtrace"));
    }
}
