//! Files without a name: made in the current directory and unlinked at once, so that nothing is left however the program
//! ends. /proc/PID/fd shows the name they had.

use std::ffi::c_int;

use crate::line::{self, Line};
use crate::random::Random;

/// Bytes written or read at a time.
pub const CHUNK: usize = 1 << 20;

/// An open file; closed when the process ends.
#[derive(Clone, Copy)]
pub struct File(pub c_int);

impl File {
    /// A new file of that many bytes that no disk can make smaller, not yet written to the disk.
    pub fn make(letter: char, bytes: usize) -> Self {
        let mut name = Line::new();
        name.add(format_args!("memtrace-lab-{}-{letter}\0", std::process::id()));
        let file = name.with_c_str(|name| {
            // SAFETY: the name ends with a NUL.
            unsafe {
                let file = libc::open(
                    name.as_ptr(),
                    libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC,
                    0o600,
                );
                if file < 0 {
                    fail("making a file in this directory");
                }
                if libc::unlink(name.as_ptr()) != 0 {
                    fail("taking a file's name away");
                }
                Self(file)
            }
        });
        let mut random = Random::new(u64::from(u32::from(letter)));
        let mut buffer = [0; CHUNK];
        for word in buffer.as_chunks_mut::<8>().0 {
            *word = random.next().to_ne_bytes();
        }
        let mut written = 0;
        while written < bytes {
            let next = (bytes - written).min(CHUNK);
            // A chunk that differs from the others, so that none can be kept once for all.
            buffer[..8].copy_from_slice(&random.next().to_ne_bytes());
            // SAFETY: the buffer has that many bytes.
            let done = unsafe { libc::pwrite(file.0, buffer.as_ptr().cast(), next, written as libc::off_t) };
            match usize::try_from(done) {
                Ok(done) if done > 0 => written += done,
                _ => fail("writing a file"),
            }
        }
        file
    }

    /// The same file, opened once more with other flags; None where the file system refuses them.
    pub fn reopen(self, flags: c_int) -> Option<Self> {
        let mut path = Line::new();
        path.add(format_args!("/proc/self/fd/{}\0", self.0));
        // SAFETY: the path ends with a NUL.
        let file = path.with_c_str(|path| unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) });
        (file >= 0).then_some(Self(file))
    }

    /// Waits until all of it is on the disk: only then can it leave the page cache.
    pub fn sync(self) {
        // SAFETY: a descriptor of ours.
        if unsafe { libc::fsync(self.0) } != 0 {
            fail("writing a file to the disk");
        }
    }

    /// Advice about all of it.
    pub fn advise(self, advice: c_int) {
        self.advise_about(0, 0, advice);
    }

    /// The same, a chunk at a time.
    pub fn advise_in_pieces(self, advice: c_int, bytes: usize) {
        for at in (0..bytes).step_by(CHUNK) {
            self.advise_about(at, CHUNK, advice);
        }
    }

    /// 0 bytes: up to the end.
    fn advise_about(self, at: usize, bytes: usize, advice: c_int) {
        // SAFETY: a descriptor of ours.
        let error = unsafe { libc::posix_fadvise(self.0, at as libc::off_t, bytes as libc::off_t, advice) };
        if error != 0 {
            line::give_up("advising about a file", error, 1);
        }
    }

    /// Reads from the begin, as many bytes.
    pub fn read_through(self, bytes: usize) {
        let mut buffer = [0; CHUNK];
        let mut at = 0;
        while at < bytes {
            let read = self.read_at(&mut buffer[..(bytes - at).min(CHUNK)], at);
            if read == 0 {
                fail("reading a file to its end");
            }
            at += read;
        }
    }

    pub fn read_at(self, room: &mut [u8], at: usize) -> usize {
        // SAFETY: `room` has room for what is read.
        let read = unsafe { libc::pread(self.0, room.as_mut_ptr().cast(), room.len(), at as libc::off_t) };
        usize::try_from(read).unwrap_or_else(|_| fail("reading a file"))
    }
}

fn fail(doing: &str) -> ! {
    line::give_up(doing, line::errno(), 1)
}
