//! What can be concluded, in plain words, and how sure it is.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use crate::report::{Confidence, Finding, Report};
use crate::threshold::grouped;

pub fn findings(report: &Report) -> Vec<Finding> {
    [break_steps(report), kept_for_reuse(report)]
        .into_iter()
        .flatten()
        .collect()
}

/// What makes every finding about growths and returns uncertain.
fn lost(report: &Report) -> Option<alloc::string::String> {
    (report.coverage.lost_events > 0).then(|| format!("{} records were lost", grouped(report.coverage.lost_events)))
}

fn finding(report: &Report, kind: &str, text: alloc::string::String) -> Finding {
    let because = lost(report);
    let confidence = if because.is_some() {
        Confidence::Likely
    } else {
        Confidence::Proven
    };
    Finding {
        kind: kind.to_string(),
        text,
        confidence,
        because,
    }
}

fn break_steps(report: &Report) -> Option<Finding> {
    let growth = &report.growth;
    if growth.brk_steps_total == 0 {
        return None;
    }
    let (total, matching) = (growth.brk_steps_total, growth.brk_steps_matching);
    if matching == total {
        let text = format!("all {} steps of the break are as glibc's rule predicts", grouped(total));
        return Some(finding(report, "break_steps_confirmed", text));
    }
    let text = format!(
        "{} of {} steps of the break are as glibc's rule predicts",
        grouped(matching),
        grouped(total)
    );
    Some(finding(report, "break_steps_differ", text))
}

fn kept_for_reuse(report: &Report) -> Option<Finding> {
    let returned = &report.returned;
    if returned.frees_nothing == 0 || returned.frees_munmap > 0 || returned.frees_trim > 0 {
        return None;
    }
    let text = format!(
        "none of the {} frees gave anything back to the system: glibc kept the memory for reuse",
        grouped(returned.frees_nothing)
    );
    Some(finding(report, "kept_for_reuse", text))
}
