//! Helpers of the integration tests; each test file uses what it needs.
#![expect(
    dead_code,
    reason = "every test file compiles this module for itself and uses a part of it"
)]

pub mod fixture;
pub mod golden;
pub mod lab;
pub mod run;
pub mod schema;
