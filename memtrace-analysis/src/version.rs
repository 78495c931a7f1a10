//! What depends on glibc's version, as far as the rules of growth need it (layouts are the business of [`crate::glibc`]).

/// A glibc release, 2.`minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl Version {
    /// Reads "2.36" (and "2.36.9000", "2.36-9+deb12u9").
    pub fn parse(text: &str) -> Option<Self> {
        let (major, rest) = text.trim().split_once('.')?;
        let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
        Some(Self {
            major: major.parse().ok()?,
            minor: digits.parse().ok()?,
        })
    }

    const fn at_least(self, minor: u32) -> bool {
        self.major > 2 || (self.major == 2 && self.minor >= minor)
    }
}

/// Bytes glibc asks for a thread's cache, by version; None before 2.26, where there is none.
pub fn thread_cache_request(version: Version) -> Option<u64> {
    if version.at_least(42) {
        Some(760)
    } else if version.at_least(30) {
        Some(640)
    } else if version.at_least(26) {
        Some(576)
    } else {
        None
    }
}

/// Bytes at the begin of a thread arena's first segment: heap_info and malloc_state.
pub fn arena_header(version: Version) -> u64 {
    let state: u64 = if version.at_least(43) {
        2112
    } else if version.at_least(27) {
        2200
    } else {
        2192
    };
    state.saturating_add(segment_header(version))
}

/// heap_info, at the begin of every segment of a thread arena.
pub fn segment_header(version: Version) -> u64 {
    if version.at_least(35) { 48 } else { 32 }
}

/// How much longer a block's own mapping is than its chunk, at least.
pub fn mapping_overhead(version: Option<Version>) -> u64 {
    if version.is_some_and(|version| version.at_least(43)) {
        16
    } else {
        8
    }
}

/// Only the first piece that the main arena maps is rounded up to a MiB.
pub fn rounds_first_piece(version: Version) -> bool {
    version.at_least(35) && !version.at_least(41)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_banners() {
        let version = |minor| Some(Version { major: 2, minor });
        assert_eq!(Version::parse("2.36"), version(36));
        assert_eq!(Version::parse("2.36-9+deb12u9"), version(36));
        assert_eq!(Version::parse("2.31.9000"), version(31));
        assert_eq!(Version::parse("musl"), None);
        assert_eq!(Version::parse("2."), None);
    }

    #[test]
    fn the_cache_struct_grew() {
        let request = |minor| thread_cache_request(Version { major: 2, minor });
        assert_eq!(
            (request(25), request(29), request(41), request(44)),
            (None, Some(576), Some(640), Some(760))
        );
    }
}
