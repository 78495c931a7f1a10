//! QEMU, found or unpacked below target/, and one run of it.
//!
//! Always its own translator (TCG), never KVM: guests of nested virtual machines hang or die under it, and a kernel
//! that boots in 3 to 8 seconds needs no more.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::archive::{self, Archive, Installed};
use crate::ebpf::Arch;
use crate::process::{self, say};
use crate::workspace;

/// Where the virtual machines can be had from: this machine's own QEMU, or one unpacked below target/kernels/qemu.
pub struct Qemu {
    unpacked: Option<PathBuf>,
}

/// How a run ended, as far as QEMU knows. A panic of the guest, too, ends it well: only what the guest printed tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    PoweredOff,
    TimedOut,
}

/// One boot.
pub struct Boot<'a> {
    pub arch: Arch,
    /// The processor has pages of more than one size, and signs return addresses.
    pub new_processor: bool,
    pub kernel: &'a Path,
    pub initrd: &'a Path,
    /// Where what the guest writes to its serial line goes.
    pub log: &'a Path,
    pub limit: Duration,
}

impl Qemu {
    /// Finds QEMU for every architecture asked for, else unpacks Debian's packages; installs nothing.
    pub fn find_or_fetch(architectures: &[Arch]) -> Result<Self> {
        if architectures.iter().all(|arch| process::find(arch.qemu()).is_some()) {
            return Ok(Self { unpacked: None });
        }
        let directory = workspace::target().join("kernels/qemu");
        archive::once(&directory, fetch)?;
        let qemu = Self {
            unpacked: Some(directory),
        };
        for arch in architectures {
            process::capture(
                qemu.program(*arch, None).arg("--version"),
                "asking QEMU for its version",
            )?;
        }
        Ok(qemu)
    }

    /// The emulator's command line so far; with a limit, it is ended then by coreutils' timeout with status 124.
    fn program(&self, arch: Arch, limit: Option<Duration>) -> Command {
        let name = match &self.unpacked {
            Some(root) => root.join("usr/bin").join(arch.qemu()),
            None => arch.qemu().into(),
        };
        let mut command = match limit {
            Some(limit) => {
                let mut timeout = Command::new("timeout");
                timeout
                    .args(["--foreground", "--kill-after=5", &limit.as_secs().to_string()])
                    .arg(name);
                timeout
            }
            None => Command::new(name),
        };
        if let Some(root) = &self.unpacked {
            let libraries =
                ["usr/lib", "lib"].map(|lib| root.join(lib).join(Arch::HOST.multiarch()).display().to_string());
            command.env("LD_LIBRARY_PATH", libraries.join(":"));
            for data in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
                command.arg("-L").arg(root.join(data));
            }
        }
        command
    }

    /// Boots a kernel with an initial RAM disk and waits for the end.
    pub fn run(&self, boot: &Boot) -> Result<End> {
        let Boot {
            arch,
            new_processor,
            kernel,
            initrd,
            log,
            limit,
        } = boot;
        let mut command = self.program(*arch, Some(*limit));
        let (machine, console) = match arch {
            Arch::X86_64 => (["-M", "q35", "-cpu", "max"], "ttyS0"),
            // Signing as the architecture describes it would take the emulator half of its time.
            Arch::Aarch64 if *new_processor => (["-M", "virt", "-cpu", "max,pauth-impdef=on"], "ttyAMA0"),
            Arch::Aarch64 => (["-M", "virt", "-cpu", "cortex-a57"], "ttyAMA0"),
        };
        command
            .args(machine)
            .args(["-accel", "tcg,thread=multi", "-smp", "2", "-m", "1024"]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        command.arg("-serial").arg(format!("file:{}", log.display()));
        command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
        // Level 1 keeps all but a panic off the line that carries the results. Each probe that goes is waited for through
        // a grace period, which need not be a long one.
        let words = format!("console={console} panic=-1 quiet loglevel=1 rcupdate.rcu_expedited=1");
        command.args(["-append", &words]);
        // A log of an earlier boot must not be taken for this one's.
        if log.exists() {
            fs::remove_file(log).with_context(|| format!("removing the old log {}", log.display()))?;
        }
        let output = command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("starting {}", arch.qemu()))?;
        match output.status.code() {
            Some(0) => Ok(End::PoweredOff),
            Some(124) => Ok(End::TimedOut),
            _ => bail!(
                "{} ended with {}: {}",
                arch.qemu(),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            ),
        }
    }
}

fn fetch(into: &Path) -> Result<()> {
    let codename = debian_codename()?;
    say("unpacking QEMU below target/kernels/qemu (26 MB to download; nothing is installed)");
    let [security, updates, backports] = ["security", "updates", "backports"].map(|part| format!("{codename}-{part}"));
    let mut suites = vec![codename.as_str(), &security, &updates];
    // Debian 12's own QEMU 7.2 and the newer qemu-utils of its backports exclude each other.
    let prefer = (codename == "bookworm").then_some(backports.as_str());
    suites.extend(prefer);
    let apt = Archive::open("qemu", &suites, Arch::HOST.debian(), Installed::AsHere)?;
    let packages = [
        "qemu-system-x86",
        "qemu-system-arm",
        "qemu-system-common",
        "qemu-system-data",
    ];
    for deb in apt.download_with_dependencies(&packages, prefer)? {
        archive::unpack(&deb, into)?;
    }
    Ok(())
}

/// The Debian release this machine runs.
pub fn debian_codename() -> Result<String> {
    let path = "/etc/os-release";
    let text = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    let field = |name: &str| {
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.trim_matches('"').to_owned())
    };
    match (field("ID").as_deref(), field("VERSION_CODENAME")) {
        (Some("debian"), Some(codename)) => Ok(codename),
        _ => bail!(
            "there is no QEMU here, and only on Debian can one be unpacked; have {} and {} in PATH and run this again",
            Arch::X86_64.qemu(),
            Arch::Aarch64.qemu()
        ),
    }
}
