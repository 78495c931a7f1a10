//! Renderers: functions from a report to bytes.

pub mod doctor;
pub mod events;
pub mod explain;
pub mod files;
pub mod json;
pub mod layout;
pub mod plain;
pub mod probes;
pub mod style;
pub mod text;
pub mod units;
