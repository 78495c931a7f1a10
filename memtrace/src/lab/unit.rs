//! Units of the lab's figures, and how a figure is written for people.

use serde::Serialize;

/// What a figure counts. In JSON the value stands in this unit, unscaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Bytes,
    Nanoseconds,
    Seconds,
    /// A number of things.
    Count,
    /// How many times as much.
    Times,
    Percent,
    /// Operations in a second.
    PerSecond,
}

impl Unit {
    /// A value with its unit, in as few digits as it takes: "132 KiB", "10.4 ns", "254 x".
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Bytes => bytes(value),
            Self::Nanoseconds => scaled(value, 1000.0, &["ns", "us", "ms", "s"]),
            Self::Seconds => format!("{} s", short(value)),
            Self::Count => count(value),
            Self::Times => format!("{} x", short(value)),
            Self::Percent => format!("{} %", short(value)),
            Self::PerSecond => format!("{}/s", scaled(value, 1000.0, &["", "k", "M", "G"]).trim_end()),
        }
    }

    /// The same for an axis, where the sign of a change is not needed and the label names the unit.
    pub fn show_tick(self, value: f64) -> String {
        match self {
            Self::Count if value.abs() >= 1_000_000.0 => {
                scaled(value, 1000.0, &["", "k", "M", "G"]).trim_end().replace(' ', "")
            }
            other => other.show(value),
        }
    }

    /// Steps of an axis are round in this base.
    pub fn is_binary(self) -> bool {
        self == Self::Bytes
    }
}

/// Bytes in binary units; exact where the unit divides them or at four digits.
fn bytes(value: f64) -> String {
    const NAMES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = value;
    let mut index = 0;
    while scaled.abs() >= 1024.0 && index + 1 < NAMES.len() {
        // 1 028 KiB is better known by that name than as "1.004 MiB".
        if scaled.abs() < 5.0 * 1024.0 && index > 0 && scaled.fract() == 0.0 && (scaled / 1024.0).fract() != 0.0 {
            break;
        }
        scaled /= 1024.0;
        index += 1;
    }
    let digits = if scaled.fract() == 0.0 {
        group_digits(scaled)
    } else {
        short(scaled)
    };
    format!("{digits} {}", NAMES[index])
}

fn scaled(value: f64, base: f64, names: &[&str]) -> String {
    let mut scaled = value;
    let mut index = 0;
    while scaled.abs() >= base && index + 1 < names.len() {
        scaled /= base;
        index += 1;
    }
    format!("{} {}", short(scaled), names[index])
}

fn count(value: f64) -> String {
    if value.fract() == 0.0 {
        group_digits(value)
    } else {
        short(value)
    }
}

/// Three significant digits or, above a thousand, the whole number.
fn short(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 100.0 {
        group_digits(value.round())
    } else if magnitude >= 10.0 || value.fract() == 0.0 {
        trim_zeros(format!("{value:.1}"))
    } else {
        trim_zeros(format!("{value:.2}"))
    }
}

fn trim_zeros(text: String) -> String {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    } else {
        text
    }
}

/// A whole number with its thousands apart.
pub fn group_digits(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if value < 0.0 && digits != "0" {
        out.push('-');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_people_say_them() {
        for (unit, value, expected) in [
            (Unit::Bytes, 135_168.0, "132 KiB"),
            (Unit::Bytes, 924.0 * 1024.0, "924 KiB"),
            (Unit::Bytes, 2_101_248.0, "2 052 KiB"),
            (Unit::Bytes, 33_554_432.0, "32 MiB"),
            (Unit::Bytes, 640_000.0, "625 KiB"),
            (Unit::Bytes, -807_000.0, "-788 KiB"),
            (Unit::Bytes, 0.0, "0 B"),
            (Unit::Nanoseconds, 10.42, "10.4 ns"),
            (Unit::Nanoseconds, 1_963.8, "1.96 us"),
            (Unit::Count, 10_000.0, "10 000"),
            (Unit::Times, 254.0, "254 x"),
            (Unit::Percent, 99.0, "99 %"),
            (Unit::PerSecond, 12_500.0, "12.5 k/s"),
        ] {
            assert_eq!(unit.show(value), expected);
        }
    }
}
