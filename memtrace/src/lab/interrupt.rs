//! Ctrl-C, a hang-up or a termination signal end the run between two steps, with what is done kept; a second one ends
//! at once, unless files have to be removed first.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);
static NAMED: AtomicBool = AtomicBool::new(false);

/// The user has asked for the end.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

extern "C" fn remember(signal: libc::c_int) {
    let again = ASKED.swap(true, Ordering::Relaxed);
    if again && !NAMED.load(Ordering::Relaxed) {
        // SAFETY: both calls may be made in a handler; the default action of these signals ends the process.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// From now on the first of these signals is remembered instead of ending the process.
pub fn watch() -> std::io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: zeros are a valid sigaction; the handler does only what a handler may.
        let done = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = remember as *const () as usize;
            libc::sigaction(signal, &action, std::ptr::null_mut())
        };
        if done != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Files with a name lie on the disk, and go with this value: meanwhile no second signal ends the process, which is
/// about to end anyhow. Most of the lab's files have no name, so that a sudden end leaves none.
pub struct Named(());

impl Named {
    pub fn begin() -> Self {
        NAMED.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        NAMED.store(false, Ordering::Relaxed);
    }
}

/// An error once the user has asked for the end, so that `?` leaves every loop.
pub fn check() -> Result<(), Interrupted> {
    if asked() { Err(Interrupted) } else { Ok(()) }
}

pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
