//! How much memory the lab's programs may have, page cache included: a file that is larger cannot stay in it.

use memtrace_analysis::glibc::look::Cgroup;

use super::unit::Unit;
use crate::inspect::machine;

/// Why a file of this size cannot be cached as a whole; None where nothing is known to stand against it.
pub fn too_small_for(bytes: u64) -> Option<String> {
    // The programs are in the same group as the lab. Without a memory controller there is no limit but the machine's.
    let group = machine::cgroup(std::process::id()).ok();
    let memory = machine::machine().map(|machine| machine.total);
    limit(group.as_ref(), memory, bytes)
}

fn limit(group: Option<&Cgroup>, memory: Option<u64>, bytes: u64) -> Option<String> {
    let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
    let of_group = group.and_then(|group| Some((group.limit?, group.limit_path.as_deref().unwrap_or(&group.path))));
    match (of_group, memory) {
        (Some((limit, path)), _) if limit < bytes => Some(format!(
            "control group {path} may use {}, page cache included, and {} were read",
            show(limit),
            show(bytes)
        )),
        (_, Some(memory)) if memory < bytes => Some(format!(
            "this machine has {} of memory, and {} were read",
            show(memory),
            show(bytes)
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tighter_limit_is_the_reason() {
        let group = Cgroup {
            path: "/a/b".to_owned(),
            limit: Some(150 << 20),
            limit_path: Some("/a".to_owned()),
            ..Cgroup::default()
        };
        assert_eq!(
            limit(Some(&group), Some(24 << 30), 512 << 20).unwrap(),
            "control group /a may use 150 MiB, page cache included, and 512 MiB were read"
        );
        assert_eq!(limit(Some(&group), Some(24 << 30), 150 << 20), None);
        assert_eq!(limit(None, Some(24 << 30), 512 << 20), None);
        assert!(
            limit(None, Some(256 << 20), 512 << 20)
                .unwrap()
                .contains("has 256 MiB of memory")
        );
    }
}
