//! An error as one sentence for people: what was being done to which object, and why that failed.

use std::error::Error;

use crate::report::plain::clean;

/// `attaching to process 7: reading its maps: permission denied`
pub fn of(error: &anyhow::Error) -> String {
    join(error.chain())
}

/// The same of an error that is no chain of ours.
pub fn of_error(error: &(dyn Error + 'static)) -> String {
    join(std::iter::successors(Some(error), |&error| error.source()))
}

fn join<'a>(causes: impl Iterator<Item = &'a (dyn Error + 'static)>) -> String {
    let mut chain: Vec<String> = Vec::new();
    for cause in causes {
        let text = without_number(clean(&cause.to_string()).into_owned());
        // Some errors print their source themselves; each thing is said once.
        if !chain.last().is_some_and(|last| last.contains(&text)) {
            chain.push(text);
        }
    }
    chain.join(": ")
}

/// std ends the text of a system's error with `(os error 28)`, which says nothing to people. It may stand inside of a
/// text that quotes it.
fn without_number(text: String) -> String {
    const BEGIN: &str = " (os error ";
    let mut rest = text.as_str();
    let mut out = String::with_capacity(text.len());
    while let Some((before, behind)) = rest.split_once(BEGIN) {
        out += before;
        match behind.split_once(')') {
            Some((number, after)) if number.parse::<i32>().is_ok() => rest = after,
            _ => {
                out += BEGIN;
                rest = behind;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_already_told_is_not_told_again() {
        let error = anyhow::anyhow!("no such file").context("opening x: no such file");
        assert_eq!(of(&error), "opening x: no such file");
    }

    #[test]
    fn the_numbers_of_errors_are_for_programs() {
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(of_error(&full), "No space left on device");
        let quoted = format!("recording to t.mtr failed: {full}; going on");
        assert_eq!(
            without_number(quoted),
            "recording to t.mtr failed: No space left on device; going on"
        );
        let error = Err::<(), _>(full).context("recording to t.mtr").unwrap_err();
        assert_eq!(of(&error), "recording to t.mtr: No space left on device");
        for other in ["a (os error", "b (os error x)", "c"] {
            assert_eq!(without_number(other.to_owned()), other);
        }
    }
}
