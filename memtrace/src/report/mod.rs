//! Renderers: functions from a report to bytes.
