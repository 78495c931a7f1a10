//! Reading a trace back, whatever state the file is in.
//!
//! A reader yields payloads until the end frame. A file that stops before it, or holds what no writer writes, gives
//! what came before and then says where and how it went wrong.

use std::fmt;
use std::io::{self, Read};

use bytes::Buf;

use super::format::{FORMAT_VERSION, FRAME_HEAD, Header, MAGIC, MAX_HEADER, MAX_PAYLOAD, checksum, kind};

/// Why a trace cannot be read (further).
#[derive(Debug)]
pub enum ReadError {
    /// The file is something else.
    NotATrace,
    /// Written by a later memtrace; its header where that can still be read.
    Newer {
        version: u32,
        header: Option<Header>,
    },
    /// The header is damaged.
    BadHeader,
    /// The file ends before its end frame: the writer was killed, or the disk was full.
    Truncated {
        events: u64,
        offset: u64,
    },
    /// A frame is damaged.
    Corrupt {
        events: u64,
        offset: u64,
    },
    /// Complete, but fewer or more events than were written: pieces are missing.
    Count {
        events: u64,
        written: u64,
    },
    /// Complete, but more follows: another file was appended.
    Trailing {
        events: u64,
    },
    Io(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotATrace => f.write_str("this is no trace recorded by memtrace"),
            Self::Newer { version, header } => {
                write!(
                    f,
                    "the trace has format {version}; this memtrace reads formats up to {FORMAT_VERSION}"
                )?;
                if let Some(header) = header {
                    write!(f, " (it was written by memtrace {})", header.memtrace)?;
                }
                Ok(())
            }
            Self::BadHeader => f.write_str("the header of the trace is damaged"),
            Self::Truncated { events, offset } => {
                write!(f, "the trace is cut short at byte {offset}, after {events} events")
            }
            Self::Corrupt { events, offset } => {
                write!(f, "the trace is damaged at byte {offset}, after {events} events")
            }
            Self::Count { events, written } => {
                write!(f, "the trace holds {events} events where {written} were written")
            }
            Self::Trailing { events } => {
                write!(
                    f,
                    "the trace ends after {events} events, but the file goes on: what follows is not read"
                )
            }
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => error.source(),
            _ => None,
        }
    }
}

/// A trace being read.
pub struct Reader<R: Read> {
    input: R,
    header: Header,
    offset: u64,
    events: u64,
    unknown: u64,
    payload: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    Over,
}

impl<R: Read> Reader<R> {
    /// Reads magic, version and header.
    pub fn new(mut input: R) -> Result<Self, ReadError> {
        let mut head = Vec::new();
        take(&mut input, 20, &mut head)?;
        let Some((magic, rest)) = head.split_at_checked(MAGIC.len()) else {
            return Err(if MAGIC.starts_with(&head) && !head.is_empty() {
                ReadError::Truncated {
                    events: 0,
                    offset: head.len() as u64,
                }
            } else {
                ReadError::NotATrace
            });
        };
        if magic != MAGIC {
            return Err(ReadError::NotATrace);
        }
        let truncated = |length: usize| ReadError::Truncated {
            events: 0,
            offset: length as u64,
        };
        let [version, length, crc] = words(rest).ok_or_else(|| truncated(head.len()))?;
        if version == 0 {
            // The first format is 1.
            return Err(ReadError::BadHeader);
        }
        if length > MAX_HEADER {
            return Err(if version > FORMAT_VERSION {
                ReadError::Newer { version, header: None }
            } else {
                ReadError::BadHeader
            });
        }
        let mut bytes = Vec::new();
        take(&mut input, length, &mut bytes)?;
        let intact = bytes.len() == length as usize && crc32fast::hash(&bytes) == crc;
        let header = intact.then(|| serde_json::from_slice::<Header>(&bytes).ok()).flatten();
        if version > FORMAT_VERSION {
            return Err(ReadError::Newer { version, header });
        }
        if bytes.len() < length as usize {
            return Err(truncated(head.len() + bytes.len()));
        }
        Ok(Self {
            input,
            header: header.ok_or(ReadError::BadHeader)?,
            offset: (head.len() + bytes.len()) as u64,
            events: 0,
            unknown: 0,
            payload: Vec::new(),
            state: State::Reading,
        })
    }

    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Events read so far.
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Frames of kinds this version does not know, passed over.
    pub const fn unknown(&self) -> u64 {
        self.unknown
    }

    /// The next event's payload; None after the end frame, and after an error.
    pub fn next_event(&mut self) -> Result<Option<&[u8]>, ReadError> {
        while self.state == State::Reading {
            match self.frame() {
                Ok(kind::EVENT) => {
                    self.events += 1;
                    return Ok(Some(&self.payload));
                }
                Ok(kind::END) => {
                    self.state = State::Over;
                    self.check_count()?;
                    let mut more = Vec::new();
                    take(&mut self.input, 1, &mut more)?;
                    if !more.is_empty() {
                        return Err(ReadError::Trailing { events: self.events });
                    }
                }
                Ok(_) => self.unknown += 1,
                Err(error) => {
                    self.state = State::Over;
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// Reads one whole frame into `payload`; gives its kind.
    fn frame(&mut self) -> Result<u8, ReadError> {
        let (events, offset) = (self.events, self.offset);
        let mut head = Vec::new();
        take(&mut self.input, FRAME_HEAD as u32, &mut head)?;
        let Some((kind, [length, crc])) = head.split_first().and_then(|(kind, rest)| Some((*kind, words(rest)?)))
        else {
            return Err(ReadError::Truncated { events, offset });
        };
        if length > MAX_PAYLOAD {
            return Err(ReadError::Corrupt { events, offset });
        }
        self.payload.clear();
        take(&mut self.input, length, &mut self.payload)?;
        if self.payload.len() < length as usize {
            return Err(ReadError::Truncated { events, offset });
        }
        if checksum(kind, &self.payload) != crc {
            return Err(ReadError::Corrupt { events, offset });
        }
        self.offset += (head.len() + self.payload.len()) as u64;
        Ok(kind)
    }

    fn check_count(&self) -> Result<(), ReadError> {
        let written = <[u8; 8]>::try_from(self.payload.as_slice()).map(u64::from_le_bytes);
        match written {
            Ok(written) if written == self.events => Ok(()),
            Ok(written) => Err(ReadError::Count {
                events: self.events,
                written,
            }),
            Err(_) => Err(ReadError::Corrupt {
                events: self.events,
                offset: self.offset,
            }),
        }
    }
}

/// Reads up to `length` bytes; memory grows with what is really there, not with what a length field promises.
fn take(input: &mut impl Read, length: u32, into: &mut Vec<u8>) -> Result<(), ReadError> {
    input.take(length.into()).read_to_end(into).map_err(ReadError::Io)?;
    Ok(())
}

/// `N` little-endian words, if `bytes` holds exactly those.
fn words<const N: usize>(mut bytes: &[u8]) -> Option<[u32; N]> {
    (bytes.len() == 4 * N).then(|| std::array::from_fn(|_| bytes.get_u32_le()))
}
