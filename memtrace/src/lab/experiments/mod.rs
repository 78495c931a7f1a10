//! The experiments, a file for each few that share a subject. A claim and its conditions are data; the function beside
//! them measures.

mod allocators;
mod arenas;
mod break_return;
mod break_steps;
mod child_job;
mod direct_io;
mod files_held;
mod knobs;
mod large_alive;
mod large_blocks;
mod leak;
pub mod page_cache;
mod pairs;
mod runtimes;
mod threshold;

use super::experiment::Experiment;

/// In the order of their numbers.
pub const ALL: &[Experiment] = &[
    break_steps::BRK_STEPS,
    break_steps::ONE_STEP,
    break_return::FREE_KEEPS,
    break_return::TRIM,
    large_blocks::LARGE_BLOCK,
    leak::LEAK,
    child_job::CHILD_JOB,
    pairs::PAIR_COST,
    threshold::THRESHOLD,
    pairs::THRESHOLD_ZERO,
    large_alive::LARGE_ALIVE,
    large_blocks::CEILING,
    arenas::ARENAS,
    knobs::KNOBS,
    direct_io::DIRECT_IO,
    page_cache::PAGE_CACHE,
    page_cache::FADVISE,
    files_held::FILES,
    allocators::ALLOCATORS,
    runtimes::RUNTIMES,
];

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * 1024.0;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_run_from_one_and_names_are_unique() {
        let names: BTreeSet<_> = ALL.iter().map(|experiment| experiment.name).collect();
        assert_eq!(names.len(), ALL.len());
        for (index, experiment) in ALL.iter().enumerate() {
            assert_eq!(experiment.number as usize, index + 1, "{}", experiment.name);
        }
    }

    #[test]
    fn each_claim_is_decided_by_a_figure_and_can_be_tried_alone() {
        for experiment in ALL {
            assert!(
                experiment.checks.iter().any(|check| check.essential),
                "{} decides nothing",
                experiment.name
            );
            assert!(!experiment.commands.is_empty(), "{} names no command", experiment.name);
            assert!(
                experiment.claim.ends_with('.') && experiment.why.ends_with('.'),
                "{}",
                experiment.name
            );
        }
    }
}
