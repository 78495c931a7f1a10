//! Other glibc releases for the tests: target/glibc/SUITE, unpacked from the Debian mirror this machine's apt uses.
//!
//! A private apt configuration keeps the system's own lists and packages as they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{self, say};
use crate::workspace;

/// Debian's suites with the glibc each had in 2026: 2.31, 2.36, 2.41, 2.43, 2.44.
const SUITES: [&str; 5] = ["bullseye", "bookworm", "trixie", "sid", "experimental"];
/// The suite whose headers and start files the tests' programs are built with, so that they run under all others.
pub const OLDEST: &str = SUITES[0];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Written last, with the names of what was unpacked: a directory without it is the remains of an interrupted run.
const COMPLETE: &str = ".complete";

/// What came of one suite.
pub struct Outcome {
    pub suite: &'static str,
    /// The directory, or why there is none.
    pub result: Result<PathBuf>,
}

/// Unpacks what is missing. An error means that nothing can be had at all.
pub fn fetch() -> Result<Vec<Outcome>> {
    let base = workspace::target().join("glibc");
    if SUITES.iter().any(|suite| !is_complete(suite, &base.join(suite))) {
        say("unpacking the glibc of other Debian releases into target/glibc (about 60 MB to download)");
    }
    let mut mirror = None;
    let mut outcomes = Vec::new();
    for suite in SUITES {
        let directory = base.join(suite);
        let result = if is_complete(suite, &directory) {
            Ok(directory)
        } else {
            let mirror = match &mirror {
                Some(known) => known,
                None => mirror.insert(debian_mirror()?),
            };
            fetch_suite(suite, mirror, &directory).map(|()| directory)
        };
        outcomes.push(Outcome { suite, result });
    }
    Ok(outcomes)
}

/// `cargo xtask glibcs`
pub fn fetch_and_list() -> Result<()> {
    for Outcome { suite, result } in fetch()? {
        match result {
            Ok(directory) => println!("{suite} {}", directory.display()),
            Err(error) => say(&format!("{suite} is left out: {error:#}")),
        }
    }
    Ok(())
}

/// The oldest release brings what programs are built with; its libgcc_s too, since the machine's own may want a newer
/// glibc.
fn packages(suite: &str) -> &'static [&'static str] {
    if suite == OLDEST {
        &["libc6", "libgcc-s1", "libc6-dev", "linux-libc-dev"]
    } else {
        &["libc6"]
    }
}

fn is_complete(suite: &str, directory: &Path) -> bool {
    fs::read_to_string(directory.join(COMPLETE)).is_ok_and(|unpacked| unpacked == packages(suite).join(" "))
}

fn fetch_suite(suite: &str, mirror: &str, directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("removing the unfinished {}", directory.display()))?;
    }
    let private = directory.join(".apt");
    for part in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(private.join(part)).with_context(|| format!("making {}", private.display()))?;
    }
    let sources = private.join("sources.list");
    fs::write(&sources, format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"))
        .with_context(|| format!("writing {}", sources.display()))?;

    apt(&private, &["update"], &format!("reading the package list of {suite}"))?;
    let packages = packages(suite);
    let words = [&["download"], packages].concat();
    apt(
        &private,
        &words,
        &format!("downloading {} of {suite}", packages.join(", ")),
    )?;
    for entry in fs::read_dir(&private).with_context(|| format!("listing {}", private.display()))? {
        let file = entry.with_context(|| format!("listing {}", private.display()))?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            let doing = format!("unpacking {}", file.display());
            process::run(Command::new("dpkg").arg("-x").arg(&file).arg(directory), &doing)?;
        }
    }
    fs::remove_dir_all(&private).with_context(|| format!("removing {}", private.display()))?;
    fs::write(directory.join(COMPLETE), packages.join(" "))
        .with_context(|| format!("finishing {}", directory.display()))
}

/// apt-get in `private`, with nothing of the system's configuration that it could change.
fn apt(private: &Path, words: &[&str], doing: &str) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.current_dir(private).args(["--quiet", "--quiet"]);
    let path = |name: &str| private.join(name).display().to_string();
    for option in [
        format!("Dir::Etc::sourcelist={}", path("sources.list")),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        format!("Dir::State::Lists={}", path("lists")),
        "Dir::State::status=/dev/null".to_owned(),
        format!("Dir::Cache={}", path("cache")),
        "APT::Sandbox::User=".to_owned(),
        "Acquire::Languages=none".to_owned(),
        // A mirror that stands still at some day serves as well; the packages' signatures are checked all the same.
        "Acquire::Check-Valid-Until=false".to_owned(),
        "Acquire::Retries=2".to_owned(),
    ] {
        command.arg("-o").arg(option);
    }
    process::capture(command.args(words), doing).map(drop)
}

/// The archive in apt's own sources that carries Debian (not its security or backports archive).
pub fn debian_mirror() -> Result<String> {
    if process::find("apt-get").is_none() || process::find("dpkg").is_none() {
        bail!("this is no Debian machine (no apt-get or no dpkg)");
    }
    if !Path::new(KEYRING).is_file() {
        bail!("Debian's archive key {KEYRING} is not here");
    }
    let mut command = Command::new("apt-get");
    command.args([
        "indextargets",
        "--format",
        "$(SITE) $(RELEASE) $(ORIGIN) $(LABEL)",
        "Identifier: Packages",
    ]);
    let targets = process::capture(&mut command, "asking apt for its sources")?;
    pick_mirror(&targets).context("apt's sources name no Debian archive (or its lists were never fetched)")
}

/// From lines of "SITE RELEASE ORIGIN LABEL"; security has the label "Debian-Security". Origin and label are missing as
/// long as apt has fetched no list, and then the usual end of the archive's address has to do.
fn pick_mirror(targets: &str) -> Option<String> {
    let site = |fits: fn(&[&str]) -> bool| {
        let mut lines = targets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.find(|words| fits(words)).map(|words| words[0].to_owned())
    };
    site(|words| matches!(words, [_, _, "Debian", "Debian"])).or_else(|| {
        site(|words| {
            words
                .first()
                .is_some_and(|site| site.trim_end_matches('/').ends_with("/debian"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_the_main_archive() {
        let targets = "http://m/security bookworm-security Debian Debian-Security\n\
                       https://other nodistro . nodistro\n\
                       http://m/debian bookworm Debian Debian\n";
        assert_eq!(pick_mirror(targets).as_deref(), Some("http://m/debian"));
        assert_eq!(
            pick_mirror("http://m/debian-security x\nhttp://m/debian bookworm\n").as_deref(),
            Some("http://m/debian")
        );
        assert_eq!(pick_mirror("https://ubuntu jammy Ubuntu Ubuntu\n"), None);
    }
}
