//! What tracing leaves in the kernel if it is not taken away: BPF programs and links, and lines of tracefs's lists of
//! uprobes.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process;
use crate::workspace;

pub struct Traces(BTreeSet<String>);

/// Programs that others load meanwhile go as well, if only later.
const PATIENCE: Duration = Duration::from_secs(60);

/// tracefs is mounted for this look alone where the machine has not mounted it.
const LISTS: &str = "cd /sys/kernel/tracing && cat uprobe_events && cat uprobe_profile";
const MOUNTED: &str = "mount -t tracefs tracefs /sys/kernel/tracing && ";

impl Traces {
    pub fn look() -> Result<Self> {
        let mut objects = Command::new(workspace::target().join("release/examples/bpf_objects"));
        let mut traces: BTreeSet<String> = process::capture(&mut objects, "listing BPF programs and links")?
            .lines()
            .map(str::to_owned)
            .collect();
        let mut lists = Command::new("unshare");
        let script = if Path::new("/sys/kernel/tracing/uprobe_events").exists() {
            LISTS.to_owned()
        } else {
            format!("{MOUNTED}{LISTS}")
        };
        lists.args(["--mount", "sh", "-c", &script]);
        let lists = process::capture(&mut lists, "reading tracefs's lists of uprobes")?;
        traces.extend(lists.lines().map(|line| format!("uprobe {line}")));
        Ok(Self(traces))
    }

    fn count(&self, kind: &str) -> usize {
        self.0.iter().filter(|trace| trace.starts_with(kind)).count()
    }

    pub fn programs(&self) -> usize {
        self.count("program ")
    }

    pub fn links(&self) -> usize {
        self.count("link ")
    }

    pub fn lines(&self) -> usize {
        self.count("uprobe ")
    }

    /// What is there now and was not at the time of `self`, once all has had its time to go.
    ///
    /// Only what is there at the first look counts: what others bring later is not ours.
    pub fn wait_until_gone(&self) -> Result<Vec<String>> {
        let until = Instant::now() + PATIENCE;
        let mut left: BTreeSet<String> = Self::look()?.0.difference(&self.0).cloned().collect();
        while !left.is_empty() && Instant::now() < until {
            thread::sleep(Duration::from_millis(200));
            let now = Self::look()?.0;
            left.retain(|trace| now.contains(trace));
        }
        Ok(left.into_iter().collect())
    }
}
