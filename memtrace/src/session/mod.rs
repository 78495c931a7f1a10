//! Load, attach, drain: the only user of aya and of the raw ABI.
