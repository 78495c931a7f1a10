//! Ctrl-C, a hang-up or a termination signal end the run between two steps, with what is done kept; a second one ends
//! at once.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

/// The user has asked for the end.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

extern "C" fn remember(_signal: libc::c_int) {
    ASKED.store(true, Ordering::Relaxed);
}

/// From now on these signals are remembered instead of ending the process; SA_RESETHAND makes the second one final.
/// Nothing lies on the disk that a sudden end could leave: the lab's files have no names.
pub fn watch() -> std::io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: zeros are a valid sigaction; the handler only stores to an atomic.
        let done = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = remember as *const () as usize;
            action.sa_flags = libc::SA_RESETHAND;
            libc::sigaction(signal, &action, std::ptr::null_mut())
        };
        if done != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// An error once the user has asked for the end, so that `?` leaves every loop.
pub fn check() -> Result<(), Interrupted> {
    if asked() { Err(Interrupted) } else { Ok(()) }
}

pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
