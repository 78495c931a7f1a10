//! A child process that speaks in lines, and waits at its phases.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::super::interrupt;
use super::{Command, Line};

/// How long a program may say nothing before it is given up.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Child {
    process: std::process::Child,
    to: ChildStdin,
    from: ChildStdout,
    pending: Vec<u8>,
    shown: String,
}

pub enum Received {
    Line(Line),
    /// Nothing within the time asked for.
    Nothing,
    End,
}

impl Child {
    pub fn start(command: &Command) -> Result<Self> {
        let shown = command.program.to_string_lossy().into_owned();
        let mut builder = std::process::Command::new(&command.program);
        builder.current_dir(&command.directory);
        for name in &command.without {
            builder.env_remove(name);
        }
        builder
            .args(&command.arguments)
            .envs(command.environment.iter().map(|(name, value)| (name, value)));
        builder
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // SAFETY: prctl is a plain system call, allowed between fork and exec.
        unsafe {
            builder.pre_exec(|| {
                // The program is not to outlive the lab, however that ends.
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let mut process = builder.spawn().with_context(|| format!("starting {shown}"))?;
        let (Some(to), Some(from)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("starting {shown}: its standard input and output are not pipes");
        };
        Ok(Self {
            process,
            to,
            from,
            pending: Vec::new(),
            shown,
        })
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Lets a waiting program go on. That it has ended meanwhile shows at the next line.
    pub fn go_on(&mut self) -> Result<()> {
        match self.to.write_all(b"\n") {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(error).with_context(|| format!("telling {} to go on", self.shown))
            }
            _ => Ok(()),
        }
    }

    /// The next line the program says; other output is passed over.
    pub fn receive(&mut self, within: Option<Duration>) -> Result<Received> {
        let began = Instant::now();
        loop {
            if let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                if let Some(line) = Line::parse(&String::from_utf8_lossy(&line)) {
                    return Ok(Received::Line(line));
                }
                continue;
            }
            interrupt::check()?;
            let waited = began.elapsed();
            if within.is_some_and(|within| waited >= within) {
                return Ok(Received::Nothing);
            }
            if waited > PATIENCE {
                bail!("{} has said nothing for {} s", self.shown, PATIENCE.as_secs());
            }
            // Short enough to notice Ctrl-C that came just before the wait.
            let most = Duration::from_millis(200);
            if self.readable(within.map_or(most, |within| most.min(within.saturating_sub(waited))))? {
                let mut chunk = [0; 4096];
                let read = self
                    .from
                    .read(&mut chunk)
                    .with_context(|| format!("reading what {} says", self.shown))?;
                if read == 0 {
                    return Ok(Received::End);
                }
                self.pending.extend_from_slice(&chunk[..read]);
            }
        }
    }

    fn readable(&self, within: Duration) -> Result<bool> {
        let mut wait = libc::pollfd {
            fd: self.from.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let milliseconds = i32::try_from(within.as_millis()).unwrap_or(i32::MAX).max(1);
        // SAFETY: one valid pollfd.
        match unsafe { libc::poll(&raw mut wait, 1, milliseconds) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => Ok(false),
            -1 => Err(io::Error::last_os_error()).with_context(|| format!("waiting for {}", self.shown)),
            ready => Ok(ready > 0),
        }
    }

    /// Waits for the end; an error with the program's own words when it failed.
    pub fn end(mut self) -> Result<()> {
        let mut said = String::new();
        if let Some(mut errors) = self.process.stderr.take() {
            errors
                .read_to_string(&mut said)
                .with_context(|| format!("reading the errors of {}", self.shown))?;
        }
        let status = self
            .process
            .wait()
            .with_context(|| format!("waiting for the end of {}", self.shown))?;
        interrupt::check()?;
        if !status.success() {
            // The first line says it; a loader goes on with each symbol that is missing.
            match said.trim().lines().next() {
                Some(said) => bail!("{} failed ({status}): {said}", self.shown),
                None => bail!("{} failed ({status}) without a word", self.shown),
            }
        }
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only when the process is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
