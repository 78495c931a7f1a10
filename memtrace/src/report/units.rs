//! Numbers as people read them: grouped by blanks, with a unit that says what kind of size it is.
//!
//! Two kinds of size occur and are told apart by their unit. What the kernel hands out comes in pages: KiB and MiB,
//! exact where it is a round number. What a program asks for is any number of bytes: KB and MB, of 1000 and 1000000.

/// `10 002`
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// `1 block`, `10 002 blocks`; the plural by an s, which all nouns used here form so.
pub fn plural(n: u64, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{} {noun}s", count(n))
    }
}

/// Bytes a program asked for: `640.3 KB`.
pub fn asked(bytes: u64) -> String {
    if bytes < 1000 {
        return plural(bytes, "byte");
    }
    let mut size = 1000;
    for unit in ["KB", "MB", "GB"] {
        let tenths = tenths_of(bytes, size);
        // What would round up to a thousand of a unit is shown in the next one: 999 960 is 1.0 MB.
        if tenths < 10_000 {
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
        size *= 1000;
    }
    let tenths = tenths_of(bytes, size);
    format!("{}.{} TB", count(tenths / 10), tenths % 10)
}

/// Tenths of `size` in `bytes`, rounded.
fn tenths_of(bytes: u64, size: u64) -> u64 {
    let tenths = (u128::from(bytes) * 10 + u128::from(size) / 2) / u128::from(size);
    u64::try_from(tenths).unwrap_or(u64::MAX)
}

/// Memory in pages: `132 KiB`, `2 052 KiB`, `64 MiB`; KiB stay exact up to 10 MiB.
pub fn pages(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    match bytes {
        0 => "0 KiB".to_owned(),
        _ if bytes < KIB => plural(bytes, "byte"),
        _ if (4 * MIB..GIB).contains(&bytes) && bytes.is_multiple_of(MIB) => {
            format!("{} MiB", bytes / MIB)
        }
        _ if bytes < 10 * MIB => tenths(bytes, KIB, "KiB"),
        _ if bytes < 10 * GIB => tenths(bytes, MIB, "MiB"),
        _ => tenths(bytes, GIB, "GiB"),
    }
}

/// Resident memory: `2.1 MB`.
pub fn resident(bytes: u64) -> String {
    let tenths = tenths_of(bytes, 1_000_000);
    format!("{}.{} MB", count(tenths / 10), tenths % 10)
}

/// A difference with its sign, by one of the functions above: `-788 KiB`, `+0.7 MB`; no sign for none.
pub fn change(from: u64, to: u64, unit: fn(u64) -> String) -> String {
    let sign = match to.cmp(&from) {
        std::cmp::Ordering::Less => "-",
        std::cmp::Ordering::Equal => "",
        std::cmp::Ordering::Greater => "+",
    };
    format!("{sign}{}", unit(to.abs_diff(from)))
}

/// A point in time: `12.345 s`.
pub fn at(ns: u64) -> String {
    let ms = ns / 1_000_000;
    format!("{}.{:03} s", count(ms / 1000), ms % 1000)
}

/// How long something took: `2.1 s`, `3 min 20 s`, `2 h 5 min`.
/// A length of time that may be very short: nanoseconds, microseconds, milliseconds, else as [`lasting`].
pub fn short(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..100_000 => format!("{}.{} us", ns / 1_000, ns % 1_000 / 100),
        100_000..1_000_000_000 => format!("{}.{} ms", ns / 1_000_000, ns % 1_000_000 / 100_000),
        _ => lasting(ns),
    }
}

/// A part of a whole, 0 to 1, in per cent: two digits that count.
pub fn percent(part: f64) -> String {
    let percent = part * 100.0;
    if percent >= 10.0 || percent <= 0.0 {
        format!("{percent:.0} %")
    } else if percent >= 0.1 {
        format!("{percent:.1} %")
    } else {
        "below 0.1 %".to_owned()
    }
}

pub fn lasting(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..60 => {
            let hundredths = ns / 10_000_000;
            if hundredths < 100 {
                format!("{}.{:02} s", hundredths / 100, hundredths % 100)
            } else {
                format!("{}.{} s", hundredths / 100, hundredths % 100 / 10)
            }
        }
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", count(seconds / 3600), seconds % 3600 / 60),
    }
}

fn tenths(bytes: u64, size: u64, unit: &str) -> String {
    if bytes.is_multiple_of(size) {
        return format!("{} {unit}", count(bytes / size));
    }
    let tenths = tenths_of(bytes, size);
    // So near a round number the tenth says nothing.
    if tenths.is_multiple_of(10) {
        return format!("{} {unit}", count(tenths / 10));
    }
    format!("{}.{} {unit}", count(tenths / 10), tenths % 10)
}

/// Numbers in a sentence of the analysis, which groups them by commas, in the way of the rest of the page.
pub fn regrouped(sentence: &str) -> String {
    let bytes = sentence.as_bytes();
    let digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let between_groups = |at: usize| {
        let three = (1..=3).all(|more| digit(Some(at + more)));
        digit(at.checked_sub(1)) && three && !digit(Some(at + 4))
    };
    sentence
        .char_indices()
        .map(|(at, c)| if c == ',' && between_groups(at) { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_threes() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1 000"),
            (10_002, "10 002"),
            (1_234_567, "1 234 567"),
        ] {
            assert_eq!(count(n), text);
        }
        assert_eq!(count(u64::MAX), "18 446 744 073 709 551 615");
    }

    #[test]
    fn asked_bytes_are_decimal() {
        for (n, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (64, "64 bytes"),
            (999, "999 bytes"),
            (1000, "1.0 KB"),
            (640_320, "640.3 KB"),
            (999_949, "999.9 KB"),
            (999_960, "1.0 MB"),
            (1_500_000, "1.5 MB"),
            (7_000_000_000_000, "7.0 TB"),
            (u64::MAX, "18 446 744.1 TB"),
        ] {
            assert_eq!(asked(n), text, "{n}");
        }
    }

    #[test]
    fn pages_are_binary_and_exact_where_round() {
        for (n, text) in [
            (0, "0 KiB"),
            (512, "512 bytes"),
            (4096, "4 KiB"),
            (132 << 10, "132 KiB"),
            (2052 << 10, "2 052 KiB"),
            (1 << 20, "1 024 KiB"),
            (64 << 20, "64 MiB"),
            ((64 << 20) + (512 << 10), "64.5 MiB"),
            (20 << 30, "20 GiB"),
            (1100, "1.1 KiB"),
        ] {
            assert_eq!(pages(n), text, "{n}");
        }
    }

    #[test]
    fn numbers_in_sentences_are_grouped_alike() {
        for (sentence, text) in [
            ("free of 2,101,248 bytes", "free of 2 101 248 bytes"),
            ("sizes 1,20 and 1,2345, or 7, 123", "sizes 1,20 and 1,2345, or 7, 123"),
            (",123 a,123 häßlich 1,000", ",123 a,123 häßlich 1 000"),
            ("1,", "1,"),
        ] {
            assert_eq!(regrouped(sentence), text);
        }
    }

    #[test]
    fn changes_carry_their_sign() {
        assert_eq!(change(900 << 10, 112 << 10, pages), "-788 KiB");
        assert_eq!(change(2_100_000, 2_800_000, resident), "+0.7 MB");
        assert_eq!(change(5, 5, pages), "0 KiB");
    }

    #[test]
    fn times_read_well() {
        assert_eq!(at(1_234_567_890), "1.234 s");
        assert_eq!(lasting(120_000_000), "0.12 s");
        assert_eq!(lasting(2_140_000_000), "2.1 s");
        assert_eq!(lasting(200_000_000_000), "3 min 20 s");
        assert_eq!(lasting(7_500_000_000_000), "2 h 5 min");
    }
}
