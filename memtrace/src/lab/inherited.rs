//! What the environment sets for every program, the lab's too: malloc's knobs, and libraries loaded first.

use std::ffi::{OsStr, OsString};

/// A variable that changes how malloc works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: OsString,
    pub value: OsString,
}

impl Setting {
    /// As it would be written before a command.
    pub fn show(&self) -> String {
        format!("{}={}", self.name.to_string_lossy(), self.value.to_string_lossy())
    }
}

/// Those of these variables that malloc or the dynamic loader reads, in order of their names.
pub fn among(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<Setting> {
    let mut settings: Vec<_> = variables
        .filter(|(name, value)| is_read(name) && !value.is_empty())
        .map(|(name, value)| Setting { name, value })
        .collect();
    settings.sort_by(|a, b| a.name.cmp(&b.name));
    settings
}

/// All of them in a phrase.
pub fn shown(settings: &[Setting]) -> String {
    settings.iter().map(Setting::show).collect::<Vec<_>>().join(" ")
}

fn is_read(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b"MALLOC_") || name == b"GLIBC_TUNABLES" || name == b"LD_PRELOAD"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_are_told_from_other_variables() {
        let variables = [
            ("PATH", "/bin"),
            ("MALLOC_TOP_PAD_", "0"),
            ("LD_PRELOAD", ""),
            ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1"),
            ("XMALLOC_", "1"),
        ];
        let settings = among(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        assert_eq!(
            shown(&settings),
            "GLIBC_TUNABLES=glibc.malloc.arena_max=1 MALLOC_TOP_PAD_=0"
        );
    }
}
