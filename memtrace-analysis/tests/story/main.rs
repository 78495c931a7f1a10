//! The whole analysis, from events to the report: with any events at all, and with those of simulated programs.

mod arbitrary;
mod robust;
mod script;
mod simulated;
