//! Renderers: functions from a report to bytes.

pub mod json;
pub mod plain;
pub mod style;
pub mod text;
pub mod units;
