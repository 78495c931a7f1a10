//! What an experiment is: a claim as data, the figures that decide it, and how they are measured.

use anyhow::Result;
use serde::Serialize;

use super::bench::Bench;
use super::figure::Measured;

/// One claim and the way to see whether it is true here.
pub struct Experiment {
    pub number: u32,
    /// As given on the command line.
    pub name: &'static str,
    pub group: Group,
    pub title: &'static str,
    /// The claim, as people read it.
    pub claim: &'static str,
    /// The rule behind it, in a few sentences.
    pub why: &'static str,
    /// Commands a reader can run alone.
    pub commands: &'static [&'static str],
    pub checks: &'static [Check],
    /// What it takes at most, asked about before more than a GiB is used.
    pub needs: Needs,
    /// What tracing adds to it; None where it adds nothing.
    pub root_adds: Option<&'static str>,
    pub measure: fn(&Bench) -> Result<Measured>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    Heap,
    Cost,
    PageCache,
    Others,
}

impl Group {
    pub fn title(self) -> &'static str {
        match self {
            Self::Heap => "Heap growth and return",
            Self::Cost => "Threshold and cost",
            Self::PageCache => "Page cache and \"free\" memory",
            Self::Others => "Other allocators and runtimes",
        }
    }
}

/// What has to be seen for the claim to hold.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// The figure's key.
    pub figure: &'static str,
    /// The part of the claim it decides.
    pub says: &'static str,
    /// The figure of the article's machine, in the figure's unit; None where only a behaviour is claimed.
    pub claimed: Option<f64>,
    pub expect: Expect,
    /// Without this figure nothing can be said.
    pub essential: bool,
}

/// A figure's condition, in the figure's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expect {
    Exactly(f64),
    AtLeast(f64),
    AtMost(f64),
    Between(f64, f64),
    /// Shown beside the claimed figure; machines may differ in it.
    Shown,
}

impl Expect {
    /// Whether a value satisfies it; None where nothing is asked.
    pub fn met_by(self, value: f64) -> Option<bool> {
        match self {
            Self::Exactly(wanted) => Some((value - wanted).abs() < 1e-9),
            Self::AtLeast(least) => Some(value >= least),
            Self::AtMost(most) => Some(value <= most),
            Self::Between(least, most) => Some((least..=most).contains(&value)),
            Self::Shown => None,
        }
    }

    /// Whether a value that may be wrong by so much, either way, could satisfy it.
    pub fn within_reach(self, value: f64, by: f64) -> bool {
        match self {
            Self::Exactly(wanted) => (value - wanted).abs() <= by,
            Self::AtLeast(least) => value + by >= least,
            Self::AtMost(most) => value - by <= most,
            Self::Between(least, most) => value + by >= least && value - by <= most,
            Self::Shown => true,
        }
    }
}

/// Resources, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    pub memory: u64,
    /// In files of the size given by `--file-size`.
    pub files: u64,
}
