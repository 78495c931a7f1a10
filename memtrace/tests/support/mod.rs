//! Programs for tests, compiled from C, and what of the system they meet.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder of its own that goes with the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "memtrace-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Compiles `source` to the file `name`.
    pub fn compile(&self, name: &str, source: &str, options: &[&str]) -> PathBuf {
        self.compile_with("cc", name, source, options)
            .unwrap_or_else(|problem| panic!("{problem}"))
    }

    pub fn compile_with(&self, compiler: &str, name: &str, source: &str, options: &[&str]) -> Result<PathBuf, String> {
        let text = self.path(&format!("{name}.c"));
        let program = self.path(name);
        std::fs::write(&text, source).unwrap();
        let output = Command::new(compiler)
            .args(["-O1", "-w", "-o"])
            .arg(&program)
            .arg(&text)
            .args(options)
            .output();
        match output {
            Ok(output) if output.status.success() => Ok(program),
            Ok(output) => Err(format!(
                "{compiler} refused {name}: {}",
                String::from_utf8_lossy(&output.stderr)
            )),
            Err(error) => Err(format!("{compiler} cannot be run: {error}")),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} stays behind: {error}", self.0.display());
        }
    }
}

/// The system's libc, as this test maps it.
pub fn system_libc() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    PathBuf::from(
        paths
            .find(|path| path.ends_with("/libc.so.6"))
            .expect("the test maps a libc.so.6"),
    )
}

/// Where the loader is that programs of this system name.
pub fn system_loader() -> &'static Path {
    Path::new(if cfg!(target_arch = "aarch64") {
        "/lib/ld-linux-aarch64.so.1"
    } else {
        "/lib64/ld-linux-x86-64.so.2"
    })
}

pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}
