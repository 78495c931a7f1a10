//! The container against every way a file can be wrong.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn header() -> Header {
    Header {
        memtrace: "0.1.0".into(),
        architecture: "x86_64".into(),
        kernel: "6.18.0".into(),
        recorded_unix_s: 1_700_000_000,
        encoding: 1,
    }
}

fn written(events: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &header()).unwrap();
    for event in events {
        writer.event(event).unwrap();
    }
    writer.finish().unwrap()
}

/// All events until the end or the error.
fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, Option<ReadError>) {
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut events = Vec::new();
    loop {
        match reader.next_event() {
            Ok(Some(event)) => events.push(event.to_vec()),
            Ok(None) => return (events, None),
            Err(error) => {
                assert!(matches!(reader.next_event(), Ok(None)), "an error is told once");
                return (events, Some(error));
            }
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(events in vec(vec(any::<u8>(), 0..40), 0..20)) {
        let (back, error) = read(&written(&events));
        prop_assert!(error.is_none());
        prop_assert_eq!(back, events);
    }

    /// Cut anywhere, the events before the cut come out and the cut is noticed.
    #[test]
    fn a_cut_is_noticed(events in vec(vec(any::<u8>(), 0..40), 0..8), at in any::<prop::sample::Index>()) {
        let bytes = written(&events);
        let cut = &bytes[..at.index(bytes.len())];
        let (back, error) = read(cut);
        prop_assert!(error.is_some());
        prop_assert!(events.starts_with(&back));
    }

    /// One changed byte anywhere never passes unnoticed, and what was read before it is right.
    #[test]
    fn a_changed_byte_is_noticed(
        events in vec(vec(any::<u8>(), 0..40), 0..8),
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
    ) {
        let mut bytes = written(&events);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let (back, error) = read(&bytes);
        prop_assert!(error.is_some());
        prop_assert!(events.starts_with(&back));
    }

    #[test]
    fn noise_is_no_trace(bytes in vec(any::<u8>(), 0..200)) {
        let refused = matches!(read(&bytes).1, Some(ReadError::NotATrace | ReadError::Truncated { .. }));
        prop_assert!(refused);
    }
}

#[test]
fn a_newer_file_names_its_writer() {
    let mut bytes = written(&[]);
    bytes[8] = 9;
    let Some(ReadError::Newer {
        version: 9,
        header: Some(found),
    }) = read(&bytes).1
    else {
        panic!("the version is looked at first");
    };
    assert_eq!(found, header());
}

#[test]
fn there_is_no_format_0() {
    let mut bytes = written(&[]);
    bytes[8] = 0;
    assert!(matches!(read(&bytes).1, Some(ReadError::BadHeader)));
}

#[test]
fn what_follows_the_end_is_not_passed_over_in_silence() {
    let mut bytes = written(&[b"one".to_vec()]);
    bytes.extend(written(&[]));
    assert!(matches!(read(&bytes).1, Some(ReadError::Trailing { events: 1 })));
}

#[test]
fn an_endless_length_costs_no_memory() {
    let mut bytes = written(&[]);
    let end = bytes.len() - 17;
    bytes[end + 1..end + 5].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(read(&bytes).1, Some(ReadError::Corrupt { .. })));
    // The longest length that is accepted, with nothing behind it.
    bytes[end + 1..end + 5].copy_from_slice(&(1u32 << 24).to_le_bytes());
    assert!(matches!(read(&bytes).1, Some(ReadError::Truncated { .. })));
}

#[test]
fn an_unknown_kind_of_frame_is_passed_over() {
    let mut bytes = written(&[]);
    let end = bytes.split_off(bytes.len() - 17);
    bytes.push(77);
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(format::checksum(77, b"new").to_le_bytes());
    bytes.extend(b"new");
    bytes.extend(end);
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    assert!(matches!(reader.next_event(), Ok(None)));
    assert_eq!(reader.unknown(), 1);
}

#[test]
fn missing_pieces_are_noticed() {
    let whole = written(&[b"one".to_vec(), b"two".to_vec()]);
    let frame = 9 + 3;
    let end = 17;
    let first = whole.len() - end - 2 * frame;
    let mut bytes = whole.clone();
    bytes.drain(first..first + frame);
    assert!(matches!(
        read(&bytes).1,
        Some(ReadError::Count { events: 1, written: 2 })
    ));
}

#[test]
fn what_a_reader_would_refuse_is_not_written() {
    let mut writer = Writer::new(Vec::new(), &header()).unwrap();
    assert!(writer.event(&vec![0; (1 << 24) + 1]).is_err());
}
