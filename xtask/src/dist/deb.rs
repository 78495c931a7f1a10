//! The Debian package. It depends on nothing: memtrace is static, and the lab runs with any glibc from 2.31 on.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::ebpf::Arch;
use crate::process;
use crate::workspace;

const DESCRIPTION: &str = "\
memory tracer for processes that use glibc's malloc
 memtrace tells where a running process's memory went, which allocation made
 the kernel hand it out, and why it does not come back. It counts allocator
 calls in the kernel (eBPF), ties each memory system call to the allocation
 that made it necessary, and reads the allocator's own books.";

pub struct Package<'a> {
    pub version: &'a str,
    pub arch: Arch,
    pub memtrace: &'a Path,
    pub lab: &'a Path,
    /// Where the documents of the release are, and where the package goes.
    pub dist: &'a Path,
}

/// Builds the package with dpkg-deb.
pub fn build(package: &Package) -> Result<()> {
    let Package {
        version,
        arch,
        memtrace,
        lab,
        dist,
    } = package;
    ensure!(
        process::find("dpkg-deb").is_some(),
        "making the Debian package takes dpkg-deb, which is not in PATH: install the package dpkg"
    );
    let root = workspace::target().join("kernels/deb").join(arch.debian());
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("emptying {}", root.display()))?;
    }
    let tree = Tree { root: &root };
    tree.put(memtrace, "usr/bin/memtrace", PROGRAM)?;
    tree.put(lab, "usr/bin/memtrace-lab", PROGRAM)?;
    let documents = "usr/share/doc/memtrace";
    // What the README and the manual pages point to lies where they say.
    for name in [
        "README.md",
        "CHANGELOG.md",
        "ARCHITECTURE.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "LICENSE-GPL-2.0",
    ] {
        tree.put(&workspace::root().join(name), &format!("{documents}/{name}"), FILE)?;
    }
    for directory in ["docs", "docs/pictures"] {
        for file in list(&workspace::root().join(directory))?
            .into_iter()
            .filter(|file| file.is_file())
        {
            let name = file.file_name().context("a document has a name")?.to_string_lossy();
            tree.put(&file, &format!("{documents}/{directory}/{name}"), FILE)?;
        }
    }
    tree.put(
        &dist.join("THIRD-PARTY.txt"),
        &format!("{documents}/THIRD-PARTY.txt"),
        FILE,
    )?;
    tree.write(&format!("{documents}/copyright"), &copyright()?)?;
    for page in list(&dist.join("man"))? {
        let name = page
            .file_name()
            .context("a manual page has a name")?
            .to_string_lossy()
            .into_owned();
        let target = format!("usr/share/man/man1/{name}");
        tree.put(&page, &target, FILE)?;
        let mut gzip = Command::new("gzip");
        process::run(
            gzip.args(["-9", "-n"]).arg(root.join(&target)),
            "compressing a manual page",
        )?;
    }
    for (from, to) in [
        ("memtrace.bash", "usr/share/bash-completion/completions/memtrace"),
        ("_memtrace", "usr/share/zsh/vendor-completions/_memtrace"),
        ("memtrace.fish", "usr/share/fish/vendor_completions.d/memtrace.fish"),
    ] {
        tree.put(&dist.join("completions").join(from), to, FILE)?;
    }
    let mut sums = Command::new("sh");
    sums.args(["-c", "find usr -type f -print0 | sort -z | xargs -0 md5sum"])
        .current_dir(&root);
    let sums = process::capture(&mut sums, "summing up the files of the package")?;
    tree.write("DEBIAN/md5sums", &sums)?;
    tree.write("DEBIAN/control", &control(version, *arch, tree.kibibytes()?))?;
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zxz", "--build"]).arg(&root);
    build.arg(dist.join(format!("memtrace_{version}_{}.deb", arch.debian())));
    process::capture(&mut build, "building the Debian package").map(drop)
}

const PROGRAM: u32 = 0o755;
const FILE: u32 = 0o644;

/// The package's files before they are packed.
struct Tree<'a> {
    root: &'a Path,
}

impl Tree<'_> {
    fn put(&self, from: &Path, to: &str, mode: u32) -> Result<()> {
        let to = self.made(to)?;
        fs::copy(from, &to).with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
        permit(&to, mode)
    }

    fn write(&self, to: &str, text: &str) -> Result<()> {
        let to = self.made(to)?;
        fs::write(&to, text).with_context(|| format!("writing {}", to.display()))?;
        permit(&to, FILE)
    }

    fn made(&self, to: &str) -> Result<PathBuf> {
        let to = self.root.join(to);
        let mut directory = to.parent().context("a file of the package lies in a directory")?;
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
        // Whatever the umask: dpkg-deb takes the directories as they are.
        while directory.starts_with(self.root) {
            permit(directory, PROGRAM)?;
            directory = directory.parent().context("the root has a parent")?;
        }
        Ok(to)
    }

    /// Installed size, as the control file wants it.
    fn kibibytes(&self) -> Result<u64> {
        let mut du = Command::new("du");
        let text = process::capture(
            du.args(["-sk", "--apparent-size"]).arg(self.root),
            "measuring the package",
        )?;
        let number = text.split_whitespace().next().unwrap_or_default();
        number.parse().with_context(|| format!("reading du's answer {text:?}"))
    }
}

fn permit(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("setting the permissions of {}", path.display()))
}

fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("listing {}", directory.display()))?;
    entries
        .map(|entry| {
            Ok(entry
                .with_context(|| format!("listing {}", directory.display()))?
                .path())
        })
        .collect()
}

fn control(version: &str, arch: Arch, kibibytes: u64) -> String {
    format!(
        "Package: memtrace\nVersion: {version}\nArchitecture: {}\nSection: devel\nPriority: optional\n\
         Installed-Size: {kibibytes}\nMaintainer: The memtrace authors <memtrace@localhost>\nSuggests: libc6 (>= 2.31)\n\
         Description: {DESCRIPTION}\n",
        arch.debian()
    )
}

/// Debian's machine-readable form, with the texts of both licences; the crates inside have theirs in THIRD-PARTY.txt.
fn copyright() -> Result<String> {
    let mut text = String::from(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: memtrace\n\
         Comment: The licences of the crates compiled in are in THIRD-PARTY.txt beside this file. The kernel side inside\n \
         memtrace is also under GPL-2.0, whose text Debian has in /usr/share/common-licenses/GPL-2.\n\n\
         Files: *\nCopyright: The memtrace authors\nLicense: MIT or Apache-2.0\n",
    );
    for (name, file) in [("MIT", "LICENSE-MIT"), ("Apache-2.0", "LICENSE-APACHE")] {
        let file = workspace::root().join(file);
        let licence = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        text += &format!("\nLicense: {name}\n");
        for line in licence.lines() {
            let line = line.trim_end();
            text += &if line.is_empty() {
                " .\n".to_owned()
            } else {
                format!(" {line}\n")
            };
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_file_has_its_fields_and_an_indented_description() {
        let control = control("1.2.3", Arch::Aarch64, 4321);
        assert!(control.contains("\nVersion: 1.2.3\nArchitecture: arm64\n"), "{control}");
        let (fields, description) = control.split_once("\nDescription: ").expect("it has a description");
        assert!(fields.lines().all(|line| line.contains(": ")), "{control}");
        assert!(
            description.lines().skip(1).all(|line| line.starts_with(' ')),
            "{control}"
        );
    }
}
