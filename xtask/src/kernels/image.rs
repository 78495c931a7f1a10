//! Kernels of Debian's archive: from a series (`5.10`, `newest`) to an image below target/kernels/images.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};

use crate::archive::{self, Archive, NotThere};
use crate::ebpf::Arch;
use crate::process::say;
use crate::workspace;

/// Every suite that carries kernels or a C library of interest, oldest first.
pub const SUITES: [&str; 9] = [
    "bullseye",
    "bullseye-security",
    "bookworm",
    "bookworm-security",
    "trixie",
    "trixie-security",
    "trixie-backports",
    "sid",
    "experimental",
];
/// A listed package can be gone from the mirror: how many versions are tried, newest first. Of an old release's last updates
/// most are.
const TRIES: usize = 12;
/// Debian's arm64 kernels with pages of 16 KiB, and what a series of them ends with. (It has none with 64 KiB.)
const LARGE_PAGES: &str = "-16k";

/// A stable series of the kernel, or whichever is newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series {
    pub version: Version,
    /// Pages of 16 KiB, which only arm64 has.
    pub large_pages: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Numbered(u32, u32),
    Newest,
}

impl FromStr for Series {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (version, large_pages) = match text.strip_suffix(LARGE_PAGES) {
            Some(version) => (version, true),
            None => (text, false),
        };
        let version = if version == "newest" {
            Version::Newest
        } else {
            let numbers = version
                .split_once('.')
                .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
            let (major, minor) =
                numbers.ok_or_else(|| format!("{text} is neither a series such as 6.12 or 6.12-16k nor `newest`"))?;
            Version::Numbered(major, minor)
        };
        Ok(Self { version, large_pages })
    }
}

impl std::fmt::Display for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.version {
            Version::Numbered(major, minor) => write!(f, "{major}.{minor}")?,
            Version::Newest => f.write_str("newest")?,
        }
        f.write_str(if self.large_pages { LARGE_PAGES } else { "" })
    }
}

/// A kernel ready to be booted.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its release, as `uname -r` says it.
    pub release: String,
    pub path: PathBuf,
}

/// Finds the series' newest kernel below target/, else downloads it.
pub fn find_or_fetch(series: Series, arch: Arch, archive: &Archive) -> Result<Image> {
    if series.large_pages && arch == Arch::X86_64 {
        bail!("{} has no pages of 16 KiB", arch.debian());
    }
    let names = [archive.names("linux-image-")?, archive.names("linux-binary-")?].concat();
    let releases = releases(&names, series, arch);
    if releases.is_empty() {
        let gone = format!("no suite of the mirror has a kernel {series} for {}", arch.debian());
        return Err(anyhow!(NotThere).context(gone));
    }
    let mut why_not = Vec::new();
    for (package, release) in releases.iter().take(TRIES) {
        let directory = workspace::target()
            .join("kernels/images")
            .join(format!("{release}-{}", arch.debian()));
        let made = archive::once(&directory, |partial| fetch(package, release, archive, partial));
        match made {
            Ok(()) => {
                return Ok(Image {
                    release: release.clone(),
                    path: directory.join("vmlinuz"),
                });
            }
            Err(error) if error.is::<NotThere>() => why_not.push(format!("{error:#}")),
            Err(error) => return Err(error),
        }
    }
    let gone = format!(
        "no kernel {series} for {} can be downloaded: {}",
        arch.debian(),
        why_not.join("; ")
    );
    Err(anyhow!(NotThere).context(gone))
}

fn fetch(package: &str, release: &str, archive: &Archive, into: &Path) -> Result<()> {
    say(&format!("downloading the kernel {release}"));
    let deb = archive.download(package)?;
    let unpacked = into.join("package");
    archive::unpack(&deb, &unpacked)?;
    // The image's place moved with 6.19.
    let places = [
        format!("boot/vmlinuz-{release}"),
        format!("usr/lib/modules/{release}/vmlinuz"),
    ];
    let found = places
        .iter()
        .map(|place| unpacked.join(place))
        .find(|place| place.is_file());
    let image = found.with_context(|| format!("{package} has no kernel image where one is expected"))?;
    fs::rename(&image, into.join("vmlinuz")).with_context(|| format!("moving the image {}", image.display()))?;
    fs::remove_dir_all(&unpacked).with_context(|| format!("removing {}", unpacked.display()))?;
    fs::remove_file(&deb).with_context(|| format!("removing {}", deb.display()))
}

/// Packages of the series' kernels, cloud kernels where it has them, with the release of each, newest first.
fn releases(names: &[String], series: Series, arch: Arch) -> Vec<(String, String)> {
    let flavour = if series.large_pages {
        format!("-{}{LARGE_PAGES}", arch.debian())
    } else {
        format!("-cloud-{}", arch.debian())
    };
    let mut found: Vec<(Vec<u32>, String, String)> = Vec::new();
    for name in names {
        let Some(release) = name
            .strip_prefix("linux-image-")
            .or_else(|| name.strip_prefix("linux-binary-"))
        else {
            continue;
        };
        // Others are kernels without a signature, of other flavours, and debug symbols.
        let Some(version) = release
            .strip_suffix(&flavour)
            .filter(|version| version.starts_with(|c: char| c.is_ascii_digit()))
        else {
            continue;
        };
        let order = numbers(version);
        let fits = match (series.version, order.as_slice()) {
            // A metapackage names no point release: `linux-image-6.12-cloud-amd64`.
            (_, [] | [_] | [_, _]) => false,
            (Version::Newest, _) => true,
            (Version::Numbered(major, minor), order) => order.starts_with(&[major, minor]),
        };
        // Where both exist, the image is in `linux-binary-`; `linux-image-` only depends on it.
        let shadowed = name.starts_with("linux-image-") && names.contains(&format!("linux-binary-{release}"));
        if fits && !shadowed {
            found.push((order, name.clone(), release.to_owned()));
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, name, release)| (name, release)).collect()
}

/// The numbers in a version, in their order.
pub fn numbers(version: &str) -> Vec<u32> {
    version
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str], series: &str) -> Vec<String> {
        chosen_for(names, series, Arch::X86_64)
    }

    fn chosen_for(names: &[&str], series: &str, arch: Arch) -> Vec<String> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        releases(&names, series.parse().expect("it is a series"), arch)
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    #[test]
    fn the_newest_of_a_series_comes_first() {
        let names = [
            "linux-image-5.10.0-9-cloud-amd64",
            "linux-image-5.10.0-46-cloud-amd64",
            "linux-image-5.10.0-46-cloud-amd64-unsigned",
            "linux-image-5.10.0-46-amd64",
            "linux-image-5.1.0-99-cloud-amd64",
            "linux-image-6.12-cloud-amd64",
        ];
        assert_eq!(
            chosen(&names, "5.10"),
            ["linux-image-5.10.0-46-cloud-amd64", "linux-image-5.10.0-9-cloud-amd64"]
        );
        assert_eq!(chosen(&names, "6.12"), [""; 0]);
    }

    #[test]
    fn the_package_with_the_image_in_it_is_taken() {
        let names = [
            "linux-image-7.3.4+deb13-cloud-amd64",
            "linux-binary-7.3.4+deb13-cloud-amd64",
            "linux-binary-unsigned-7.3.4+deb13-cloud-amd64",
            "linux-image-7.3-cloud-amd64",
            "linux-image-6.18.15+deb13-cloud-amd64",
        ];
        assert_eq!(
            chosen(&names, "newest"),
            [
                "linux-binary-7.3.4+deb13-cloud-amd64",
                "linux-image-6.18.15+deb13-cloud-amd64"
            ]
        );
    }

    #[test]
    fn kernels_with_large_pages_are_of_another_flavour() {
        let names = [
            "linux-image-6.12.118+deb13-cloud-arm64",
            "linux-image-6.12.118+deb13-arm64-16k",
            "linux-image-6.12.118+deb13-arm64-16k-dbg",
            "linux-image-6.12-arm64-16k",
        ];
        assert_eq!(chosen_for(&names, "6.12-16k", Arch::Aarch64), [names[1]]);
        assert_eq!(chosen_for(&names, "6.12", Arch::Aarch64), [names[0]]);
    }

    #[test]
    fn series_are_read_and_shown() {
        for text in ["5.10", "newest", "6.12-16k", "newest-16k"] {
            assert_eq!(text.parse::<Series>().expect("it is a series").to_string(), text);
        }
        for text in ["6", "6.12-64k", "16k"] {
            assert!(text.parse::<Series>().is_err(), "{text}");
        }
    }
}
