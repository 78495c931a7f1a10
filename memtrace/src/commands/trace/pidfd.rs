//! Waiting for a process's end without being its parent.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A handle on a process, which cannot come to mean another one of the same number.
#[derive(Debug)]
pub struct PidFd {
    fd: AsyncFd<OwnedFd>,
}

impl PidFd {
    /// Needs Linux 5.3. A process that is gone gives ESRCH.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        // SAFETY: the call takes two integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor, nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an OwnedFd gives the same descriptor all its life, and the AsyncFd alone owns it.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
        Ok(Self { fd })
    }

    /// Returns when the process has ended.
    pub async fn ended(&self) -> io::Result<()> {
        // The guard is dropped uncleared: an ended process stays readable for whoever asks next.
        self.fd.readable().await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[tokio::test]
    async fn an_end_is_noticed() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let handle = PidFd::open(child.id()).unwrap();
        drop(child.stdin.take());
        handle.ended().await.unwrap();
        handle.ended().await.unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_process_that_is_gone_cannot_be_opened() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(PidFd::open(child.id()).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
