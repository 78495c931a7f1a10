//! Running other programs, aloud.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// Says on stderr what is about to happen.
pub fn say(text: &str) {
    eprintln!("xtask: {text}");
}

/// A cargo of the toolchain xtask was started with, in the workspace.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace::root());
    command
}

/// Runs a command with its output shown; `doing` names it in an error.
pub fn run(command: &mut Command, doing: &str) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("{doing}: starting {}", name(command)))?;
    if !status.success() {
        bail!("{doing}: {} ended with {status}", name(command));
    }
    Ok(())
}

/// What a command prints on its standard output; its stderr is shown only in the error.
pub fn capture(command: &mut Command, doing: &str) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{doing}: starting {}", name(command)))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{doing}: {} ended with {}: {}",
            name(command),
            output.status,
            why.trim()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("{doing}: {} printed no UTF-8", name(command)))
}

/// Sends a signal, by its name without SIG, to a process that was started here.
pub fn signal(pid: u32, name: &str) -> Result<()> {
    let mut kill = Command::new("sh");
    kill.args(["-c", &format!("kill -{name} {pid}")]);
    capture(&mut kill, &format!("sending a {name} signal")).map(drop)
}

/// The command as a shell would show it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// A program in PATH, followed by the directories where a root shell's tools are.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file| is_executable(file))
}

pub fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|data| data.is_file() && data.mode() & 0o111 != 0)
}

/// How something that needs root can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// We are root.
    Already,
    /// Through sudo, which may ask for a password.
    Sudo,
    /// Not at all.
    No,
}

impl Root {
    pub fn find_out() -> Result<Self> {
        let owner = Path::new("/proc/self")
            .metadata()
            .context("reading the owner of /proc/self")?
            .uid();
        Ok(match (owner, find("sudo")) {
            (0, _) => Self::Already,
            (_, Some(_)) => Self::Sudo,
            (_, None) => Self::No,
        })
    }

    /// The command that runs `program` as root, or None.
    pub fn command(self, program: impl AsRef<OsStr>) -> Option<Command> {
        match self {
            Self::Already => Some(Command::new(program)),
            Self::Sudo => {
                let mut command = Command::new("sudo");
                command.arg("--").arg(program);
                Some(command)
            }
            Self::No => None,
        }
    }
}
