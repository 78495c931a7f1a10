//! What the kernel lets memtrace do: which capabilities are missing, what would give them, which are given up.
//!
//! Root has them all; a binary with file capabilities, a container or a systemd unit may have a few. Numbers and rules
//! are those of include/uapi/linux/capability.h, kernel 5.8 and later.

use std::fmt;
use std::io;

/// A capability memtrace knows a use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capability {
    DacOverride,
    DacReadSearch,
    Setgid,
    Setuid,
    SysPtrace,
    SysAdmin,
    Perfmon,
    Bpf,
    CheckpointRestore,
}

impl Capability {
    pub const ALL: [Self; 9] = [
        Self::DacOverride,
        Self::DacReadSearch,
        Self::Setgid,
        Self::Setuid,
        Self::SysPtrace,
        Self::SysAdmin,
        Self::Perfmon,
        Self::Bpf,
        Self::CheckpointRestore,
    ];

    const fn number(self) -> u32 {
        match self {
            Self::DacOverride => 1,
            Self::DacReadSearch => 2,
            Self::Setgid => 6,
            Self::Setuid => 7,
            Self::SysPtrace => 19,
            Self::SysAdmin => 21,
            Self::Perfmon => 38,
            Self::Bpf => 39,
            Self::CheckpointRestore => 40,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::DacOverride => "CAP_DAC_OVERRIDE",
            Self::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Self::Setgid => "CAP_SETGID",
            Self::Setuid => "CAP_SETUID",
            Self::SysPtrace => "CAP_SYS_PTRACE",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
            Self::CheckpointRestore => "CAP_CHECKPOINT_RESTORE",
        }
    }
}

/// A set of capabilities, those included that memtrace has no use for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Those in effect for the calling thread.
    pub fn effective() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/thread-self/status")?;
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.map(Self)
            .ok_or_else(|| io::Error::other("/proc/thread-self/status shows no capabilities"))
    }

    pub fn has(self, capability: Capability) -> bool {
        self.0 >> capability.number() & 1 == 1
    }
}

impl FromIterator<Capability> for Capabilities {
    fn from_iter<T: IntoIterator<Item = Capability>>(capabilities: T) -> Self {
        Self(
            capabilities
                .into_iter()
                .fold(0, |mask, capability| mask | 1 << capability.number()),
        )
    }
}

/// Something memtrace may want to do, and the capabilities of which any one allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Task {
    /// Load programs into the kernel and read what they count.
    LoadPrograms,
    /// Attach them to system calls.
    AttachTracepoints,
    /// Attach them to a process's functions. Since July 2025 (6.16, and stable kernels of then) the kernel takes that for
    /// an act of administration, as a probe can do harm; before, CAP_PERFMON was enough.
    AttachProbes,
    /// Look at the memory of other users' processes, and of ones that shield themselves.
    ReadProcesses,
    /// Reach a library that was replaced on disk while a process maps it.
    ReachReplacedFiles,
    /// Read the kernel's list of tracepoints, which belongs to root.
    ReadTracefs,
    /// Mount that list where it is not mounted.
    MountTracefs,
    /// Start a command as another user.
    BecomeUser,
}

impl Task {
    /// Without these there is no trace.
    pub const NEEDED: [Self; 5] = [
        Self::LoadPrograms,
        Self::AttachTracepoints,
        Self::AttachProbes,
        Self::ReadProcesses,
        Self::ReadTracefs,
    ];

    /// Any one of each inner list is enough; all lists must be served.
    const fn served_by(self) -> &'static [&'static [Capability]] {
        use Capability::{
            Bpf, CheckpointRestore, DacOverride, DacReadSearch, Perfmon, Setgid, Setuid, SysAdmin, SysPtrace,
        };
        match self {
            Self::LoadPrograms => &[&[Bpf, SysAdmin]],
            Self::AttachTracepoints => &[&[Perfmon, SysAdmin]],
            Self::AttachProbes => &[&[SysAdmin]],
            Self::ReadProcesses => &[&[SysPtrace]],
            Self::ReachReplacedFiles => &[&[CheckpointRestore, SysAdmin]],
            Self::ReadTracefs => &[&[DacReadSearch, DacOverride]],
            Self::MountTracefs => &[&[SysAdmin]],
            Self::BecomeUser => &[&[Setuid], &[Setgid]],
        }
    }

    const fn purpose(self) -> &'static str {
        match self {
            Self::LoadPrograms => "load its programs into the kernel",
            Self::AttachTracepoints => "watch system calls",
            Self::AttachProbes => {
                "attach probes to a process (kernels before July 2025 content themselves with CAP_PERFMON)"
            }
            Self::ReadProcesses => "look at other users' processes",
            Self::ReachReplacedFiles => "reach libraries that were replaced on disk",
            Self::ReadTracefs => "read the kernel's list of tracepoints",
            Self::MountTracefs => "mount tracefs where it is not mounted",
            Self::BecomeUser => "start a command as another user",
        }
    }
}

/// A task that cannot be done, and what would allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    pub task: Task,
    /// Any one of them.
    pub any_of: &'static [Capability],
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.any_of.iter().map(|capability| capability.name()).collect();
        write!(f, "memtrace lacks {} to {}", names.join(" or "), self.task.purpose())
    }
}

/// What of `tasks` the capabilities do not allow.
pub fn missing(capabilities: Capabilities, tasks: &[Task]) -> Vec<Missing> {
    let mut missing = Vec::new();
    for &task in tasks {
        for &any_of in task.served_by() {
            if !any_of.iter().any(|&capability| capabilities.has(capability)) {
                missing.push(Missing { task, any_of });
            }
        }
    }
    missing
}

/// How to get them.
pub fn hint(missing: &[Missing]) -> Option<String> {
    let names: Vec<String> = missing
        .iter()
        .filter_map(|missing| missing.any_of.first())
        .map(|c| c.name().to_lowercase())
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "run it with sudo, or once: sudo setcap {}+ep \"$(command -v memtrace)\"",
            names.join(",")
        )
    })
}

/// What a trace that has begun goes on needing: reading counters, looking at processes.
const KEPT: [Capability; 5] = [
    Capability::SysPtrace,
    Capability::Perfmon,
    Capability::Bpf,
    Capability::CheckpointRestore,
    Capability::DacReadSearch,
];

/// Whether probes will be attached later: to processes that come, or in windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MoreProbes {
    No,
    Yes,
}

/// Gives up, for good, all capabilities that a running trace does not need, and the way to new ones through exec.
///
/// The kernel keeps capabilities by thread: this is to be called on the main thread before others are made, and after
/// a command has been started (it would lose the right to set-uid programs). Files that are to be written must be open
/// by now where only root's override allows it.
pub fn keep_what_a_trace_needs(more_probes: MoreProbes) -> io::Result<()> {
    let kept = Capabilities::effective()?.0 & needed_later(more_probes).0;
    // SAFETY: a plain number.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    set(kept)
}

fn needed_later(more_probes: MoreProbes) -> Capabilities {
    let attaching = match more_probes {
        MoreProbes::Yes => Some(Capability::SysAdmin),
        MoreProbes::No => None,
    };
    KEPT.into_iter().chain(attaching).collect()
}

/// Sets the calling thread's effective and permitted capabilities; none can be inherited.
fn set(mask: u64) -> io::Result<()> {
    /// _LINUX_CAPABILITY_VERSION_3
    const VERSION: u32 = 0x2008_0522;
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    struct Half {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let half = |bits: u64| Half {
        effective: bits as u32,
        permitted: bits as u32,
        inheritable: 0,
    };
    let header = Header {
        version: VERSION,
        pid: 0,
    };
    let halves = [half(mask), half(mask >> 32)];
    // SAFETY: both structures have the layout that this version of the call reads.
    match unsafe { libc::syscall(libc::SYS_capset, &raw const header, halves.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use memtrace_test_support::skip::skip;

    use super::*;

    fn lacking(have: &[Capability], tasks: &[Task]) -> Vec<String> {
        missing(have.iter().copied().collect(), tasks)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn what_is_missing_is_named_with_its_purpose() {
        use Capability::{Bpf, DacReadSearch, Perfmon, Setuid, SysAdmin, SysPtrace};
        assert_eq!(lacking(&[SysAdmin, SysPtrace, DacReadSearch], &Task::NEEDED), [""; 0]);
        assert_eq!(
            lacking(&[Bpf, Perfmon, SysPtrace, DacReadSearch], &[Task::AttachTracepoints]),
            [""; 0]
        );
        let unprobed = lacking(&[Bpf, Perfmon, SysPtrace, DacReadSearch], &Task::NEEDED);
        assert_eq!(unprobed.len(), 1);
        assert!(
            unprobed[0].starts_with("memtrace lacks CAP_SYS_ADMIN to attach probes to a process"),
            "{unprobed:?}"
        );
        assert_eq!(
            lacking(&[SysPtrace, DacReadSearch], &[Task::LoadPrograms]),
            ["memtrace lacks CAP_BPF or CAP_SYS_ADMIN to load its programs into the kernel"]
        );
        assert_eq!(
            lacking(&[Setuid], &[Task::BecomeUser]),
            ["memtrace lacks CAP_SETGID to start a command as another user"]
        );
        assert_eq!(lacking(&[], &Task::NEEDED).len(), Task::NEEDED.len());
    }

    #[test]
    fn the_hint_names_what_would_do() {
        let hint = hint(&missing(Capabilities::default(), &Task::NEEDED)).unwrap();
        let all = "setcap cap_bpf,cap_perfmon,cap_sys_admin,cap_sys_ptrace,cap_dac_read_search+ep";
        assert!(hint.contains(all), "{hint}");
        assert_eq!(super::hint(&[]), None);
    }

    #[test]
    fn only_what_a_trace_needs_is_kept() {
        let before = Capabilities::effective().unwrap();
        if !before.has(Capability::SysAdmin) {
            return skip(
                "only_what_a_trace_needs_is_kept",
                "giving up capabilities needs some to begin with",
            );
        }
        for more_probes in [MoreProbes::Yes, MoreProbes::No] {
            // Capabilities belong to a thread: this one goes, the test keeps its own.
            let after = std::thread::spawn(move || {
                keep_what_a_trace_needs(more_probes).unwrap();
                let after = Capabilities::effective().unwrap();
                assert!(
                    set(after.0 | 1 << Capability::Setuid.number()).is_err(),
                    "they are given up for good"
                );
                after
            });
            let after = after.join().unwrap();
            assert_eq!(after.0, before.0 & needed_later(more_probes).0);
            assert_eq!(after.has(Capability::SysAdmin), more_probes == MoreProbes::Yes);
        }
        assert_eq!(Capabilities::effective().unwrap(), before);
    }
}
