//! A file system to boot from, in the kernel's initramfs format: cpio, "newc" variant, uncompressed.
//!
//! Each entry is a header of hexadecimal digits, the name and the content, both padded to four bytes
//! (Documentation/driver-api/early-userspace/buffer-format.rst in the kernel's tree).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const TEXT: u32 = 0o100_644;
const SYMLINK: u32 = 0o120_777;

/// Paths without a leading slash, to what is there. Ordered, so that directories precede what is in them.
#[derive(Default)]
pub struct Initramfs {
    entries: BTreeMap<PathBuf, Entry>,
}

struct Entry {
    mode: u32,
    content: Vec<u8>,
}

impl Initramfs {
    pub fn directory(&mut self, path: impl AsRef<Path>) {
        for part in relative(path.as_ref())
            .ancestors()
            .filter(|part| !part.as_os_str().is_empty())
        {
            let new = || Entry {
                mode: DIRECTORY,
                content: Vec::new(),
            };
            self.entries.entry(part.to_owned()).or_insert_with(new);
        }
    }

    /// A file, executable, with the directories that lead to it.
    pub fn file(&mut self, path: impl AsRef<Path>, content: impl Into<Vec<u8>>) {
        self.insert(path.as_ref(), PROGRAM, content.into());
    }

    /// A file that is not executable.
    pub fn text(&mut self, path: impl AsRef<Path>, content: impl Into<Vec<u8>>) {
        self.insert(path.as_ref(), TEXT, content.into());
    }

    /// A copy of a file of this machine; of a link's target where it is a link.
    pub fn copy(&mut self, path: impl AsRef<Path>, from: &Path) -> Result<()> {
        let content = fs::read(from).with_context(|| format!("reading {} for the guest", from.display()))?;
        self.file(path, content);
        Ok(())
    }

    pub fn symlink(&mut self, path: impl AsRef<Path>, target: &str) {
        self.insert(path.as_ref(), SYMLINK, target.into());
    }

    fn insert(&mut self, path: &Path, mode: u32, content: Vec<u8>) {
        if let Some(parent) = path.parent() {
            self.directory(parent);
        }
        self.entries.insert(relative(path).to_owned(), Entry { mode, content });
    }

    /// The archive's bytes.
    pub fn archive(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, (path, Entry { mode, content })) in self.entries.iter().enumerate() {
            write_entry(&mut out, number + 1, *mode, &path.to_string_lossy(), content);
        }
        write_entry(&mut out, 0, 0, "TRAILER!!!", &[]);
        out
    }
}

fn write_entry(out: &mut Vec<u8>, inode: usize, mode: u32, name: &str, content: &[u8]) {
    let links = 1;
    out.extend(b"070701");
    let fields = [
        inode,
        mode as usize,
        0, // user
        0, // group
        links,
        0, // time of modification
        content.len(),
        0, // device, major
        0, // device, minor
        0, // device number of a node, major
        0, // device number of a node, minor
        name.len() + 1,
        0, // check sum, of another variant
    ];
    for field in fields {
        out.extend(format!("{field:08X}").bytes());
    }
    out.extend(name.bytes());
    out.push(0);
    pad(out);
    out.extend(content);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_in_order() {
        let mut tree = Initramfs::default();
        tree.file("/a/b/file", *b"12345");
        tree.symlink("/a/link", "b/file");
        let archive = tree.archive();
        assert_eq!(archive.len() % 4, 0);

        let mut names = Vec::new();
        let mut at = 0;
        while at < archive.len() {
            assert_eq!(&archive[at..at + 6], b"070701");
            let field = |n: usize| {
                let digits = &archive[at + 6 + 8 * n..at + 14 + 8 * n];
                usize::from_str_radix(str::from_utf8(digits).expect("digits"), 16).expect("a number")
            };
            let (size, name_size) = (field(6), field(11));
            let name = &archive[at + 110..at + 110 + name_size - 1];
            names.push(String::from_utf8(name.to_vec()).expect("a name"));
            at = (at + 110 + name_size).next_multiple_of(4);
            at = (at + size).next_multiple_of(4);
        }
        assert_eq!(names, ["a", "a/b", "a/b/file", "a/link", "TRAILER!!!"]);
    }
}
