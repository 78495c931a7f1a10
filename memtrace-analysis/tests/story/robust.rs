//! No input makes the analysis fail, and equal input makes equal reports.

use crate::arbitrary::event;
use memtrace_analysis::Analyzer;
use memtrace_analysis::codec::{self, DecodeError};
use memtrace_analysis::event::Event;
use proptest::collection::vec;
use proptest::prelude::*;

fn analyse(events: &[Event]) -> Analyzer {
    let mut analyzer = Analyzer::new();
    events.iter().cloned().for_each(|event| analyzer.push(event));
    analyzer
}

proptest! {
    #![proptest_config(crate::cases(64))]

    #[test]
    fn any_events_in_any_order_make_a_report(events in vec(event(), 0..60)) {
        let report = analyse(&events).report();
        let growth = &report.growth;
        prop_assert!(growth.brk_steps_matching <= growth.brk_steps_total);
        prop_assert!(growth.arena_steps_matching <= growth.arena_steps_total);
        for count in report.syscalls.values() {
            prop_assert_eq!(count.count, count.attributed.saturating_add(count.direct).saturating_add(count.unknown));
        }
        serde_json::to_string(&report).expect("every report is a JSON document");
    }

    #[test]
    fn equal_input_makes_equal_reports(events in vec(event(), 0..40)) {
        let (one, other) = (analyse(&events), analyse(&events));
        prop_assert_eq!(one.report(), other.report());
        // Asking changes nothing.
        prop_assert_eq!(one.report(), one.report());
    }

    #[test]
    fn telling_what_is_new_changes_no_report(events in vec(event(), 0..40)) {
        let mut telling = Analyzer::new();
        for event in events.iter().cloned() {
            for news in telling.push_and_tell(event) {
                serde_json::to_string(&news).expect("every piece of news is a JSON object");
            }
            let _ = telling.live();
        }
        prop_assert_eq!(telling.report(), analyse(&events).report());
    }

    #[test]
    fn events_survive_the_codec(event in event()) {
        let bytes = codec::encode(&event).expect("every event can be encoded");
        prop_assert_eq!(codec::decode(&bytes), Ok(event));
    }

    #[test]
    fn damaged_bytes_are_refused_or_are_another_event(
        event in event(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = codec::encode(&event).expect("every event can be encoded");
        let cut = cut.index(bytes.len());
        prop_assert!(codec::decode(&bytes[..cut]).is_err(), "a part of an event is none");
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = codec::decode(&bytes);
        bytes = codec::encode(&event).expect("every event can be encoded");
        bytes.push(byte);
        prop_assert_eq!(codec::decode(&bytes), Err(DecodeError::Trailing(1)));
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        let _ = codec::decode(&bytes);
    }
}
