//! The kernel side's own words, on standard error; off unless asked for, and then no program holds a trace of them.

use std::io::{self, Write};

use anyhow::{Context, Result};
use aya::{Ebpf, EbpfLoader};
use aya_log::{EbpfLogger, Level};
use log::{Log, Metadata, Record};

/// The level at which nothing is logged: the verifier sees a constant and removes the calls.
static OFF: u8 = 0;
static DEBUG: u8 = Level::Debug as u8;

/// To be called before the kernel side is loaded.
pub fn set_level(loader: &mut EbpfLoader<'_>, debug: bool) {
    // An object without any log call has no level either.
    loader.override_global(aya_log::LEVEL, if debug { &DEBUG } else { &OFF }, false);
}

/// Takes the kernel side's log, where it is wanted.
pub fn listen(ebpf: &mut Ebpf, debug: bool) -> Result<Option<EbpfLogger<StandardError>>> {
    if !debug {
        return Ok(None);
    }
    let logger = EbpfLogger::init_with_logger(ebpf, StandardError).context("opening the kernel side's log")?;
    Ok(Some(logger))
}

/// One line for each message.
pub struct StandardError;

impl Log for StandardError {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = format!("memtrace: kernel side: {}\n", record.args());
        // That nobody is there to read it must not end anything.
        let _nobody = io::stderr().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}
