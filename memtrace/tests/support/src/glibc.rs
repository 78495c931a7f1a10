//! The glibc releases that `cargo xtask glibcs` has unpacked under target/glibc.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{skip, workspace};

/// A release of glibc, apart from the machine's own.
#[derive(Clone, Debug)]
pub struct Release {
    /// Debian's name of the release it comes from.
    pub suite: String,
    /// e.g. (2, 31)
    pub version: (u32, u32),
    /// What it was unpacked into.
    pub directory: PathBuf,
    pub loader: PathBuf,
    pub library_path: PathBuf,
    /// libc_nonshared.a, where its headers and start files were unpacked too.
    pub development: Option<PathBuf>,
}

impl Release {
    /// Words in front of a program's path that run it under this release, with `preload` before all other libraries.
    pub fn runner(&self, preload: Option<&Path>) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![
            self.loader.clone().into(),
            "--library-path".into(),
            self.library_path.clone().into(),
        ];
        if let Some(library) = preload {
            words.extend(["--preload".into(), library.into()]);
        }
        words
    }

    pub fn shown(&self) -> String {
        format!("glibc {}.{} ({})", self.version.0, self.version.1, self.suite)
    }
}

/// The libc.so.6 of this system, as this very test maps it; of a static test, where the loader would find it.
pub fn system_libc() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").expect("reading the test's own maps");
    let mut paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    if let Some(path) = paths.find(|path| path.ends_with("/libc.so.6")) {
        return PathBuf::from(path);
    }
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let mut places = ["/lib", "/usr/lib"]
        .map(|lib| Path::new(lib).join(&triplet).join("libc.so.6"))
        .into_iter();
    places.find(|path| path.is_file()).expect("this system has a libc.so.6")
}

/// Its version, which a static test's own is not.
pub fn system_version() -> (u32, u32) {
    version(&system_libc())
}

/// The loader that this system's programs name.
pub fn system_loader() -> &'static Path {
    Path::new(if cfg!(target_arch = "aarch64") {
        "/lib/ld-linux-aarch64.so.1"
    } else {
        "/lib64/ld-linux-x86-64.so.2"
    })
}

/// All releases at hand, the oldest first; empty where none was unpacked.
pub fn releases() -> Vec<Release> {
    let base = workspace().join("target/glibc");
    let Ok(list) = fs::read_dir(&base) else {
        return Vec::new();
    };
    let mut releases: Vec<Release> = list
        .map(|entry| {
            entry
                .unwrap_or_else(|error| panic!("listing {}: {error}", base.display()))
                .path()
        })
        .filter(|directory| directory.join(".complete").is_file())
        .map(|directory| read(&directory))
        .collect();
    releases.sort_by_key(|release| release.version);
    releases
}

/// The release whose headers are at hand, or that programs were compiled for ahead: what is built with it runs under all
/// others.
pub fn oldest(releases: &[Release]) -> Option<&Release> {
    let usable = |release: &&Release| release.development.is_some() || crate::cc::is_ahead();
    releases.first().filter(usable)
}

/// All releases, of which the first is the one to compile for; where there is none, `test` is skipped.
pub fn all_or_skip(test: &str) -> Option<Vec<Release>> {
    let releases = releases();
    if oldest(&releases).is_none() {
        skip::skip(
            test,
            "no other release of glibc with its headers is unpacked (cargo xtask glibcs gets them)",
        );
        return None;
    }
    Some(releases)
}

/// The lab's programs built with the oldest release, which run under all; None where xtask has not built them.
pub fn lab(releases: &[Release]) -> Option<PathBuf> {
    let program = releases.first()?.directory.join("memtrace-lab");
    program.is_file().then_some(program)
}

fn read(directory: &Path) -> Release {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    // Newer releases have merged /lib into /usr/lib.
    let under = ["lib", "usr/lib"].map(|lib| directory.join(lib).join(&triplet));
    let library_path = under
        .iter()
        .find(|path| path.join("libc.so.6").exists())
        .unwrap_or_else(|| panic!("{} holds no libc.so.6", directory.display()))
        .clone();
    let loader = ["ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"]
        .iter()
        .map(|name| library_path.join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{} holds no loader", library_path.display()));
    Release {
        suite: directory.file_name().expect("a name").to_string_lossy().into_owned(),
        version: version(&library_path.join("libc.so.6")),
        directory: directory.to_owned(),
        loader,
        development: Some(under[1].join("libc_nonshared.a")).filter(|file| file.is_file()),
        library_path,
    }
}

/// From the library's banner, "... release version 2.31."
fn version(library: &Path) -> (u32, u32) {
    const BANNER: &[u8] = b"release version ";
    let bytes = fs::read(library).unwrap_or_else(|error| panic!("reading {}: {error}", library.display()));
    let start = bytes
        .windows(BANNER.len())
        .position(|window| window == BANNER)
        .unwrap_or_else(|| panic!("{} has no banner", library.display()));
    let text: String = bytes[start + BANNER.len()..]
        .iter()
        .map(|&byte| char::from(byte))
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor),
        _ => panic!("{} calls itself version {text}", library.display()),
    }
}
