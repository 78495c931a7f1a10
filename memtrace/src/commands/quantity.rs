//! Durations and sizes as people type them.

use std::time::Duration;

/// `30s`, `1m30s`, `500ms`, `2h`; a bare number is seconds, as for sleep and timeout.
pub fn duration(text: &str) -> Result<Duration, String> {
    let refuse = |why: &str| format!("{why}; a duration looks like 30s, 500ms, 1m30s or 2h");
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(refuse("no duration given"));
    }
    if let Ok(seconds) = rest.parse::<u64>() {
        return nonzero(Duration::from_secs(seconds)).map_err(refuse);
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (number, after) = number(rest).ok_or_else(|| refuse("a number was expected"))?;
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let seconds = match unit {
            "ms" => number / 1000.0,
            "s" | "sec" => number,
            "m" | "min" => number * 60.0,
            "h" => number * 3600.0,
            "d" => number * 86_400.0,
            "" => return Err(refuse("a unit is missing")),
            _ => return Err(refuse(&format!("'{unit}' is no unit of time"))),
        };
        let part = Duration::try_from_secs_f64(seconds).map_err(|_| refuse("it is too long"))?;
        total = total.checked_add(part).ok_or_else(|| refuse("it is too long"))?;
        rest = after.trim_start();
    }
    nonzero(total).map_err(refuse)
}

/// `256K`, `8M`, `1G`, with or without iB or B behind; powers of 1024. A bare number is bytes.
pub fn size(text: &str) -> Result<u64, String> {
    let refuse = |why: &str| format!("{why}; a size looks like 256K, 8M or 1G");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| refuse("a number was expected"))?;
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" | "kb" => 10,
        "m" | "mib" | "mb" => 20,
        "g" | "gib" | "gb" => 30,
        other => return Err(refuse(&format!("'{other}' is no unit of size"))),
    };
    number.checked_mul(1 << shift).ok_or_else(|| refuse("it is too large"))
}

/// A part of a whole: `5%`, `0.5 %`; above nothing, up to all of it.
pub fn share(text: &str) -> Result<f64, String> {
    let refuse = || "a share looks like 5% or 0.5%, and is above 0 and at most 100%".to_owned();
    let number = text.trim().strip_suffix('%').ok_or_else(refuse)?;
    let percent: f64 = number.trim().parse().map_err(|_| refuse())?;
    if percent > 0.0 && percent <= 100.0 {
        Ok(percent / 100.0)
    } else {
        Err(refuse())
    }
}

/// Sizes the kernel side's ring buffer can have: powers of two, in bytes. Others are rounded up.
pub fn buffer(text: &str) -> Result<u32, String> {
    const LEAST: u64 = 64 << 10;
    const MOST: u64 = 1 << 30;
    let size = size(text)?;
    if !(LEAST..=MOST).contains(&size) {
        return Err("the buffer can have 64K to 1G".to_owned());
    }
    u32::try_from(size.next_power_of_two()).map_err(|_| "the buffer can have 64K to 1G".to_owned())
}

fn nonzero(duration: Duration) -> Result<Duration, &'static str> {
    if duration.is_zero() {
        Err("it is no time at all")
    } else if duration > Duration::from_secs(366 * 86_400) {
        Err("it is longer than a year")
    } else {
        Ok(duration)
    }
}

/// The decimal number that `text` starts with, and what follows it.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    Some((number.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, ms) in [
            ("30s", 30_000),
            ("30", 30_000),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("1m 30s", 90_000),
            ("0.5s", 500),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in [
            "",
            " ",
            "soon",
            "30x",
            "s",
            "-5s",
            "1..2s",
            "0",
            "0s",
            "9999999999999999999h",
            "1e5s",
            "1m30",
            "∞",
        ] {
            let error = duration(text).expect_err(text);
            assert!(error.contains("30s"), "{text}: {error}");
        }
        assert_eq!(
            duration("30x").unwrap_err(),
            "'x' is no unit of time; a duration looks like 30s, 500ms, 1m30s or 2h"
        );
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("256K", 256 << 10),
            ("8M", 8 << 20),
            ("8MiB", 8 << 20),
            ("1G", 1 << 30),
            ("17", 17),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "8X", "-1", "99999999999G", "1.5M"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn buffers_are_powers_of_two() {
        assert_eq!(buffer("3M"), Ok(4 << 20));
        assert_eq!(buffer("64K"), Ok(64 << 10));
        assert!(buffer("1K").is_err());
        assert!(buffer("2G").is_err());
    }
}
