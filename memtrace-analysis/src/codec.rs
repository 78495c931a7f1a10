//! Events as bytes and back: compact, without a framing of its own.
//!
//! The encoding is postcard's (variable-length integers, no names), so a file that holds it must carry a version and
//! refuse others. Decoding bytes of any origin ends in an event or an error, and takes memory in proportion to the
//! bytes given.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::event::Event;

/// Version of the encoding: changed whenever [`Event`] changes in a way that old bytes do not fit.
pub const ENCODING_VERSION: u16 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes are no event of this version.
    Malformed(String),
    /// An event, and so many bytes that belong to none.
    Trailing(usize),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(reason) => write!(f, "decoding an event: {reason}"),
            Self::Trailing(bytes) => write!(f, "decoding an event: {bytes} bytes follow it"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// The event's bytes. An error is one of the serialiser's and does not occur with the types of this version.
pub fn encode(event: &Event) -> Result<Vec<u8>, DecodeError> {
    postcard::to_allocvec(event).map_err(|error| DecodeError::Malformed(error.to_string()))
}

/// The event that all of `bytes` encode.
pub fn decode(bytes: &[u8]) -> Result<Event, DecodeError> {
    let (event, rest) = postcard::take_from_bytes(bytes).map_err(|error| DecodeError::Malformed(error.to_string()))?;
    if rest.is_empty() {
        Ok(event)
    } else {
        Err(DecodeError::Trailing(rest.len()))
    }
}
