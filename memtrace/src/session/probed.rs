//! Is a place in a file probed already, in all that map it?
//!
//! Two containers with one image map the same file by two mounts, so that its device and inode do not tell. But a probe
//! is also set in a mapping of one's own: there the probed instruction is not what the file says.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The breakpoint of any processor fits.
const BYTES: usize = 4;

/// Whether a probe of all processes is set at `offset`, where an instruction begins.
pub fn is_probed(path: &Path, offset: u64) -> io::Result<bool> {
    let file = File::open(path)?;
    let mut written = [0; BYTES];
    file.read_exact_at(&mut written, offset)?;
    let page = super::page_size();
    let begin = offset - offset % page;
    let length = usize::try_from(offset - begin).map_err(io::Error::other)? + BYTES;
    // SAFETY: a new mapping, placed by the kernel, of a file that is open.
    let mapping = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            libc::off_t::try_from(begin).map_err(io::Error::other)?,
        )
    };
    if mapping == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: mapped just now with this length, of which the file has all bytes (they were read above).
    let mapped: [u8; BYTES] = unsafe {
        let mapped = mapping.cast::<u8>().add(length - BYTES).cast::<[u8; BYTES]>().read();
        libc::munmap(mapping, length);
        mapped
    };
    Ok(mapped != written)
}
