//! A look in short: what a trace keeps of the looks at its begin and at its end.
//!
//! Unlike [`Look`] it goes into recorded traces, so it has no map, no arenas and no parts, and every field is there
//! whatever its value.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::look::Look;
use super::verdict::{CauseKind, VerdictKind};
use crate::event::Thresholds;
use crate::report::Confidence;

/// Field names are keys of the report's JSON document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LookSummary {
    /// What was read does not fit together or moved meanwhile; the figures are not exact.
    pub torn: bool,
    /// None where the process could not be looked at; `heap_unknown` says why.
    pub resident: Option<ResidentSummary>,
    /// None where malloc's books could not be read; `heap_unknown` says why.
    pub heap: Option<HeapSummary>,
    pub heap_unknown: Option<String>,
    pub thresholds: Option<Thresholds>,
    /// What malloc_trim(0) would give back now.
    pub trim_would_return_bytes: Option<u64>,
    pub verdict: Option<VerdictSummary>,
}

/// Resident bytes; the parts but for `total` add up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentSummary {
    pub total: u64,
    pub live: u64,
    /// Freed by the program, kept by malloc.
    pub retained: u64,
    pub allocator_overhead: u64,
    pub file: u64,
    pub shared: u64,
    pub stacks: u64,
    pub other_anon: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapSummary {
    pub live_blocks: u64,
    pub live_bytes: u64,
    /// Freed, in tops, bins and fastbins, resident or not.
    pub free_bytes: u64,
    /// Freed, in thread caches.
    pub cached_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerdictSummary {
    pub kind: VerdictKind,
    /// One sentence.
    pub text: String,
    pub confidence: Confidence,
    pub causes: Vec<CauseSummary>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseSummary {
    pub kind: CauseKind,
    pub bytes: u64,
    /// Another reason for bytes that a cause before this one claims.
    pub overlaps: bool,
}

impl LookSummary {
    /// Of a look that could not be taken.
    pub const fn failed(reason: String) -> Self {
        Self {
            torn: false,
            resident: None,
            heap: None,
            heap_unknown: Some(reason),
            thresholds: None,
            trim_would_return_bytes: None,
            verdict: None,
        }
    }
}

impl From<&Look> for LookSummary {
    fn from(look: &Look) -> Self {
        let resident = &look.resident;
        Self {
            torn: look.torn,
            resident: Some(ResidentSummary {
                total: resident.total,
                live: resident.live,
                retained: resident.retained,
                allocator_overhead: resident.allocator_overhead,
                file: resident.file,
                shared: resident.shared,
                stacks: resident.stacks,
                other_anon: resident.other_anon,
            }),
            heap: look.heap.as_ref().map(|heap| HeapSummary {
                live_blocks: heap.live_blocks,
                live_bytes: heap.live_bytes,
                free_bytes: heap.free_bytes,
                cached_bytes: heap.cached_bytes,
            }),
            heap_unknown: look.heap_unknown.clone(),
            thresholds: look.thresholds.as_ref().map(|thresholds| Thresholds {
                mmap_threshold: thresholds.mmap,
                trim_threshold: thresholds.trim,
                top_pad: thresholds.top_pad,
                dynamic: Some(thresholds.dynamic),
            }),
            trim_would_return_bytes: look.trim_would_return_bytes,
            verdict: Some(VerdictSummary {
                kind: look.verdict.kind,
                text: look.verdict.text.clone(),
                confidence: look.verdict.confidence,
                causes: look
                    .verdict
                    .causes
                    .iter()
                    .map(|cause| CauseSummary {
                        kind: cause.kind,
                        bytes: cause.bytes,
                        overlaps: cause.overlaps,
                    })
                    .collect(),
            }),
        }
    }
}
