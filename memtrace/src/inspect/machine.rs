//! What the machine and the control group have left: /proc/meminfo and the memory controller, versions 1 and 2.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use memtrace_analysis::glibc::look::{Cgroup, Machine};

use crate::sentence;

/// Above this a limit of version 1 means none.
const NO_LIMIT: u64 = 1 << 60;

pub fn machine() -> Option<Machine> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let fields = numbers(&text);
    let bytes = |name: &str| fields.get(name).map(|kib| kib * 1024);
    Some(Machine {
        total: bytes("MemTotal:")?,
        free: bytes("MemFree:")?,
        available: bytes("MemAvailable:")?,
        page_cache: bytes("Cached:")? + bytes("Buffers:").unwrap_or(0),
        swap_total: bytes("SwapTotal:").unwrap_or(0),
        swap_free: bytes("SwapFree:").unwrap_or(0),
    })
}

/// The group that a process's memory is charged to, or why it cannot be told.
pub fn cgroup(pid: u32) -> Result<Cgroup, String> {
    let path = format!("/proc/{pid}/cgroup");
    let groups =
        fs::read_to_string(&path).map_err(|error| format!("{path} cannot be read: {}", sentence::of_error(&error)))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let lines: Vec<(&str, &str)> = groups
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((parts.next()?, parts.next()?))
        })
        .collect();
    let legacy = lines
        .iter()
        .find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"));
    let (version, group) = match legacy {
        Some((_, group)) => (1, *group),
        None => match lines.iter().find(|(controllers, _)| controllers.is_empty()) {
            Some((_, group)) => (2, *group),
            None => return Err(String::from("it belongs to no control group with a memory controller")),
        },
    };
    let root = controller_mount(&mounts, version)
        .ok_or_else(|| format!("the memory controller (cgroup version {version}) is not mounted here"))?;
    read_group(&root, group, version).ok_or_else(|| {
        format!(
            "control group {group:?} has no memory figures below {} (the root group has none)",
            root.display()
        )
    })
}

/// Where the hierarchy of the memory controller is mounted.
fn controller_mount(mounts: &str, version: u32) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let point = left.split(' ').nth(4)?;
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let found = match version {
            2 => kind == "cgroup2",
            _ => kind == "cgroup" && options.split(',').any(|name| name == "memory"),
        };
        found.then(|| PathBuf::from(point.replace("\\040", " ")))
    })
}

/// Names of the files of each version.
struct Names {
    current: &'static str,
    limit: &'static str,
    anonymous: &'static str,
    file: &'static str,
    inactive_file: &'static str,
    active_file: &'static str,
    shared: &'static str,
}

const V1: Names = Names {
    current: "memory.usage_in_bytes",
    limit: "memory.limit_in_bytes",
    anonymous: "total_rss",
    file: "total_cache",
    inactive_file: "total_inactive_file",
    active_file: "total_active_file",
    shared: "total_shmem",
};
const V2: Names = Names {
    current: "memory.current",
    limit: "memory.max",
    anonymous: "anon",
    file: "file",
    inactive_file: "inactive_file",
    active_file: "active_file",
    shared: "shmem",
};

fn read_group(root: &Path, group: &str, version: u32) -> Option<Cgroup> {
    let names = if version == 1 { &V1 } else { &V2 };
    let own = root.join(group.trim_start_matches('/'));
    let current = number(&own.join(names.current))?;
    let stat = stat(&own);
    let figure = |name: &str| stat.get(name).copied().unwrap_or(0);
    let inactive_file = figure(names.inactive_file);
    let mut found = Cgroup {
        path: group.to_owned(),
        version,
        current,
        anonymous: figure(names.anonymous),
        file: figure(names.file),
        inactive_file,
        active_file: figure(names.active_file),
        shared: figure(names.shared),
        slab_reclaimable: figure("slab_reclaimable"),
        working_set: current.saturating_sub(inactive_file),
        oom_kills: oom_kills(&own),
        ..Cgroup::default()
    };
    // The tightest limit may be a parent's.
    let mut at = own.as_path();
    loop {
        if let Some(limit) = number(&at.join(names.limit)).filter(|limit| *limit < NO_LIMIT)
            && found.limit.is_none_or(|tightest| limit < tightest)
        {
            let stat = self::stat(at);
            let figure = |name: &str| stat.get(name).copied().unwrap_or(0);
            let used = number(&at.join(names.current))?;
            let reclaimable = figure(names.inactive_file) + figure(names.active_file) + figure("slab_reclaimable");
            found.limit = Some(limit);
            found.limit_path = at.strip_prefix(root).ok().map(|path| format!("/{}", path.display()));
            found.limit_current = Some(used);
            found.limit_reclaimable = Some(reclaimable);
            found.until_oom = Some(limit.saturating_sub(used.saturating_sub(reclaimable)));
        }
        match at.parent() {
            Some(parent) if at != root => at = parent,
            _ => return Some(found),
        }
    }
}

fn stat(group: &Path) -> BTreeMap<String, u64> {
    numbers(&fs::read_to_string(group.join("memory.stat")).unwrap_or_default())
}

fn oom_kills(group: &Path) -> Option<u64> {
    let events = fs::read_to_string(group.join("memory.events"))
        .or_else(|_| fs::read_to_string(group.join("memory.oom_control")))
        .ok()?;
    numbers(&events).get("oom_kill").copied()
}

/// A file that holds one number; "max" is none.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Lines of a name and a number.
fn numbers(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(root: &Path, name: &str, files: &[(&str, &str)]) {
        let group = root.join(name);
        fs::create_dir_all(&group).unwrap();
        for (file, text) in files {
            fs::write(group.join(file), text).unwrap();
        }
    }

    #[test]
    fn the_tightest_limit_on_the_way_up_counts() {
        let root = std::env::temp_dir().join(format!("memtrace-cgroup2-{}", std::process::id()));
        group(
            &root,
            "pod",
            &[
                ("memory.current", "900\n"),
                ("memory.max", "1000\n"),
                (
                    "memory.stat",
                    "anon 500\nfile 300\ninactive_file 100\nactive_file 200\nslab_reclaimable 50\n",
                ),
            ],
        );
        group(
            &root,
            "pod/app",
            &[
                ("memory.current", "700\n"),
                ("memory.max", "max\n"),
                (
                    "memory.stat",
                    "anon 400\nfile 250\nshmem 10\ninactive_file 90\nactive_file 150\nslab_reclaimable 20\n",
                ),
                ("memory.events", "low 0\noom 1\noom_kill 3\n"),
            ],
        );
        let found = read_group(&root, "/pod/app", 2).unwrap();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            (found.current, found.anonymous, found.file, found.working_set),
            (700, 400, 250, 610)
        );
        assert_eq!((found.limit, found.limit_path.as_deref()), (Some(1000), Some("/pod")));
        assert_eq!((found.limit_reclaimable, found.until_oom), (Some(350), Some(450)));
        assert_eq!(found.oom_kills, Some(3));
    }

    #[test]
    fn version_1_has_other_names() {
        let root = std::env::temp_dir().join(format!("memtrace-cgroup1-{}", std::process::id()));
        group(
            &root,
            "",
            &[
                ("memory.usage_in_bytes", "5000"),
                ("memory.limit_in_bytes", "9223372036854771712"),
            ],
        );
        group(
            &root,
            "app",
            &[
                ("memory.usage_in_bytes", "700\n"),
                ("memory.limit_in_bytes", "800\n"),
                (
                    "memory.stat",
                    "cache 1\ntotal_cache 250\ntotal_rss 400\ntotal_inactive_file 90\ntotal_active_file 150\n",
                ),
            ],
        );
        let found = read_group(&root, "/app", 1).unwrap();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            (found.anonymous, found.file, found.limit, found.until_oom),
            (400, 250, Some(800), Some(340))
        );
    }

    #[test]
    fn the_controller_is_found_among_the_mounts() {
        let mounts = "29 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
            35 23 0:33 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n";
        assert_eq!(
            controller_mount(mounts, 1),
            Some(PathBuf::from("/sys/fs/cgroup/memory"))
        );
        assert_eq!(
            controller_mount(mounts, 2),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
    }
}
