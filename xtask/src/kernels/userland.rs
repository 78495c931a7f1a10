//! C libraries for the guests' programs: target/kernels/userland/SUITE-ARCH, unpacked from each Debian release.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::initramfs::Initramfs;
use crate::archive::{self, Archive};
use crate::ebpf::Arch;
use crate::process::say;
use crate::workspace;

/// Suites with the glibc of each, oldest first. A program linked against the first runs with all.
pub const SUITES: [&str; 5] = ["bullseye", "bookworm", "trixie", "sid", "experimental"];

/// What dynamic programs of the tests ask for; from 2.34 the small ones are empty shells.
const LIBRARIES: [&str; 8] = [
    "libc.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libm.so.6",
    "libutil.so.1",
    "libresolv.so.2",
    "libgcc_s.so.1",
];

/// One release's C library.
#[derive(Clone, Debug)]
pub struct Userland {
    pub arch: Arch,
    pub root: PathBuf,
    /// As the library's banner says it: "2.36".
    pub version: String,
}

impl Userland {
    /// What its malloc has to be told so that the break moves in the steps that the tests know: on arm64 it asks for huge
    /// pages by itself from 2.43 on. Releases before 2.35 do not know the setting, and reading it moves their break.
    pub fn tunables(&self) -> Option<(String, String)> {
        let minor: u32 = self.version.strip_prefix("2.")?.parse().ok()?;
        (self.arch == Arch::Aarch64 && minor >= 43)
            .then(|| ("GLIBC_TUNABLES".to_owned(), "glibc.malloc.hugetlb=0".to_owned()))
    }

    pub fn find_or_fetch(suite: &str, arch: Arch, apt: &Archive) -> Result<Self> {
        let root = workspace::target()
            .join("kernels/userland")
            .join(format!("{suite}-{}", arch.debian()));
        archive::once(&root, |partial| {
            say(&format!(
                "unpacking the C library of {suite} for {} below target/kernels/userland",
                arch.debian()
            ));
            // Any release's compiler library will do: it asks for an old glibc only. The headers and start files are
            // for linking programs that run with every release.
            let oldest = SUITES[0];
            let mut packages = vec![format!("libc6/{suite}"), format!("libgcc-s1/{oldest}")];
            if suite == oldest {
                packages.extend(["libc6-dev", "linux-libc-dev"].map(|package| format!("{package}/{oldest}")));
            }
            let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
            for deb in apt.download_all(&packages)? {
                archive::unpack(&deb, partial)?;
            }
            make_linkable(partial, arch)
        })?;
        let library = find(&root, arch, "libc.so.6").context("the package libc6 has no libc.so.6")?;
        let content = fs::read(&library).with_context(|| format!("reading {}", library.display()))?;
        let version = banner_version(&content).with_context(|| format!("{} has no banner", library.display()))?;
        Ok(Self { arch, root, version })
    }

    /// Puts the library where the tests look for other releases than the guest's own: target/glibc/SUITE.
    pub fn install_release(&self, tree: &mut Initramfs, suite: &str) -> Result<()> {
        let root = workspace::target().join("glibc").join(suite);
        let libraries = root.join("usr/lib").join(self.arch.multiarch());
        let loader = Path::new(self.arch.loader())
            .file_name()
            .context("the loader has a name")?
            .to_string_lossy();
        for name in LIBRARIES.into_iter().chain([&*loader]) {
            if let Some(from) = find(&self.root, self.arch, name) {
                tree.copy(libraries.join(name), &from)?;
            }
        }
        tree.file(root.join(".complete"), *b"");
        Ok(())
    }

    /// Makes it the guest's own.
    pub fn install(&self, tree: &mut Initramfs) -> Result<()> {
        let name = Path::new(self.arch.loader())
            .file_name()
            .context("the loader has a name")?
            .to_string_lossy();
        let loader = find(&self.root, self.arch, &name).with_context(|| format!("no loader {name}"))?;
        tree.copy(self.arch.loader(), &loader)?;
        for library in LIBRARIES {
            if let Some(from) = find(&self.root, self.arch, library) {
                tree.copy(format!("lib/{}/{library}", self.arch.multiarch()), &from)?;
            }
        }
        Ok(())
    }
}

/// The compiler's run-time library can be linked without its own package of start files.
fn make_linkable(root: &Path, arch: Arch) -> Result<()> {
    relative_links(root, root)?;
    let run_time = find(root, arch, "libgcc_s.so.1").context("the package libgcc-s1 has no libgcc_s.so.1")?;
    let directory = root.join("usr/lib").join(arch.multiarch());
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    let link = directory.join("libgcc_s.so");
    fs::copy(&run_time, &link)
        .with_context(|| format!("copying {} to {}", run_time.display(), link.display()))
        .map(drop)
}

/// Links that name places of an installed system name them below `root` afterwards.
fn relative_links(root: &Path, directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("listing {}", directory.display()))? {
        let path = entry
            .with_context(|| format!("listing {}", directory.display()))?
            .path();
        if path.is_dir() && !path.is_symlink() {
            relative_links(root, &path)?;
        }
        let Some(target) = fs::read_link(&path).ok().filter(|target| target.is_absolute()) else {
            continue;
        };
        let depth = directory
            .strip_prefix(root)
            .context("it lies below the root")?
            .components()
            .count();
        let up: PathBuf = std::iter::repeat_n("..", depth).collect();
        let below = up.join(target.strip_prefix("/").context("it is absolute")?);
        fs::remove_file(&path).with_context(|| format!("replacing the link {}", path.display()))?;
        symlink(&below, &path).with_context(|| format!("linking {} to {}", path.display(), below.display()))?;
    }
    Ok(())
}

/// A library in an unpacked release: its place moved from /lib to /usr/lib, and the loader has one of its own.
fn find(root: &Path, arch: Arch, name: &str) -> Option<PathBuf> {
    let places = ["lib", "usr/lib", "lib64", "usr/lib64"];
    let multiarch = places[..2].iter().map(|place| root.join(place).join(arch.multiarch()));
    let plain = places.iter().map(|place| root.join(place));
    multiarch
        .chain(plain)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// "2.36" of "GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36."
fn banner_version(library: &[u8]) -> Option<String> {
    let banner = b"release version ";
    let start = library.windows(banner.len()).position(|window| window == banner)? + banner.len();
    let version = library[start..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit() || **byte == b'.');
    let version = String::from_utf8(version.copied().collect()).ok()?;
    Some(version.trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::banner_version;

    #[test]
    fn reads_the_banner() {
        let library = b"\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\nCopyright";
        assert_eq!(banner_version(library).as_deref(), Some("2.36"));
        assert_eq!(banner_version(b"musl libc"), None);
    }
}
