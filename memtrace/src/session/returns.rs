//! May a return probe be used on this kernel?
//!
//! From 6.11 on x86_64 a return probe ends in a system call of its own, and a seccomp filter that does not know it
//! kills the process, until seccomp learnt to let it pass (6.14, 6.13.2, 6.12.13). A process can install a filter at any
//! time, so on the kernels between no return probe is used at all.

use std::fmt;
use std::fs;

/// A kernel's release number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Of the running kernel; None when it is not in the usual form.
pub fn release() -> Option<Release> {
    parse(&fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

pub fn parse(text: &str) -> Option<Release> {
    let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    let mut parts = numbers.split('.').map(str::parse::<u32>);
    Some(Release {
        major: parts.next()?.ok()?,
        minor: parts.next()?.ok()?,
        patch: parts.next().and_then(Result::ok).unwrap_or(0),
    })
}

/// No process can be killed by a return probe here. An unknown kernel is not trusted.
pub fn are_safe() -> bool {
    cfg!(not(target_arch = "x86_64")) || release().is_some_and(safe)
}

fn safe(Release { major, minor, patch }: Release) -> bool {
    match (major, minor) {
        (6, 11) => false,
        (6, 12) => patch >= 13,
        (6, 13) => patch >= 2,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_between_the_system_call_and_seccomps_exception_are_refused() {
        for (text, expected) in [
            ("5.10.0-34-amd64", true),
            ("6.1.0-37-amd64\n", true),
            ("6.10.14", true),
            ("6.11.0", false),
            ("6.11.11-generic", false),
            ("6.12.12", false),
            ("6.12.13+deb13-amd64", true),
            ("6.12-rc1", false),
            ("6.13.1", false),
            ("6.13.2", true),
            ("6.14.0", true),
            ("7.3.0-rc2", true),
        ] {
            assert_eq!(parse(text).map(safe), Some(expected), "{text}");
        }
        assert_eq!(parse("unknown"), None);
    }
}
