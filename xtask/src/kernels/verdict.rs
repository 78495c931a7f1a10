//! What works in a guest, and whether the report of the lab's brk-steps is right: 10,000 blocks of 64 bytes, all freed, then malloc_trim(0).
//!
//! Values are checked, not only counts: a BPF object that reads another architecture's registers counts every call and
//! takes its arguments from the wrong places.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

const BLOCKS: u64 = 10_000;
const REQUEST: u64 = 64;
/// Of 10,000 chunks of 80 bytes (781 KiB), what malloc_trim(0) must hand back at the least.
const TRIMMED: u64 = 700 * 1024;

/// In a few words, how much the trace knew; an error says what is wrong. `proven`: what made each step has to be, else it can
/// only be likely.
pub fn judge(report: &str, proven: bool) -> Result<String> {
    let report: Value = serde_json::from_str(report).context("it is no JSON")?;
    let number = |path: &str| {
        report
            .pointer(path)
            .and_then(Value::as_u64)
            .with_context(|| format!("it has no {path}"))
    };
    let list = |path: &str| {
        report
            .pointer(path)
            .and_then(Value::as_array)
            .with_context(|| format!("it has no {path}"))
    };

    ensure!(number("/coverage/lost_events")? == 0, "events were lost");
    for entry in ["malloc", "free"] {
        let calls = number(&format!("/calls/{entry}"))?;
        ensure!((BLOCKS..BLOCKS + 100).contains(&calls), "{calls} calls of {entry}");
    }
    let bytes = number("/allocated/by_entry/malloc/bytes")?;
    let least = BLOCKS * REQUEST;
    ensure!(
        (least..least + 100_000).contains(&bytes),
        "{bytes} bytes asked of malloc"
    );
    let freed = number("/freed/chunk_bytes")?;
    let least = BLOCKS * (REQUEST + 16);
    ensure!(
        (least..least + 100_000).contains(&freed),
        "{freed} bytes of chunks freed"
    );

    let (total, matching) = (
        number("/growth/brk_steps_total")?,
        number("/growth/brk_steps_matching")?,
    );
    ensure!(
        (6..=8).contains(&total) && matching == total,
        "{matching} of {total} steps of the break match the rule"
    );
    let mut attributions = BTreeSet::new();
    let mut caused_by_block = 0;
    for step in list("/growth/steps")? {
        let cause = step.get("cause").context("a step has no cause")?;
        let word = |key: &str| {
            cause
                .get(key)
                .and_then(Value::as_str)
                .with_context(|| format!("a cause has no {key}"))
        };
        attributions.insert(word("attribution")?.to_owned());
        caused_by_block +=
            u64::from(word("entry")? == "malloc" && cause.get("request").and_then(Value::as_u64) == Some(REQUEST));
    }
    ensure!(
        caused_by_block + 2 >= total,
        "{caused_by_block} of {total} steps were caused by malloc({REQUEST})"
    );
    let known = if proven { "proven" } else { "likely" };
    ensure!(
        attributions.iter().all(|attribution| attribution == known),
        "steps are {attributions:?}, on a kernel where they are {known}"
    );
    match list("/trims")?.as_slice() {
        [trim] => {
            let returned = trim
                .get("returned_bytes")
                .and_then(Value::as_u64)
                .context("the trim returned no figure")?;
            ensure!(returned >= TRIMMED, "malloc_trim gave back {returned} bytes");
        }
        trims => bail!("{} calls of malloc_trim", trims.len()),
    }
    Ok(format!(
        "{matching}/{total} steps, {}",
        attributions.into_iter().collect::<Vec<_>>().join("+")
    ))
}

/// The depths that work, of a document of memtrace's doctor.
pub fn depths(doctor: &str) -> Result<String> {
    let doctor: Value = serde_json::from_str(doctor).context("reading its document")?;
    let depths = doctor
        .get("depths")
        .and_then(Value::as_array)
        .context("it names no depths")?;
    let works = depths
        .iter()
        .filter(|depth| depth.get("works").and_then(Value::as_bool) == Some(true));
    let names: Vec<&str> = works.filter_map(|depth| depth.get("depth")?.as_str()).collect();
    ensure!(
        names.contains(&"calls") && names.contains(&"syscalls"),
        "only {names:?} work"
    );
    Ok(names.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn right() -> Value {
        let step = json!({"cause": {"entry": "malloc", "request": 64, "attribution": "proven"}});
        json!({
            "coverage": {"lost_events": 0},
            "calls": {"malloc": 10_002, "free": 10_000},
            "allocated": {"by_entry": {"malloc": {"bytes": 641_024}}},
            "freed": {"chunk_bytes": 800_000},
            "growth": {"brk_steps_total": 6, "brk_steps_matching": 6, "steps": [step, step, step, step, step, step]},
            "trims": [{"returned_bytes": 806_912}],
        })
    }

    #[test]
    fn a_right_report_passes() {
        assert_eq!(
            judge(&right().to_string(), true).expect("it is right"),
            "6/6 steps, proven"
        );
    }

    #[test]
    fn depths_that_work_are_named() {
        let document = |slow: bool, calls: bool| {
            json!({"depths": [
                {"depth": "calls", "works": calls},
                {"depth": "slow-path", "works": slow},
                {"depth": "syscalls", "works": true},
            ]})
            .to_string()
        };
        assert_eq!(depths(&document(false, true)).ok().as_deref(), Some("calls, syscalls"));
        assert_eq!(
            depths(&document(true, true)).ok().as_deref(),
            Some("calls, slow-path, syscalls")
        );
        assert!(depths(&document(true, false)).is_err() && depths("").is_err() && depths("{}").is_err());
    }

    #[test]
    fn each_wrong_value_is_seen() {
        let wrong = [
            ("/coverage/lost_events", json!(1)),
            ("/calls/malloc", json!(9_999)),
            ("/calls/free", json!(0)),
            ("/allocated/by_entry/malloc/bytes", json!(1_u64 << 47)),
            ("/freed/chunk_bytes", json!(0)),
            ("/growth/brk_steps_matching", json!(5)),
            ("/growth/steps/0/cause", json!({"entry": "malloc"})),
            ("/growth/steps", json!([])),
            ("/trims", json!([])),
            ("/trims/0/returned_bytes", json!(4096)),
        ];
        for (path, value) in wrong {
            let mut report = right();
            *report.pointer_mut(path).expect("the path is there") = value;
            assert!(judge(&report.to_string(), true).is_err(), "{path}");
        }
        assert!(judge("", true).is_err() && judge(&right().to_string(), false).is_err());
    }
}
