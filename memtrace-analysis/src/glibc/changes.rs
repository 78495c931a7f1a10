//! Several looks at one process: what has changed, and whether live blocks grow.
#![cfg_attr(
    not(test),
    expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "sums of amounts that lie in the address space of one process, and differences of what was compared before"
    )
)]

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::look::{EXPLAIN_VERSION, LiveSize, Look, Resident};
use super::verdict::{Cause, CauseKind, Verdict, VerdictKind};
use super::words::{bytes, count, counted, percent};
use crate::report::Confidence;

/// Smaller changes of a level are noise.
const LEAST: u64 = 64 << 10;
/// Sizes that are shown.
const SIZES: usize = 8;

/// From the first to the last of some looks. Differences are last minus first, in bytes or blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Changes {
    pub explain_version: u32,
    pub pid: u32,
    pub name: String,
    pub looks: u64,
    /// Both ends are of one process, as far as its start tells.
    pub same_process: bool,
    pub begin_unix_ms: u64,
    pub end_unix_ms: u64,
    pub resident: ResidentChange,
    pub live_blocks: i64,
    pub live_bytes: i64,
    /// Levels at both ends.
    pub live_bytes_begin: u64,
    pub live_bytes_end: u64,
    pub trim_would_return_bytes: i64,
    /// Of live bytes, over the whole time.
    pub live_bytes_per_hour: i64,
    /// Since when live bytes have not fallen, where they grow.
    pub growing_since_unix_ms: Option<u64>,
    /// Chunk sizes whose live blocks have become more or fewer; largest change first.
    pub sizes: Vec<SizeChange>,
    pub verdict: Verdict,
    pub torn: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentChange {
    pub total: i64,
    pub live: i64,
    pub retained: i64,
    pub allocator_overhead: i64,
    pub file: i64,
    pub shared: i64,
    pub stacks: i64,
    pub other_anon: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeChange {
    pub chunk_bytes: u64,
    pub blocks: i64,
    pub bytes: i64,
}

/// What is kept of each look of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub unix_ms: u64,
    pub total: u64,
    /// None where malloc's books could not be read.
    pub live_bytes: Option<u64>,
    pub live_blocks: Option<u64>,
    pub retained: u64,
    pub torn: bool,
}

impl Point {
    pub fn of(look: &Look) -> Point {
        Point {
            unix_ms: look.taken.unix_ms,
            total: look.resident.total,
            live_bytes: look.heap.as_ref().map(|heap| heap.live_bytes),
            live_blocks: look.heap.as_ref().map(|heap| heap.live_blocks),
            retained: look.resident.retained,
            torn: look.torn,
        }
    }
}

/// Compares the first look with the last one; `series` has all of them, in order, these two included.
pub fn changes(first: &Look, last: &Look, series: &[Point]) -> Changes {
    let begin = (Point::of(first), Point::of(last));
    let series = if series.len() < 2 {
        &[begin.0, begin.1][..]
    } else {
        series
    };
    let level = |look: &Look| look.heap.as_ref().map_or(0, |heap| heap.live_bytes);
    let blocks = |look: &Look| look.heap.as_ref().map_or(0, |heap| heap.live_blocks);
    let milliseconds = last.taken.unix_ms.saturating_sub(first.taken.unix_ms);
    let live_bytes = difference(level(first), level(last));
    let per_hour = i128::from(live_bytes) * 3_600_000 / i128::from(milliseconds.max(1));
    let sizes = size_changes(first, last);
    let growth = growth(series);
    let mut found = Changes {
        explain_version: EXPLAIN_VERSION,
        pid: last.target.pid,
        name: last.target.name.clone(),
        looks: series.len() as u64,
        same_process: same_process(first, last),
        begin_unix_ms: first.taken.unix_ms,
        end_unix_ms: last.taken.unix_ms,
        resident: resident_change(&first.resident, &last.resident),
        live_blocks: difference(blocks(first), blocks(last)),
        live_bytes,
        live_bytes_begin: level(first),
        live_bytes_end: level(last),
        trim_would_return_bytes: difference(
            first.trim_would_return_bytes.unwrap_or(0),
            last.trim_would_return_bytes.unwrap_or(0),
        ),
        live_bytes_per_hour: i64::try_from(per_hour).unwrap_or(i64::MAX),
        growing_since_unix_ms: growth.map(|growth| growth.since_unix_ms),
        sizes,
        verdict: last.verdict.clone(),
        torn: first.torn || last.torn,
    };
    found.verdict = judge(&found, last, growth, milliseconds);
    found
}

fn difference(from: u64, to: u64) -> i64 {
    let size = i64::try_from(from.abs_diff(to)).unwrap_or(i64::MAX);
    if to >= from { size } else { -size }
}

/// Two looks are of one process where it began at one time, by a clock that may have been set a little.
fn same_process(first: &Look, last: &Look) -> bool {
    let begin = |look: &Look| look.taken.unix_ms.saturating_sub(look.taken.process_age_ns / 1_000_000);
    first.target.pid == last.target.pid && begin(first).abs_diff(begin(last)) < 5_000
}

fn resident_change(first: &Resident, last: &Resident) -> ResidentChange {
    ResidentChange {
        total: difference(first.total, last.total),
        live: difference(first.live, last.live),
        retained: difference(first.retained, last.retained),
        allocator_overhead: difference(first.allocator_overhead, last.allocator_overhead),
        file: difference(first.file, last.file),
        shared: difference(first.shared, last.shared),
        stacks: difference(first.stacks, last.stacks),
        other_anon: difference(first.other_anon, last.other_anon),
    }
}

fn size_changes(first: &Look, last: &Look) -> Vec<SizeChange> {
    let sizes = |look: &Look| -> Vec<LiveSize> {
        look.heap
            .as_ref()
            .map(|heap| heap.live_sizes.clone())
            .unwrap_or_default()
    };
    let mut sums: BTreeMap<u64, (i64, i64)> = BTreeMap::new();
    for (sign, list) in [(-1, sizes(first)), (1, sizes(last))] {
        for size in list {
            let sum = sums.entry(size.chunk_bytes).or_default();
            sum.0 = sum
                .0
                .saturating_add(sign * i64::try_from(size.blocks).unwrap_or(i64::MAX));
            sum.1 = sum
                .1
                .saturating_add(sign * i64::try_from(size.bytes).unwrap_or(i64::MAX));
        }
    }
    let mut changes: Vec<SizeChange> = sums
        .into_iter()
        .filter(|(_, (blocks, _))| *blocks != 0)
        .map(|(chunk_bytes, (blocks, bytes))| SizeChange {
            chunk_bytes,
            blocks,
            bytes,
        })
        .collect();
    changes.sort_by_key(|change| core::cmp::Reverse(change.bytes.unsigned_abs()));
    changes.truncate(SIZES);
    changes
}

#[derive(Clone, Copy, Debug)]
struct Growth {
    since_unix_ms: u64,
    confidence: Confidence,
}

/// Live bytes that rise from look to look, and end near their highest.
fn growth(series: &[Point]) -> Option<Growth> {
    let levels: Vec<(u64, u64)> = series
        .iter()
        .filter_map(|point| Some((point.unix_ms, point.live_bytes?)))
        .collect();
    let (first, last) = (levels.first()?.1, levels.last()?.1);
    let risen = last.checked_sub(first)?;
    let highest = levels.iter().map(|level| level.1).max()?;
    if risen < LEAST.max(first / 100) || highest - last > risen / 10 {
        return None;
    }
    let steps = levels.len() - 1;
    let rises = levels.windows(2).filter(|pair| pair[1].1 > pair[0].1).count();
    if rises * 10 < steps * 6 {
        return None;
    }
    // Since the look after which they never fell.
    let fall = levels.windows(2).rposition(|pair| pair[1].1 < pair[0].1);
    let since_unix_ms = levels[fall.map_or(0, |index| index + 1)].0;
    let confidence = if steps >= 4 && rises * 10 >= steps * 8 {
        Confidence::Proven
    } else {
        Confidence::Likely
    };
    Some(Growth {
        since_unix_ms,
        confidence,
    })
}

fn judge(found: &Changes, last: &Look, growth: Option<Growth>, milliseconds: u64) -> Verdict {
    let elapsed = duration(milliseconds);
    if !found.same_process {
        let mut verdict = last.verdict.clone();
        verdict
            .missing
            .insert(0, String::from("looks at one process: these are of two"));
        return verdict;
    }
    if let Some(growth) = growth {
        let sizes = found.sizes.iter().filter(|size| size.bytes > 0).take(3);
        let named: Vec<String> = sizes
            .map(|size| {
                format!(
                    "{} of {}",
                    counted(size.blocks.unsigned_abs(), "chunk"),
                    counted(size.chunk_bytes, "byte")
                )
            })
            .collect();
        let share = found
            .sizes
            .first()
            .filter(|size| size.bytes > 0)
            .map(|size| size.bytes.unsigned_abs());
        let risen = found.live_bytes.unsigned_abs();
        let text = format!(
            "growth: live blocks rose by {} in {elapsed} (from {} to {}, {} an hour), a leak or a cache without a limit",
            bytes(risen),
            bytes(found.live_bytes_begin),
            bytes(found.live_bytes_end),
            bytes(found.live_bytes_per_hour.unsigned_abs())
        );
        let evidence = if named.is_empty() {
            String::from("no single chunk size stands out")
        } else {
            format!(
                "most of what came to stay: {}{}",
                named.join(", "),
                share.map_or_else(String::new, |share| format!(
                    " (the first makes up {})",
                    percent(share.min(risen), risen)
                ))
            )
        };
        let mut causes = Vec::from([Cause {
            kind: CauseKind::LiveGrowth,
            bytes: risen,
            overlaps: false,
            confidence: growth.confidence,
            text: evidence,
        }]);
        causes.extend(
            last.verdict
                .causes
                .iter()
                .filter(|cause| cause.kind != CauseKind::LiveGrowth)
                .cloned(),
        );
        return Verdict {
            kind: VerdictKind::Growth,
            text,
            confidence: growth.confidence,
            causes,
            missing: Vec::new(),
        };
    }
    let mut verdict = last.verdict.clone();
    let live_only = matches!(verdict.kind, VerdictKind::Growth | VerdictKind::Unknown) && last.heap.is_some();
    let beside = found
        .resident
        .other_anon
        .saturating_add(found.resident.shared)
        .saturating_add(found.resident.stacks);
    if live_only {
        verdict.missing.clear();
        verdict.causes.retain(|cause| cause.kind != CauseKind::LiveGrowth);
        (verdict.kind, verdict.confidence) = (VerdictKind::Healthy, Confidence::Likely);
        verdict.text = format!(
            "healthy: live blocks did not grow in {elapsed} over {} ({} now, in {})",
            counted(found.looks, "look"),
            bytes(found.live_bytes_end),
            counted(last.heap.as_ref().map_or(0, |heap| heap.live_blocks), "block")
        );
    }
    if beside > i64::try_from(LEAST.max(last.resident.total / 50)).unwrap_or(i64::MAX)
        && beside > found.live_bytes.abs()
    {
        verdict.kind = VerdictKind::NotMalloc;
        verdict.text = format!(
            "growth beside malloc: {} more than {elapsed} ago in memory that malloc never handed out, while live blocks \
             changed by {}",
            bytes(beside.unsigned_abs()),
            signed(found.live_bytes)
        );
    }
    verdict
}

/// "+1.5 MiB", "-3 KiB"
pub fn signed(amount: i64) -> String {
    let sign = if amount < 0 { "-" } else { "+" };
    if amount == 0 {
        String::from("nothing")
    } else {
        format!("{sign}{}", bytes(amount.unsigned_abs()))
    }
}

/// "12 seconds", "3 minutes", "1 hour 20 minutes"
pub fn duration(milliseconds: u64) -> String {
    let seconds = milliseconds.saturating_add(500) / 1000;
    match seconds {
        0 => format!("{} ms", count(milliseconds)),
        1..120 => counted(seconds, "second"),
        120..7200 => counted(seconds / 60, "minute"),
        _ => {
            let minutes = seconds % 3600 / 60;
            let rest = if minutes == 0 {
                String::new()
            } else {
                format!(" {}", counted(minutes, "minute"))
            };
            counted(seconds / 3600, "hour").to_string() + &rest
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(levels: &[u64]) -> Vec<Point> {
        let point = |(index, level): (usize, &u64)| Point {
            unix_ms: index as u64 * 1000,
            total: *level,
            live_bytes: Some(*level),
            live_blocks: Some(1),
            retained: 0,
            torn: false,
        };
        levels.iter().enumerate().map(point).collect()
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_steady_rise_is_growth() {
        let rise = growth(&series(&[MIB, 2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB])).unwrap();
        assert_eq!((rise.since_unix_ms, rise.confidence), (0, Confidence::Proven));
        let two = growth(&series(&[MIB, 2 * MIB])).unwrap();
        assert_eq!(two.confidence, Confidence::Likely);
    }

    #[test]
    fn growth_counts_from_the_last_fall() {
        let rise = growth(&series(&[3 * MIB, 2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB, 6 * MIB])).unwrap();
        assert_eq!(rise.since_unix_ms, 1000);
    }

    #[test]
    fn a_level_and_a_saw_are_none() {
        assert!(growth(&series(&[9 * MIB, 9 * MIB, 9 * MIB + 1000])).is_none());
        assert!(growth(&series(&[2 * MIB, 9 * MIB, 2 * MIB, 9 * MIB, 3 * MIB])).is_none());
        assert!(growth(&series(&[9 * MIB, MIB])).is_none());
        assert!(growth(&series(&[])).is_none());
    }

    #[test]
    fn times_read_well() {
        assert_eq!(duration(300), "300 ms");
        assert_eq!(duration(10_000), "10 seconds");
        assert_eq!(duration(180_000), "3 minutes");
        assert_eq!(duration(7_200_000), "2 hours");
        assert_eq!(duration(9_000_000), "2 hours 30 minutes");
    }
}
