//! What is new after an event: growths, returns, trims and changes of the threshold, one plain value each.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::report::{Step, ThresholdChange, TrimReport};

/// Something a stream of events shows as it happens; `event` names the variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum News {
    Growth(Step),
    Returned(ReturnEvent),
    /// A malloc_trim call is over.
    Trim(TrimReport),
    Threshold(ThresholdChange),
}

/// Memory was given back in the course of an allocator call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReturnEvent {
    pub time_ns: u64,
    pub tid: u32,
    /// "munmap", "break", "arena", "segment", "pages", "mremap".
    pub way: String,
    pub start: u64,
    pub bytes: u64,
    /// The entry point whose call gave it back.
    pub entry: String,
    /// The pointer freed, where it was one.
    pub pointer: Option<u64>,
    /// By glibc's rule, where the break was lowered and the top is known.
    pub predicted_bytes: Option<u64>,
}
