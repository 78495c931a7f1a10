//! `--record`: every event kept, in the order in which the analysis gets it.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use memtrace_analysis::codec;
use memtrace_analysis::event::Event;

use super::exit::{complain, say};
use crate::trace_file::{Header, Writer};

/// A trace file in the making.
pub struct Recorder {
    path: PathBuf,
    /// None once writing has failed: what follows a gap would be worthless.
    writer: Option<Writer<BufWriter<File>>>,
    failure: Option<anyhow::Error>,
}

impl Recorder {
    /// Makes the file (or empties it) and writes its header.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let context = || format!("recording to {}", path.display());
        let file = File::create(path).with_context(context)?;
        let mut writer = Writer::new(BufWriter::new(file), &header()).with_context(context)?;
        // A disk that is full says so now, not after an hour of tracing.
        writer.flush().with_context(context)?;
        Ok(Self {
            path: path.to_owned(),
            writer: Some(writer),
            failure: None,
        })
    }

    /// Keeps an event. When that fails, the record ends here, which is said at once.
    pub fn add(&mut self, event: &Event) {
        let Some(writer) = &mut self.writer else { return };
        let written = codec::encode(event)
            .map_err(anyhow::Error::new)
            .and_then(|payload| Ok(writer.event(&payload)?));
        self.check(written);
    }

    /// Hands what is buffered to the system.
    pub fn flush(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        let flushed = writer.flush().map_err(anyhow::Error::from);
        self.check(flushed);
    }

    /// Writes the end; an error if anything is missing.
    pub fn finish(mut self) -> anyhow::Result<()> {
        let path = self.path.display();
        if let Some(failure) = self.failure {
            return Err(failure.context(format!("the record {path} is not complete")));
        }
        if let Some(writer) = self.writer.take() {
            writer.finish().with_context(|| format!("ending the record {path}"))?;
        }
        Ok(())
    }

    fn check(&mut self, result: anyhow::Result<()>) {
        let Err(error) = result else { return };
        self.writer = None;
        complain(&error.context(format!("recording to {}", self.path.display())));
        say("the record ends here, the trace goes on");
        self.failure = Some(anyhow!("writing to it failed"));
    }
}

fn header() -> Header {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".to_owned());
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    Header {
        memtrace: env!("CARGO_PKG_VERSION").to_owned(),
        architecture: std::env::consts::ARCH.to_owned(),
        kernel: kernel.trim().to_owned(),
        recorded_unix_s: since_1970.map_or(0, |duration| duration.as_secs()),
        encoding: codec::ENCODING_VERSION,
    }
}
