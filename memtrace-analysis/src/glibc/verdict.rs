//! Why a process is as large as it is: causes with their bytes, and one verdict.
//!
//! Causes claim resident bytes. Those without `overlaps` claim different bytes, and can be added up; a cause that
//! overlaps is another reason for bytes that a cause before it has claimed already.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::books::Settings;
use super::causes::{live_cause, not_malloc_cause, page_cache_cause, retention_causes};
use super::look::{Cgroup, HeapView, Resident, Target};
use super::tally::ArenaTally;
use super::words::{bytes, percent};
use crate::report::Confidence;

/// Of all three thresholds at the start.
pub const DEFAULT_THRESHOLD: u64 = 128 << 10;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub kind: VerdictKind,
    /// One sentence.
    pub text: String,
    pub confidence: Confidence,
    /// Most bytes first, those that overlap behind what they overlap with.
    pub causes: Vec<Cause>,
    /// What would have to be known to say more, a sentence each.
    pub missing: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// Freed, and kept by malloc in whole pages.
    Retention,
    /// Live blocks grow: a leak, or a cache without a limit.
    Growth,
    /// Freed, but every page of it holds something live.
    Fragmentation,
    /// Memory that malloc never saw.
    NotMalloc,
    Healthy,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    pub kind: CauseKind,
    pub bytes: u64,
    /// Another reason for bytes that a cause before this one claims.
    pub overlaps: bool,
    pub confidence: Confidence,
    /// The evidence, in a sentence.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    /// A live block lies above what was freed.
    TopPinnedLive,
    /// A block in a thread cache lies above what was freed.
    TopPinnedCached,
    /// Fastbins never merge by themselves.
    Fastbins,
    /// The top is free, and kept since it is smaller than the trim threshold.
    TrimThresholdRaised,
    /// The top is free, and kept since M_TOP_PAD says so.
    TopPadRaised,
    /// Large blocks came from the heap, since the threshold for mappings of their own had risen.
    MmapThresholdRaised,
    /// In thread arenas, each with its own survivors.
    ThreadArenas,
    /// Held in thread caches.
    ThreadCaches,
    Fragmentation,
    LiveGrowth,
    NotMalloc,
    PageCache,
}

/// What the judgement rests on.
pub struct Evidence<'a> {
    pub target: &'a Target,
    pub resident: &'a Resident,
    pub heap: Option<(&'a HeapView, &'a [ArenaTally], &'a Settings)>,
    pub heap_unknown: Option<&'a str>,
    pub torn: bool,
    /// What contradicts itself in a damaged heap.
    pub damage: Option<&'a str>,
    pub cgroup: Option<&'a Cgroup>,
}

/// Less than this is not worth a cause, or a verdict.
pub(super) const LEAST_CAUSE: u64 = 256 << 10;
pub(super) const LEAST_VERDICT: u64 = 4 << 20;
pub(super) const LEAST_LARGE: u64 = 16 << 20;

pub fn judge(evidence: &Evidence<'_>) -> Verdict {
    let resident = evidence.resident;
    let mut causes = Vec::new();
    if let Some((heap, tallies, settings)) = evidence.heap {
        retention_causes(&mut causes, heap, tallies, settings);
    }
    order(&mut causes);
    let sum = |causes: &[Cause], chosen: fn(&Cause) -> bool| -> u64 {
        causes
            .iter()
            .filter(|cause| !cause.overlaps && chosen(cause))
            .map(|cause| cause.bytes)
            .sum()
    };
    let scattered = sum(&causes, |cause| cause.kind == CauseKind::Fragmentation);
    let held = sum(&causes, |cause| cause.kind != CauseKind::Fragmentation);
    let shares = Shares {
        held,
        scattered,
        growth: evidence
            .heap
            .and_then(|(heap, _, _)| live_cause(heap, resident, held.saturating_add(scattered))),
        foreign: not_malloc_cause(evidence),
        cache: page_cache_cause(evidence),
    };
    let mut verdict = conclude(evidence, &shares, causes);
    let kind = verdict.kind;
    let Shares {
        growth, foreign, cache, ..
    } = shares;
    let open = matches!(kind, VerdictKind::Growth | VerdictKind::Unknown);
    let growth = growth
        .map(|(cause, _)| cause)
        .filter(|cause| open || is_much(resident, cause.bytes, LEAST_VERDICT, 30));
    let foreign = foreign.filter(|cause| is_much(resident, cause.bytes, LEAST_LARGE, 20));
    verdict.causes.extend(growth.into_iter().chain(foreign).chain(cache));
    if evidence.damage.is_some() {
        verdict.missing.push(String::from(
            "a heap that is sound: something has written over malloc's own data, most likely beyond the end of a block",
        ));
    } else if evidence.torn {
        verdict.missing.push(String::from(
            "a look that fits together: the heap moved while it was read",
        ));
        if verdict.confidence == Confidence::Proven {
            verdict.confidence = Confidence::Likely;
        }
    }
    verdict
}

/// What speaks for each kind of verdict.
struct Shares {
    /// Freed, in whole pages.
    held: u64,
    /// Freed, in parts of pages.
    scattered: u64,
    /// And whether it looks like growth.
    growth: Option<(Cause, bool)>,
    foreign: Option<Cause>,
    cache: Option<Cause>,
}

/// At least so many bytes, and so many hundredths of all that is resident.
fn is_much(resident: &Resident, part: u64, least: u64, hundredths: u64) -> bool {
    part >= least && part >= (resident.total / 100).saturating_mul(hundredths)
}

fn conclude(evidence: &Evidence<'_>, shares: &Shares, causes: Vec<Cause>) -> Verdict {
    let resident = evidence.resident;
    let total = resident.total;
    let say = |kind, confidence, text| Verdict {
        kind,
        text,
        confidence,
        causes: Vec::new(),
        missing: Vec::new(),
    };
    let unread = resident.heap_unknown;
    let (waste, much) = (
        shares.held.saturating_add(shares.scattered),
        |part, least, hundredths| is_much(resident, part, least, hundredths),
    );
    let mut verdict = if let Some(damage) = evidence.damage {
        let text = format!(
            "cannot tell: the heap is damaged ({damage}); {} of it could not be followed behind that",
            bytes(unread)
        );
        say(VerdictKind::Unknown, Confidence::CannotTell, text)
    } else if evidence.torn && unread >= total / 4 {
        let text = format!(
            "cannot tell: the heap moved while it was read, and {} of {} resident could not be followed",
            bytes(unread),
            bytes(total)
        );
        say(VerdictKind::Unknown, Confidence::CannotTell, text)
    } else if evidence.heap.is_none() && resident.other_anon >= total / 2 {
        without_books(evidence)
    } else if much(waste, LEAST_VERDICT, 10) && shares.held >= shares.scattered {
        say(
            VerdictKind::Retention,
            Confidence::Proven,
            retention_text(resident, &causes, shares.held),
        )
    } else if much(waste, LEAST_VERDICT, 10) {
        let text = format!(
            "fragmentation: {} ({} of {} resident) were freed, but lie between live blocks on the same pages, where \
             nothing can give them back",
            bytes(shares.scattered),
            percent(shares.scattered, total),
            bytes(total)
        );
        say(VerdictKind::Fragmentation, Confidence::Proven, text)
    } else if let Some(foreign) = shares
        .foreign
        .as_ref()
        .filter(|cause| much(cause.bytes, LEAST_LARGE, 50))
    {
        let text = format!(
            "not malloc's memory: {} of {} resident were never handed out by malloc",
            bytes(foreign.bytes),
            bytes(total)
        );
        say(VerdictKind::NotMalloc, Confidence::Proven, text)
    } else if let Some((cause, suspicious)) = shares
        .growth
        .as_ref()
        .filter(|(cause, _)| much(cause.bytes, LEAST_VERDICT, 50))
    {
        mostly_live(resident, cause, *suspicious)
    } else if let Some(other) = other_allocator(evidence) {
        say(VerdictKind::NotMalloc, Confidence::Likely, other)
    } else {
        let text = match &shares.cache {
            Some(cache) => format!(
                "healthy: {} are file pages, which the kernel takes back when it needs them; malloc keeps only {} that \
                 the program has freed",
                bytes(cache.bytes),
                bytes(resident.retained)
            ),
            None => format!(
                "healthy: of {} resident, malloc keeps {} that the program has freed, which is not worth a measure",
                bytes(total),
                bytes(resident.retained)
            ),
        };
        say(VerdictKind::Healthy, Confidence::Proven, text)
    };
    verdict.causes = causes;
    verdict
}

/// Where malloc's books could not be read, and most memory may be malloc's.
fn without_books(evidence: &Evidence<'_>) -> Verdict {
    let Resident { other_anon, total, .. } = evidence.resident;
    let why = evidence.heap_unknown.unwrap_or("they could not be read");
    let missing = vec![format!("malloc's books: {why}")];
    let (kind, confidence, text) = match other_allocator(evidence) {
        Some(text) => (VerdictKind::NotMalloc, Confidence::Likely, text),
        None => (
            VerdictKind::Unknown,
            Confidence::CannotTell,
            format!(
                "cannot tell: {} of {} resident are anonymous memory, and how much of it malloc holds is not known",
                bytes(*other_anon),
                bytes(*total)
            ),
        ),
    };
    Verdict {
        kind,
        text,
        confidence,
        causes: Vec::new(),
        missing,
    }
}

/// Where another allocator's library is mapped, and glibc's malloc has less in hand than what may be the other's.
fn other_allocator(evidence: &Evidence<'_>) -> Option<String> {
    let other = evidence.target.other_allocator.as_ref()?;
    let resident = evidence.resident;
    let own = resident.live.saturating_add(resident.retained);
    (own <= resident.other_anon).then(|| {
        format!(
            "{} of {} resident are anonymous memory that is not glibc's; this process maps another allocator, {other}, \
             whose books this tool does not read",
            bytes(resident.other_anon),
            bytes(resident.total)
        )
    })
}

/// Where most memory is in use: one look sees a level, and at most signs of growth.
fn mostly_live(resident: &Resident, cause: &Cause, suspicious: bool) -> Verdict {
    let missing = vec![String::from(
        "whether it grows, and how fast: look again later (--watch 10s, or --diff with a stored look)",
    )];
    let (kind, confidence, text) = if suspicious {
        let text = format!(
            "live blocks: {} of {} resident are in blocks that the program holds, most of them of one size, and the heap \
             is at its largest ever, as with a leak or a cache without a limit",
            bytes(resident.live),
            bytes(resident.total)
        );
        (VerdictKind::Growth, cause.confidence, text)
    } else {
        let text = format!(
            "the memory is in use: {} of {} resident are in blocks that the program holds; whether they become more, one \
             look cannot tell",
            bytes(resident.live),
            bytes(resident.total)
        );
        (VerdictKind::Unknown, Confidence::CannotTell, text)
    };
    Verdict {
        kind,
        text,
        confidence,
        causes: Vec::new(),
        missing,
    }
}

fn retention_text(resident: &Resident, causes: &[Cause], held: u64) -> String {
    let total = resident.total;
    let first = causes
        .iter()
        .find(|cause| !cause.overlaps && cause.kind != CauseKind::Fragmentation);
    let why = match first.map(|cause| cause.kind) {
        Some(CauseKind::TopPinnedLive) => "a live block above them keeps the heap from shrinking",
        Some(CauseKind::TopPinnedCached) => "a thread cache lies above them and keeps the heap from shrinking",
        Some(CauseKind::Fastbins) => {
            "they sit in fastbins, which merge with nothing until malloc_trim or a large request"
        }
        Some(CauseKind::TrimThresholdRaised) => {
            "they are the top of the heap, which is kept as long as it is smaller than the raised trim threshold"
        }
        Some(CauseKind::TopPadRaised) => "M_TOP_PAD keeps that much at the top of the heap",
        Some(CauseKind::MmapThresholdRaised) => {
            "they were large blocks, taken from the heap since the mmap threshold had risen"
        }
        Some(CauseKind::ThreadArenas) => "they lie in thread arenas, which give little back by themselves",
        Some(CauseKind::ThreadCaches) => "they sit in thread caches",
        _ => "malloc keeps them",
    };
    let back = resident.retained_parts.trimmable;
    format!(
        "retention: {} ({} of {} resident) were freed by the program and not given back: {why}; malloc_trim(0) would \
         return {}",
        bytes(held),
        percent(held, total),
        bytes(total),
        bytes(back)
    )
}

/// Largest first, each followed by those that overlap with it.
fn order(causes: &mut Vec<Cause>) {
    let mut groups: Vec<Vec<Cause>> = Vec::new();
    for cause in causes.drain(..) {
        match groups.last_mut() {
            Some(group) if cause.overlaps => group.push(cause),
            _ => groups.push(vec![cause]),
        }
    }
    let claimed = |group: &Vec<Cause>| group.first().map_or(0, |cause| cause.bytes);
    groups.retain(|group| claimed(group) >= LEAST_CAUSE);
    groups.sort_by_key(|group| core::cmp::Reverse(claimed(group)));
    causes.extend(groups.into_iter().flatten());
}
