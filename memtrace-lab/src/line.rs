//! Lines of text, formatted on the stack and written with one write(2).

use core::ffi::CStr;
use core::fmt::{Arguments, Write};

/// Room for the longest line; what is longer is cut.
const ROOM: usize = 1024;

pub struct Line {
    text: [u8; ROOM],
    length: usize,
}

impl Line {
    pub fn new() -> Self {
        Self {
            text: [0; ROOM],
            length: 0,
        }
    }

    pub fn add(&mut self, text: Arguments) {
        // Never an error: `write_str` cuts.
        let _ = self.write_fmt(text);
    }

    /// The text up to its NUL, which the caller has added, as C wants it; an empty one without.
    pub fn with_c_str<T>(&self, with: impl FnOnce(&CStr) -> T) -> T {
        with(CStr::from_bytes_until_nul(&self.text).unwrap_or(c""))
    }

    fn end(mut self, fd: libc::c_int) {
        let end = self.length.min(ROOM - 1);
        self.text[end] = b'\n';
        let mut rest = &self.text[..=end];
        while !rest.is_empty() {
            // SAFETY: `rest` is initialised memory of that length.
            let written = unsafe { libc::write(fd, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(written) {
                Ok(written) => rest = &rest[written..],
                Err(_) if errno() == libc::EINTR => {}
                // The reader is gone (or the disk full): without it there is nothing to run for.
                // SAFETY: ends the process without running anything of ours.
                Err(_) => unsafe { libc::_exit(crate::stage::EXIT_NO_PARTNER) },
            }
        }
    }

    /// Ends the line and writes it to standard output.
    pub fn print(self) {
        self.end(libc::STDOUT_FILENO);
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = &mut self.text[self.length..];
        let fits = text.len().min(room.len());
        room[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.length += fits;
        Ok(())
    }
}

pub fn print(text: Arguments) {
    let mut line = Line::new();
    line.add(text);
    line.print();
}

pub fn error(text: Arguments) {
    let mut line = Line::new();
    line.add(text);
    line.end(libc::STDERR_FILENO);
}

/// Ends the program, with what it could not do and the system's words for the error's number.
pub fn give_up(doing: &str, number: i32, status: libc::c_int) -> ! {
    let mut words = [0u8; 256];
    // SAFETY: writes at most that many bytes into it, a NUL behind them.
    let said = unsafe { libc::strerror_r(number, words.as_mut_ptr().cast(), words.len()) } == 0;
    let words = CStr::from_bytes_until_nul(&words)
        .ok()
        .and_then(|words| words.to_str().ok());
    match words {
        Some(words) if said => error(format_args!("memtrace-lab: {doing}: {words}")),
        _ => error(format_args!("memtrace-lab: {doing}: error {number}")),
    }
    // SAFETY: ends the process without running anything of ours.
    unsafe { libc::_exit(status) }
}

pub fn errno() -> i32 {
    // SAFETY: points to this thread's errno.
    unsafe { *libc::__errno_location() }
}
