//! Keeps the tracepoints of a trace in use until its standard input ends, and watches nothing.
//!
//! The last user of a tracepoint waits for the kernel to be done with it, some 40 ms for each of sixteen, and all users of
//! the machine wait in one line. With this beside them, the hundreds of traces that the tests make are never the last.

use std::io::Read;

use anyhow::{Context, Result};
use memtrace::session::{self, Options, Session};

fn main() -> Result<()> {
    session::mount_if_missing().context("looking for the kernel's trace events")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the event loop")?;
    let _entered = runtime.enter();
    let session = Session::load(&Options::default())?;
    println!("ready");
    std::io::stdin()
        .read_to_end(&mut Vec::new())
        .context("waiting for the end of the tests")?;
    drop(session);
    Ok(())
}
