//! Real probes on the running kernel, against programs whose every allocator call is known. Needs root and `cc`.

mod attribution;
mod counts;
mod heap;
mod life;
mod limits;
mod support;
mod targets;
