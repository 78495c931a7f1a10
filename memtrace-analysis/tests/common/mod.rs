//! The glibc libraries that tests look into.

use std::path::{Path, PathBuf};

/// Every libc.so.6 below the folders of MEMTRACE_GLIBC_DIR (separated by colons), or below target/glibc, which
/// `cargo xtask glibc` fills; with the folder it was found in. Says so aloud where there is none.
pub fn fetched_libraries() -> Vec<(PathBuf, PathBuf)> {
    let folders = match std::env::var_os("MEMTRACE_GLIBC_DIR") {
        Some(list) => std::env::split_paths(&list).collect(),
        None => vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/glibc")],
    };
    let mut found = Vec::new();
    for folder in &folders {
        let mut unvisited = vec![folder.clone()];
        while let Some(inner) = unvisited.pop() {
            for entry in std::fs::read_dir(&inner).into_iter().flatten().flatten() {
                let path = entry.path();
                // In older releases libc.so.6 is a link to libc-2.NN.so.
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    unvisited.push(path);
                } else if entry.file_name() == "libc.so.6" && path.is_file() {
                    found.push((folder.clone(), path));
                }
            }
        }
    }
    if found.is_empty() {
        eprintln!(
            "SKIPPED: no libc.so.6 of other releases below {folders:?}; fetch some, or set MEMTRACE_GLIBC_DIR to where \
             they are"
        );
    }
    found.sort();
    found
}

/// The libc that this test itself runs on.
pub fn own_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a process can read its own maps");
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| {
            let name = path.rsplit('/').next().unwrap_or("");
            name == "libc.so.6" || (name.starts_with("libc-2") && name.ends_with(".so"))
        });
    PathBuf::from(path.expect("this test is linked to glibc dynamically"))
}
