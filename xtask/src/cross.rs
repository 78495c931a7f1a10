//! Programs for another architecture, and for older systems than this one, built here.
//!
//! A C compiler and Rust's standard library are taken where they are, else unpacked below target/kernels from Debian's
//! archive; nothing is installed but, where rustup manages the compiler, its standard library for that target.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::archive::{self, Archive, Installed};
use crate::ebpf::Arch;
use crate::process::{self, say};
use crate::workspace;

/// What a program is linked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link<'a> {
    /// One file that needs no library of the system it runs on.
    Static,
    /// glibc's shared library, of the release unpacked there (with its libc6-dev): runs with that one and all later.
    Dynamic(&'a Path),
}

/// The tools for one architecture.
pub struct Cross {
    pub arch: Arch,
    /// The C compiler, which is the linker, too.
    compiler: PathBuf,
    rust: Rust,
}

enum Rust {
    /// The toolchain xtask was started with has the target's standard library.
    Default,
    /// Debian's compiler, and a sysroot with the standard library unpacked from its package for that architecture.
    Debian { rustc: PathBuf, sysroot: PathBuf },
}

impl Cross {
    pub fn find_or_fetch(arch: Arch) -> Result<Self> {
        Ok(Self {
            arch,
            compiler: compiler(arch).with_context(|| format!("getting a C compiler for {}", arch.debian()))?,
            rust: rust(arch).with_context(|| format!("getting Rust's standard library for {}", arch.debian()))?,
        })
    }

    /// A cross compiler looks for start files and libraries among its own first, unless it is told where.
    fn link_words(&self, root: &Path) -> [String; 3] {
        let libraries = root.join("usr/lib").join(self.arch.multiarch());
        [
            format!("--sysroot={}", root.display()),
            format!("-B{}", libraries.display()),
            format!("-L{}", libraries.display()),
        ]
    }

    /// The C compiler, set up for `link`: a static program gets the compiler's own C library, whose release its run-time
    /// library asks for.
    pub fn compiler(&self, link: Link) -> Command {
        let mut command = Command::new(&self.compiler);
        if let Link::Dynamic(root) = link {
            command.args(self.link_words(root));
        }
        command
    }

    /// A cargo that builds for `link`; the verb and `--target` are the caller's. What it makes lies below
    /// target/kernels/build, so that it does not evict what plain builds made, nor one architecture's compiler what
    /// another's did.
    pub fn cargo(&self, link: Link) -> Command {
        let mut command = process::cargo();
        let mut flags = Vec::new();
        let name = match link {
            Link::Static => {
                flags.push("-Ctarget-feature=+crt-static".to_owned());
                "static"
            }
            Link::Dynamic(root) => {
                flags.push("-Ctarget-feature=-crt-static".to_owned());
                flags.extend(self.link_words(root).map(|word| format!("-Clink-arg={word}")));
                "dynamic"
            }
        };
        if let Rust::Debian { rustc, sysroot } = &self.rust {
            flags.push(format!("--sysroot={}", sysroot.display()));
            command
                .env("RUSTC", rustc)
                .env_remove("RUSTC_WRAPPER")
                .env_remove("RUSTC_WORKSPACE_WRAPPER");
        }
        let linker = format!(
            "CARGO_TARGET_{}_LINKER",
            self.arch.triple().replace('-', "_").to_uppercase()
        );
        command
            .env(linker, &self.compiler)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .env_remove("RUSTFLAGS")
            .env(
                "CARGO_TARGET_DIR",
                workspace::target()
                    .join("kernels/build")
                    .join(format!("{name}-{}", self.arch.debian())),
            );
        command
    }
}

fn compiler(arch: Arch) -> Result<PathBuf> {
    if arch == Arch::HOST {
        return process::find("cc").context("no cc in PATH: install gcc and libc6-dev");
    }
    let name = format!("{}-gcc", arch.multiarch());
    if let Some(found) = process::find(&name) {
        return Ok(found);
    }
    let directory = workspace::target().join("kernels/cross").join(arch.debian());
    archive::once(&directory, |partial| {
        say(&format!(
            "unpacking a C compiler for {} below target/kernels/cross (44 MB to download)",
            arch.debian()
        ));
        let codename = super::kernels::debian_codename()?;
        let security = format!("{codename}-security");
        let apt = Archive::open("cross", &[&codename, &security], Arch::HOST.debian(), Installed::AsHere)?;
        let suffix = arch.multiarch().replace('_', "-");
        let packages = [
            format!("gcc-{suffix}"),
            format!("binutils-{suffix}"),
            format!("libc6-dev-{}-cross", arch.debian()),
            format!("linux-libc-dev-{}-cross", arch.debian()),
        ];
        let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
        for deb in apt.download_with_dependencies(&packages, None)? {
            archive::unpack(&deb, partial)?;
        }
        Ok(())
    })?;
    // The compiler finds its own parts from where it lies; the assembler's libraries need to be told.
    let wrapper = directory.join("cc");
    let libraries = directory.join("usr/lib").join(Arch::HOST.multiarch());
    let program = directory.join("usr/bin").join(&name);
    let text = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH='{}' exec '{}' \"$@\"\n",
        libraries.display(),
        program.display()
    );
    write_program(&wrapper, &text)?;
    Ok(wrapper)
}

fn rust(arch: Arch) -> Result<Rust> {
    if default_has(arch)? {
        return Ok(Rust::Default);
    }
    let mut why_not = Vec::new();
    match debian_std(arch) {
        Ok(rust) => return Ok(rust),
        Err(error) => why_not.push(format!("{error:#}")),
    }
    if process::find("rustup").is_some() {
        let mut add = Command::new("rustup");
        add.args(["target", "add", arch.triple()]);
        say(&format!(
            "about to install Rust's standard library; running: {}",
            process::shown(&add)
        ));
        match process::run(&mut add, "adding the target to rustup's toolchain") {
            Ok(()) if default_has(arch)? => return Ok(Rust::Default),
            Ok(()) => why_not.push("rustup added the target to another toolchain".to_owned()),
            Err(error) => why_not.push(format!("{error:#}")),
        }
    }
    bail!("{}", why_not.join("; "))
}

/// Whether the toolchain xtask was started with can build for the architecture.
fn default_has(arch: Arch) -> Result<bool> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", arch.triple()]);
    let directory = process::capture(&mut rustc, "asking rustc for its standard library")?;
    Ok(Path::new(directory.trim()).is_dir())
}

/// Debian's rustc reads the standard library of its own package of exactly its version only.
fn debian_std(arch: Arch) -> Result<Rust> {
    let rustc = PathBuf::from(crate::toolchain::DEBIAN_RUSTC);
    if !process::is_executable(&rustc) {
        bail!("Debian's rustc-web is not installed");
    }
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat", "${Version}", "rustc-web"]);
    let version = process::capture(&mut query, "asking for the version of rustc-web")?;
    let sysroot = workspace::target()
        .join("kernels/rust")
        .join(format!("{}-{version}", arch.debian()));
    archive::once(&sysroot, |partial| {
        say(&format!(
            "unpacking Rust's standard library for {} below target/kernels/rust (34 MB)",
            arch.debian()
        ));
        let codename = super::kernels::debian_codename()?;
        let security = format!("{codename}-security");
        let name = format!("rust-{}", arch.debian());
        let apt = Archive::open(&name, &[&codename, &security], arch.debian(), Installed::Nothing)?;
        let unpacked = partial.join("package");
        archive::unpack(&apt.download(&format!("libstd-rust-web-dev={version}"))?, &unpacked)?;
        let libraries = partial.join("lib/rustlib");
        fs::create_dir_all(&libraries).with_context(|| format!("making {}", libraries.display()))?;
        let link = |from: PathBuf, name: &str| {
            let to = libraries.join(name);
            symlink(&from, &to).with_context(|| format!("linking {} to {}", to.display(), from.display()))
        };
        link(
            Path::new("../../package/usr/lib/rustlib").join(arch.triple()),
            arch.triple(),
        )?;
        link(
            Path::new("/usr/lib/rustlib").join(Arch::HOST.triple()),
            Arch::HOST.triple(),
        )
    })?;
    Ok(Rust::Debian { rustc, sysroot })
}

/// Written only where it differs: a linker that looks newer makes cargo link everything again.
fn write_program(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("making {} executable", path.display()))
}
