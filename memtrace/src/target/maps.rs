//! /proc/PID/maps, line by line.
//!
//! ```text
//! 7f1c2a400000-7f1c2a555000 r-xp 00026000 fe:01 1835272    /usr/lib/x86_64-linux-gnu/libc.so.6 (deleted)
//! start        end          perm offset   device inode      path
//! ```

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub start: u64,
    pub end: u64,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    /// Offset in the file.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// 0 where there is no file.
    pub inode: u64,
    pub name: Name,
}

/// What is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Anonymous,
    /// `[heap]`, `[stack]`, `[vdso]`, ... without the brackets.
    Kernel(String),
    /// As seen from the process's root; `deleted` when this path no longer leads to it.
    File {
        path: PathBuf,
        deleted: bool,
    },
}

impl Mapping {
    pub fn is_file(&self) -> bool {
        matches!(self.name, Name::File { .. })
    }

    /// The same file, whatever its path: its device and inode.
    pub fn file_id(&self) -> FileId {
        FileId {
            device: self.device,
            inode: self.inode,
        }
    }

    pub fn path(&self) -> Option<&PathBuf> {
        match &self.name {
            Name::File { path, .. } => Some(path),
            Name::Anonymous | Name::Kernel(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FileId {
    pub device: (u32, u32),
    pub inode: u64,
}

/// All mappings of the text; a line that does not have the format is left out.
pub(super) fn parse(text: &[u8]) -> Vec<Mapping> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let begin = rest.iter().position(|&byte| byte != b' ')?;
        let field = &rest[begin..];
        let length = field.iter().position(|&byte| byte == b' ').unwrap_or(field.len());
        rest = &field[length..];
        std::str::from_utf8(&field[..length]).ok()
    };
    let (start, end) = field()?.split_once('-')?;
    let permissions = field()?.as_bytes();
    let offset = hexadecimal(field()?)?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?.parse().ok()?;
    let device = (
        u32::from_str_radix(major, 16).ok()?,
        u32::from_str_radix(minor, 16).ok()?,
    );
    let [readable, writable, executable, _shared] = permissions else {
        return None;
    };
    // The path is padded on the left, and may hold and end with blanks itself.
    let path = rest
        .iter()
        .position(|&byte| byte != b' ')
        .map_or(&[][..], |begin| &rest[begin..]);
    Some(Mapping {
        start: hexadecimal(start)?,
        end: hexadecimal(end)?,
        readable: *readable == b'r',
        writable: *writable == b'w',
        executable: *executable == b'x',
        offset,
        device,
        inode,
        name: name(path, inode),
    })
}

fn name(path: &[u8], inode: u64) -> Name {
    match path {
        [] => Name::Anonymous,
        [b'[', inner @ .., b']'] if inode == 0 => Name::Kernel(super::printable(inner)),
        // "anon_inode:[perf_event]" and the like have no path.
        _ if !path.starts_with(b"/") => Name::Anonymous,
        _ => {
            let (path, deleted) = match path.strip_suffix(b" (deleted)") {
                Some(path) => (path, true),
                None => (path, false),
            };
            Name::File {
                path: PathBuf::from(OsString::from_vec(unescape(path))),
                deleted,
            }
        }
    }
}

/// The kernel writes a line feed in a path as `\012`.
fn unescape(path: &[u8]) -> Vec<u8> {
    const LINE_FEED: &[u8] = b"\\012";
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, others)) = rest.split_first() {
        if let Some(behind) = rest.strip_prefix(LINE_FEED) {
            plain.push(b'\n');
            rest = behind;
        } else {
            plain.push(first);
            rest = others;
        }
    }
    plain
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use proptest::prelude::*;

    use super::*;

    fn file(path: &str, deleted: bool) -> Name {
        Name::File {
            path: PathBuf::from(path),
            deleted,
        }
    }

    #[test]
    fn lines_of_every_kind() {
        let check = |line: &str, name: Name| {
            let parsed = parse(line.as_bytes());
            assert_eq!(parsed.len(), 1, "{line}");
            assert_eq!(parsed[0].name, name, "{line}");
            parsed[0].clone()
        };
        let libc = check(
            "7f1c2a400000-7f1c2a555000 r-xp 00026000 fe:01 1835272                    /usr/lib/libc.so.6",
            file("/usr/lib/libc.so.6", false),
        );
        assert_eq!(
            (libc.start, libc.end, libc.offset),
            (0x7f1c_2a40_0000, 0x7f1c_2a55_5000, 0x26000)
        );
        assert_eq!((libc.device, libc.inode), ((0xfe, 1), 1_835_272));
        assert!(libc.readable && !libc.writable && libc.executable && libc.is_file());
        check(
            "7f00-7f01 r--p 00000000 00:2f 12 /a b/lib c.so (deleted)",
            file("/a b/lib c.so", true),
        );
        check(
            "7f00-7f01 r--p 00000000 00:2f 12 /odd\\012name",
            file("/odd\nname", false),
        );
        check("7f00-7f01 rw-p 00000000 00:00 0 ", Name::Anonymous);
        check("7f00-7f01 rw-p 00000000 00:00 0", Name::Anonymous);
        check(
            "7f00-7f01 rw-p 00000000 00:00 0     [heap]",
            Name::Kernel("heap".into()),
        );
        check(
            "7f00-7f01 rw-p 00000000 00:00 0     [anon:glibc: malloc arena]",
            Name::Kernel("anon:glibc: malloc arena".into()),
        );
        check(
            "7f00-7f01 rw-p 00000000 00:00 0     anon_inode:[perf_event]",
            Name::Anonymous,
        );
        check(
            "7f00-7f01 rw-s 00000000 00:01 1024  /memfd:buffer (deleted)",
            file("/memfd:buffer", true),
        );
    }

    #[test]
    fn this_process_maps_what_it_runs() {
        let maps = parse(&std::fs::read("/proc/self/maps").unwrap());
        let here = this_process_maps_what_it_runs as *const () as u64;
        let code = maps
            .iter()
            .find(|mapping| (mapping.start..mapping.end).contains(&here))
            .unwrap();
        assert!(code.executable && code.path() == Some(&std::env::current_exe().unwrap()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..300)) {
            parse(&text);
        }

        #[test]
        fn what_the_kernel_writes_is_read_back(
            start in any::<u32>(), length in 1u32.., offset in any::<u32>(), major in 0u32..0xfff, minor in 0u32..0xfffff,
            inode in 1u64.., path in "/[ -~]{0,40}[!-~]", deleted in any::<bool>(), flags in any::<[bool; 3]>(),
        ) {
            let end = u64::from(start) + u64::from(length);
            let flag = |set: bool, letter: char| if set { letter } else { '-' };
            let line = format!(
                "{start:08x}-{end:08x} {}{}{}p {offset:08x} {major:02x}:{minor:02x} {inode}   {path}{}\n",
                flag(flags[0], 'r'), flag(flags[1], 'w'), flag(flags[2], 'x'), if deleted { " (deleted)" } else { "" },
            );
            let parsed = parse(line.as_bytes());
            prop_assert_eq!(parsed.len(), 1);
            let Mapping { start: s, end: e, readable, writable, executable, offset: o, device, inode: i, name } = &parsed[0];
            prop_assert_eq!((*s, *e, *o, *device, *i), (start.into(), end, offset.into(), (major, minor), inode));
            prop_assert_eq!([*readable, *writable, *executable], flags);
            if !path.ends_with(" (deleted)") && !path.contains("\\012") {
                prop_assert_eq!(name, &file(&path, deleted));
            }
        }

        #[test]
        fn unescaping_changes_nothing_else(path in "[a-z\\\\0-2]{0,20}") {
            let plain = PathBuf::from(OsString::from_vec(unescape(path.as_bytes())));
            let expected = path.replace("\\012", "\n");
            prop_assert_eq!(plain.as_os_str().as_bytes(), expected.as_bytes());
        }
    }
}
