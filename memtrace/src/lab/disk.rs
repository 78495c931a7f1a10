//! What lies behind a directory: a disk with its limits, or memory.

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The file system of a directory whose files have no disk behind them; None where they have one.
pub fn kept_in_memory(directory: &Path) -> Result<Option<&'static str>> {
    let look = || -> io::Result<u32> {
        let path = CString::new(directory.as_os_str().as_bytes())?;
        let mut about = MaybeUninit::<libc::statfs>::zeroed();
        // SAFETY: the path ends with a NUL, and the structure is written as a whole where the call succeeds.
        match unsafe { libc::statfs(path.as_ptr(), about.as_mut_ptr()) } {
            // The numbers have 32 bits, whatever a libc makes of them.
            // SAFETY: as said; and zeros are a valid one.
            0 => Ok(unsafe { about.assume_init() }.f_type as u32),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let kind = look().with_context(|| format!("asking for the file system of {}", directory.display()))?;
    // As in the kernel's magic.h.
    Ok(match kind {
        0x0102_1994 => Some("tmpfs"),
        0x8584_58f6 => Some("ramfs"),
        0x9584_58f6 => Some("hugetlbfs"),
        _ => None,
    })
}

/// How much a disk's queue takes at once, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub read_ahead: u64,
    pub largest_request: u64,
}

/// Of the disk that a directory is on; None where the kernel does not say (network, several disks behind one).
pub fn limits(directory: &Path) -> Option<Limits> {
    let device = fs::metadata(directory).ok()?.dev();
    let place = PathBuf::from(format!(
        "/sys/dev/block/{}:{}",
        libc::major(device),
        libc::minor(device)
    ));
    // A partition has its disk's queue.
    let queue = [place.join("queue"), place.join("../queue")]
        .into_iter()
        .find(|queue| queue.is_dir())?;
    let value = |name: &str| -> Option<u64> {
        Some(fs::read_to_string(queue.join(name)).ok()?.trim().parse::<u64>().ok()? << 10)
    };
    Some(Limits {
        read_ahead: value("read_ahead_kb")?,
        largest_request: value("max_sectors_kb")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_from_disks() {
        // The kernel lists which file systems need no device, and mounts of tmpfs by that name.
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        for line in mounts.lines() {
            let (left, right) = line.split_once(" - ").unwrap();
            let (place, kind) = (left.split(' ').nth(4).unwrap(), right.split(' ').next().unwrap());
            let visible = mounts
                .lines()
                .filter(|other| other.split(' ').nth(4) == Some(place))
                .count()
                == 1;
            if let (true, Ok(told)) = (visible, kept_in_memory(Path::new(place)))
                && ["tmpfs", "ext4", "xfs", "proc", "sysfs", "overlay"].contains(&kind)
            {
                assert_eq!(told, (kind == "tmpfs").then_some("tmpfs"), "{line}");
            }
        }
        assert!(kept_in_memory(Path::new("/no/such/place")).is_err());
    }
}
