//! The whole analysis, from events to the report: with any events at all, and with those of simulated programs.

mod arbitrary;
mod pauses;
mod robust;
mod script;
mod simulated;

/// Cases of each property: few enough for every day, more with PROPTEST_CASES.
fn cases(every_day: u32) -> proptest::test_runner::Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    proptest::test_runner::Config {
        // A failure prints its smallest input; what it teaches becomes a test of its own.
        failure_persistence: None,
        ..proptest::test_runner::Config::with_cases(cases.unwrap_or(every_day))
    }
}
