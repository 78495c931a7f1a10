//! A private look into Debian's archive: packages of any suite and architecture, downloaded and unpacked, none installed.
//!
//! The system's own lists, packages and configuration stay as they are: apt runs with sources, lists and cache of its
//! own below target/, and `dpkg -x` only unpacks.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};

use crate::process::{self, say};
use crate::workspace;

/// Lists older than this are fetched again before a question for the newest of something is answered.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What apt takes for installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// Nothing: the packages are for another machine.
    Nothing,
    /// What this machine has: a download with its dependencies fetches only what is missing here.
    AsHere,
}

/// One private apt configuration.
pub struct Archive {
    directory: PathBuf,
    options: Vec<String>,
}

impl Archive {
    /// The suites' packages for one architecture (as Debian spells it), with lists not older than a day where the
    /// network allows it. `name` is that of the configuration's directory below target/kernels/apt.
    pub fn open(name: &str, suites: &[&str], architecture: &str, installed: Installed) -> Result<Self> {
        let directory = workspace::target().join("kernels/apt").join(name);
        for part in ["lists/partial", "cache/archives/partial"] {
            let part = directory.join(part);
            fs::create_dir_all(&part).with_context(|| format!("making {}", part.display()))?;
        }
        let sources = directory.join("sources.list");
        let mut options = vec![
            format!("Dir::Etc::sourcelist={}", sources.display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("Dir::State::Lists={}", directory.join("lists").display()),
            format!("Dir::Cache={}", directory.join("cache").display()),
            // Some images switch these off, and then each question reads all lists again.
            "Dir::Cache::pkgcache=pkgcache.bin".to_owned(),
            "Dir::Cache::srcpkgcache=srcpkgcache.bin".to_owned(),
            format!("APT::Architecture={architecture}"),
            format!("APT::Architectures::={architecture}"),
            "APT::Sandbox::User=".to_owned(),
            // Nothing is installed, so another apt that is at work on this machine need not be waited for, nor root be.
            "Debug::NoLocking=true".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::GzipIndexes=true".to_owned(),
            "Acquire::Retries=2".to_owned(),
        ];
        if installed == Installed::Nothing {
            options.push("Dir::State::status=/dev/null".to_owned());
        }
        let archive = Self { directory, options };
        archive.refresh(&sources, suites)?;
        Ok(archive)
    }

    /// Fetches the lists where they are missing, old, or of other suites. Old lists are better than none: what they
    /// name may be gone, and then the download says so.
    fn refresh(&self, sources: &Path, suites: &[&str]) -> Result<()> {
        let mirror = crate::glibcs::debian_mirror()?;
        let text: String = suites.iter().map(|suite| source_line(&mirror, suite)).collect();
        let stamp = self.directory.join("fetched");
        let same = fs::read_to_string(sources).is_ok_and(|old| old == text);
        if same && is_fresh(&stamp) {
            return Ok(());
        }
        fs::write(sources, text).with_context(|| format!("writing {}", sources.display()))?;
        say(&format!("reading the package lists of {}", suites.join(", ")));
        let mut update = self.command("apt-get");
        match process::capture(
            update.args(["--quiet", "--quiet", "update"]),
            "reading Debian's package lists",
        ) {
            Ok(_) => fs::write(&stamp, "").with_context(|| format!("writing {}", stamp.display())),
            Err(error) if self.has_lists() => {
                say(&format!("going on with the package lists that are here: {error:#}"));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn has_lists(&self) -> bool {
        fs::read_dir(self.directory.join("lists")).is_ok_and(|mut entries| {
            entries.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().contains("Packages")))
        })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.directory).env("LC_ALL", "C");
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        command
    }

    /// Names of all packages that begin so.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let mut command = self.command("apt-cache");
        let names = process::capture(command.args(["pkgnames", prefix]), "asking for package names")?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// Downloads one package, `NAME`, `NAME/SUITE` or `NAME=VERSION`, without what it depends on.
    pub fn download(&self, package: &str) -> Result<PathBuf> {
        let mut files = self.download_all(&[package])?;
        files
            .pop()
            .with_context(|| format!("apt downloaded nothing for {package}"))
    }

    /// Downloads several at once; they lie there until the next download.
    pub fn download_all(&self, packages: &[&str]) -> Result<Vec<PathBuf>> {
        let inbox = self.directory.join("inbox");
        if inbox.exists() {
            fs::remove_dir_all(&inbox).with_context(|| format!("emptying {}", inbox.display()))?;
        }
        fs::create_dir_all(&inbox).with_context(|| format!("making {}", inbox.display()))?;
        let mut command = self.command("apt-get");
        command
            .current_dir(&inbox)
            .args(["--quiet", "--quiet", "download"])
            .args(packages);
        process::capture(&mut command, &format!("downloading {}", packages.join(", "))).context(NotThere)?;
        debs(&inbox)
    }

    /// Downloads packages with what they depend on and this machine lacks; those named also if they are installed.
    pub fn download_with_dependencies(&self, packages: &[&str], prefer_suite: Option<&str>) -> Result<Vec<PathBuf>> {
        let mut command = self.command("apt-get");
        command.args(["--quiet", "--quiet", "--yes", "--download-only", "--reinstall"]);
        command.args(["--no-install-recommends", "--no-remove"]);
        if let Some(suite) = prefer_suite {
            command.args(["--target-release", suite]);
        }
        command.arg("install").args(packages);
        process::capture(&mut command, &format!("downloading {}", packages.join(", ")))?;
        debs(&self.directory.join("cache/archives"))
    }
}

/// The archive does not have a package, or does not hand it out: found in the chain of an error that is about nothing else.
#[derive(Debug)]
pub struct NotThere;

impl fmt::Display for NotThere {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("the archive does not hand it out")
    }
}

/// Unpacks a package below `root`, which is made where it is missing.
pub fn unpack(deb: &Path, root: &Path) -> Result<()> {
    fs::create_dir_all(root).with_context(|| format!("making {}", root.display()))?;
    let doing = format!("unpacking {}", deb.display());
    process::run(Command::new("dpkg-deb").arg("-x").arg(deb).arg(root), &doing)
}

/// Does what makes `directory` once: in a directory beside it that takes its name when all is done, so that an
/// interrupted run leaves nothing that looks complete.
pub fn once(directory: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let mut partial = directory.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| format!("removing the unfinished {}", partial.display()))?;
    }
    fs::create_dir_all(&partial).with_context(|| format!("making {}", partial.display()))?;
    make(&partial)?;
    fs::rename(&partial, directory).with_context(|| format!("renaming {} when it was complete", partial.display()))
}

fn debs(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("listing {}", directory.display()))? {
        let file = entry
            .with_context(|| format!("listing {}", directory.display()))?
            .path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            found.push(file);
        }
    }
    if found.is_empty() {
        bail!("apt downloaded nothing to {}", directory.display());
    }
    Ok(found)
}

/// A security suite lies in an archive of its own, beside the main one on every mirror.
fn source_line(mirror: &str, suite: &str) -> String {
    let mirror = mirror.trim_end_matches('/');
    let security = if suite.ends_with("-security") { "-security" } else { "" };
    format!("deb [signed-by={KEYRING}] {mirror}{security} {suite} main\n")
}

fn is_fresh(stamp: &Path) -> bool {
    let age = |modified| SystemTime::now().duration_since(modified);
    stamp
        .metadata()
        .and_then(|data| data.modified())
        .is_ok_and(|modified| age(modified).is_ok_and(|age| age < STALE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_suites_come_from_their_own_archive() {
        assert!(source_line("http://m/debian/", "sid").ends_with("] http://m/debian sid main\n"));
        assert!(
            source_line("http://m/debian", "bullseye-security")
                .ends_with("] http://m/debian-security bullseye-security main\n")
        );
    }

    #[test]
    fn what_the_archive_lacks_is_told_from_other_failures() {
        let gone = anyhow::anyhow!("404").context(NotThere).context("getting a kernel");
        assert!(gone.is::<NotThere>());
        assert!(
            !anyhow::anyhow!("no space left")
                .context("getting a kernel")
                .is::<NotThere>()
        );
    }
}
