//! Helpers of the integration tests.

pub mod fixture;
pub mod golden;
