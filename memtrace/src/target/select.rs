//! Which processes are meant by a name or a control group.

use std::path::Path;

use super::TargetError;
use super::process;

/// The kernel keeps this many bytes of a process's name.
const KERNEL_NAME: usize = 15;

/// Processes with this name (as `ps -e` shows it), memtrace itself left out, in the order of their ids.
pub fn pids_by_name(name: &str) -> Result<Vec<u32>, TargetError> {
    let wanted = &name.as_bytes()[..name.len().min(KERNEL_NAME)];
    let pids = matching(|pid| {
        let comm = std::fs::read(process::path(pid, "comm")).ok()?;
        Some(comm.strip_suffix(b"\n").unwrap_or(&comm) == wanted)
    })?;
    if pids.is_empty() {
        Err(TargetError::NoProcessNamed { name: name.to_owned() })
    } else {
        Ok(pids)
    }
}

/// Processes in this control group and those below it. The path is one of /proc/PID/cgroup, or the group's folder under
/// /sys/fs/cgroup.
pub fn pids_in_cgroup(path: &str) -> Result<Vec<u32>, TargetError> {
    let wanted = group(path);
    let pids = matching(|pid| {
        let groups = std::fs::read_to_string(process::path(pid, "cgroup")).ok()?;
        Some(groups.lines().any(|line| is_in(line, &wanted)))
    })?;
    if pids.is_empty() {
        Err(TargetError::NoProcessInCgroup { path: path.to_owned() })
    } else {
        Ok(pids)
    }
}

/// The group as /proc/PID/cgroup writes it: an absolute path without the mount point (and the controller's name that
/// follows it in version 1).
fn group(path: &str) -> String {
    let below = path.strip_prefix("/sys/fs/cgroup").unwrap_or(path).trim_matches('/');
    format!("/{below}")
}

/// Whether a line of /proc/PID/cgroup, "ID:CONTROLLERS:PATH", names the group or one below it.
fn is_in(line: &str, group: &str) -> bool {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
        return false;
    };
    let below = |group: &str| Path::new(path).starts_with(group);
    // Version 1 mounts each controller under its name: /sys/fs/cgroup/memory/GROUP.
    let controller = controllers
        .split(',')
        .find_map(|controller| group.strip_prefix(&format!("/{controller}/")));
    below(group) || (!controllers.is_empty() && controller.is_some_and(|group| below(&format!("/{group}"))))
}

fn matching(is_meant: impl Fn(u32) -> Option<bool>) -> Result<Vec<u32>, TargetError> {
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").map_err(|error| TargetError::ProcList { error })?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // A process that is gone by the time it is looked at is no longer meant.
    let mut pids: Vec<u32> = pids.filter(|&pid| pid != own && is_meant(pid) == Some(true)).collect();
    pids.sort_unstable();
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_either_path() {
        let check =
            |line: &str, path: &str, expected: bool| assert_eq!(is_in(line, &group(path)), expected, "{line} {path}");
        check(
            "0::/system.slice/nginx.service",
            "/sys/fs/cgroup/system.slice/nginx.service",
            true,
        );
        check("0::/system.slice/nginx.service", "/system.slice/nginx.service/", true);
        check("0::/system.slice/nginx.service", "system.slice", true);
        check("0::/system.slice/nginx.service", "/system.slice/nginx", false);
        check("4:memory:/docker/abc", "/sys/fs/cgroup/memory/docker/abc", true);
        check("4:cpu,cpuacct:/docker/abc", "/sys/fs/cgroup/cpuacct/docker", true);
        check("4:memory:/docker/abc", "/docker", true);
        check("4:memory:/docker/abc", "/sys/fs/cgroup/cpu/docker", false);
        check("0::/a:b/c", "/a:b", true);
        check("nonsense", "/", false);
    }

    #[test]
    fn an_unknown_name_is_an_error() {
        let error = pids_by_name("no-such-name-here").unwrap_err();
        assert_eq!(error.to_string(), "no process is named no-such-name-here");
    }
}
