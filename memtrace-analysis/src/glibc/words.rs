//! Numbers as people read them, for the sentences of a verdict.

use alloc::format;
use alloc::string::String;

/// "96.1 MiB"; exact below a KiB.
pub fn bytes(amount: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if amount < 1024 {
        return counted(amount, "byte");
    }
    // A unit is left for the next one at a thousand of it; of the last one there may be more.
    let [first, greater @ ..] = UNITS;
    let (mut shift, mut unit) = (10u32, first);
    for next in greater {
        if amount >> shift < 1000 {
            break;
        }
        (shift, unit) = (shift.saturating_add(10), next);
    }
    let half = (1u128 << shift) >> 1;
    let tenths = u128::from(amount).saturating_mul(10).saturating_add(half) >> shift;
    if tenths >= 1000 || tenths.is_multiple_of(10) {
        format!("{} {unit}", count((tenths / 10) as u64))
    } else {
        format!("{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

/// "1 000 000"
pub fn count(number: u64) -> String {
    let digits = format!("{number}");
    let mut text = String::with_capacity(digits.len().saturating_mul(2));
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && digits.len().wrapping_sub(index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// "1 block", "2 000 blocks"
pub fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// "12 %", "<1 %"
pub fn percent(part: u64, whole: u64) -> String {
    match u128::from(part).saturating_mul(100).checked_div(u128::from(whole)) {
        None => String::from("0 %"),
        Some(0) if part > 0 => String::from("<1 %"),
        Some(share) => format!("{share} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(0), "0 bytes");
        assert_eq!(bytes(1023), "1 023 bytes");
        assert_eq!(bytes(1024), "1 KiB");
        assert_eq!(bytes(135_168), "132 KiB");
        assert_eq!(bytes(1_023_000), "999 KiB");
        assert_eq!(bytes(1_040_000), "1 MiB");
        assert_eq!(bytes(100_786_176), "96.1 MiB");
        assert_eq!(bytes(u64::MAX), "16 384 PiB");
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1 234 567");
        assert_eq!(counted(1, "block"), "1 block");
        assert_eq!(counted(2000, "block"), "2 000 blocks");
        assert_eq!(percent(1, 3), "33 %");
        assert_eq!(percent(1, 1000), "<1 %");
        assert_eq!(percent(1, 0), "0 %");
    }
}
