//! Debian packages: what is there, what can be had, and installing it, announced.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{self, Root, say};

/// Whether this machine has apt at all.
pub fn apt_is_here() -> bool {
    process::find("apt-get").is_some() && process::find("dpkg-query").is_some()
}

/// The version apt would install, as far as its lists know.
pub fn candidate(package: &str) -> Option<String> {
    let mut policy = Command::new("apt-cache");
    policy.env("LC_ALL", "C").args(["policy", package]);
    let text = process::capture(&mut policy, "asking apt").ok()?;
    let version = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate:"))?
        .trim();
    (version != "(none)").then(|| version.to_owned())
}

/// Refreshes apt's lists.
pub fn update(root: Root) -> Result<()> {
    let Some(mut command) = root.command("apt-get") else {
        bail!("refreshing apt's package lists needs root, and there is no sudo here");
    };
    command.args(["--quiet", "--quiet", "update"]);
    say(&format!("running: {}", process::shown(&command)));
    process::capture(&mut command, "refreshing apt's package lists").map(drop)
}

/// Installs packages, saying so first. The lists are refreshed when they do not know one of them, or when the version
/// they know of is no longer there.
pub fn install(packages: &[&str], what_for: &str) -> Result<()> {
    let root = Root::find_out()?;
    say(&format!(
        "about to install {} from apt's archive: {what_for}",
        packages.join(", ")
    ));
    let unknown = packages.iter().any(|package| candidate(package).is_none());
    if unknown {
        update(root)?;
    }
    let first = install_now(root, packages);
    if first.is_err() && !unknown {
        update(root)?;
        return install_now(root, packages);
    }
    first
}

fn install_now(root: Root, packages: &[&str]) -> Result<()> {
    // sudo drops most of the environment, so the front end is chosen by env(1) on its far side.
    let mut command = root.command("env").with_context(|| {
        format!(
            "installing {} needs root, and there is no sudo here",
            packages.join(" ")
        )
    })?;
    command
        .args([
            "DEBIAN_FRONTEND=noninteractive",
            "apt-get",
            "--quiet",
            "--quiet",
            "install",
            "--yes",
        ])
        .arg("--no-install-recommends")
        .args(packages);
    say(&format!("running: {}", process::shown(&command)));
    // What dpkg says of each package is of interest only when it fails.
    process::capture(&mut command, &format!("installing {}", packages.join(" "))).map(drop)
}
