//! Writing a trace: the header at once, a frame for each event, the end frame last.

use std::io::{self, Write};

use bytes::{BufMut, BytesMut};

use super::format::{FORMAT_VERSION, Header, MAGIC, MAX_HEADER, MAX_PAYLOAD, checksum, kind};

/// A trace being written. Without [`Writer::finish`] the file reads as cut short, which it then is.
pub struct Writer<W: Write> {
    out: W,
    events: u64,
    /// The frame being put together: it is written in one piece, so that a full disk cuts between frames if it can.
    frame: BytesMut,
}

impl<W: Write> Writer<W> {
    /// Writes magic, version and header.
    pub fn new(mut out: W, header: &Header) -> io::Result<Self> {
        let header = serde_json::to_vec(header).map_err(io::Error::other)?;
        let length = within(header.len(), MAX_HEADER, "the header")?;
        let mut frame = BytesMut::with_capacity(header.len() + 20);
        frame.put_slice(&MAGIC);
        frame.put_u32_le(FORMAT_VERSION);
        frame.put_u32_le(length);
        frame.put_u32_le(crc32fast::hash(&header));
        frame.put_slice(&header);
        out.write_all(&frame)?;
        Ok(Self { out, events: 0, frame })
    }

    /// Adds one encoded event.
    pub fn event(&mut self, payload: &[u8]) -> io::Result<()> {
        self.frame(kind::EVENT, payload)?;
        self.events += 1;
        Ok(())
    }

    /// Hands what is buffered to the system, so that a trace that is killed keeps what it has seen.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Writes the end frame; gives the writer back, flushed.
    pub fn finish(mut self) -> io::Result<W> {
        let events = self.events.to_le_bytes();
        self.frame(kind::END, &events)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn frame(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        let length = within(payload.len(), MAX_PAYLOAD, "an event")?;
        self.frame.clear();
        self.frame.put_u8(kind);
        self.frame.put_u32_le(length);
        self.frame.put_u32_le(checksum(kind, payload));
        self.frame.put_slice(payload);
        self.out.write_all(&self.frame)
    }
}

/// The length as written, unless a reader would refuse it.
fn within(length: usize, most: u32, what: &str) -> io::Result<u32> {
    u32::try_from(length)
        .ok()
        .filter(|length| *length <= most)
        .ok_or_else(|| {
            io::Error::other(format!(
                "{what} has {length} bytes, more than the {most} a trace can hold"
            ))
        })
}
