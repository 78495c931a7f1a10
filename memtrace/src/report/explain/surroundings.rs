//! What surrounds the heap: the rest of the process's memory, the machine, the control group.

use memtrace_analysis::glibc::look::{Cgroup, Look, Machine};
use memtrace_analysis::glibc::words::{bytes, percent};

use super::text::{WIDTH, shortened};
use crate::report::layout::Section;
use crate::report::units;

/// Parts that are shown.
const PARTS: usize = 6;

pub(super) fn rest_of_memory(look: &Look) -> Section {
    let mut section = Section::new("BESIDE MALLOC");
    let parts = &look.resident.parts;
    for part in parts.iter().take(PARTS) {
        let name = part
            .name
            .as_deref()
            .map(|name| format!("  {}", shortened(name, 44)))
            .unwrap_or_default();
        section.line(format!("{:>10}  {}{name}", bytes(part.bytes), part.kind.words()));
    }
    if parts.len() > PARTS {
        let rest: u64 = parts[PARTS..].iter().map(|part| part.bytes).sum();
        section.faint(format!(
            "{:>10}  in {} more",
            bytes(rest),
            units::count((parts.len() - PARTS) as u64)
        ));
    }
    let resident = &look.resident;
    let mut also = Vec::new();
    if resident.swapped > 0 {
        also.push(format!("{} in swap", bytes(resident.swapped)));
    }
    if resident.lazily_freed > 0 {
        also.push(format!(
            "{} the kernel may take at any time (MADV_FREE)",
            bytes(resident.lazily_freed)
        ));
    }
    if resident.huge > 0 {
        also.push(format!("{} in transparent huge pages", bytes(resident.huge)));
    }
    if resident.hugetlb > 0 {
        also.push(format!(
            "{} in hugetlbfs pages, not counted as resident",
            bytes(resident.hugetlb)
        ));
    }
    if !also.is_empty() {
        section.wrapped(&format!("Also: {}.", also.join("; ")), WIDTH);
    }
    section
}

pub(super) fn machine(look: &Look) -> Section {
    let mut section = Section::new("MACHINE");
    if let Some(machine) = look.machine {
        for text in machine_lines(&machine) {
            section.wrapped(&text, WIDTH);
        }
    }
    if let Some(group) = &look.cgroup {
        for text in group_lines(group) {
            section.wrapped(&text, WIDTH);
        }
    }
    section
}

/// Free memory next to nothing is healthy where available memory is not.
fn machine_lines(machine: &Machine) -> Vec<String> {
    let Machine {
        total,
        free,
        available,
        page_cache,
        swap_total,
        swap_free,
    } = *machine;
    let judgement = if available < total / 20 {
        "that is little"
    } else if free < total / 20 && page_cache > total / 10 {
        "little is free since page cache fills the rest, which is healthy: it goes when it is needed"
    } else {
        "plenty"
    };
    let mut lines = vec![format!(
        "{} of {} available ({}): {judgement}",
        bytes(available),
        bytes(total),
        percent(available, total)
    )];
    lines.push(format!("free {}, page cache {}", bytes(free), bytes(page_cache)));
    if swap_total > 0 {
        lines.push(format!(
            "swap {} of {} used",
            bytes(swap_total - swap_free.min(swap_total)),
            bytes(swap_total)
        ));
    }
    lines
}

fn group_lines(group: &Cgroup) -> Vec<String> {
    let mut lines = vec![format!(
        "control group {}: {} charged (anonymous {}, files {}, of these inactive {}), working set {}",
        group.path,
        bytes(group.current),
        bytes(group.anonymous),
        bytes(group.file),
        bytes(group.inactive_file),
        bytes(group.working_set)
    )];
    match (group.limit, group.until_oom) {
        (Some(limit), Some(left)) => lines.push(format!(
            "limit {}{}: {} could be reclaimed at once, {} are left until the OOM killer comes",
            bytes(limit),
            group
                .limit_path
                .as_ref()
                .filter(|path| **path != group.path)
                .map_or_else(String::new, |path| format!(" of {path}")),
            bytes(group.limit_reclaimable.unwrap_or(0)),
            bytes(left)
        )),
        _ => lines.push("no limit on it".to_owned()),
    }
    if let Some(kills) = group.oom_kills.filter(|kills| *kills > 0) {
        lines.push(format!(
            "the OOM killer has killed here {}",
            if kills == 1 {
                "once".into()
            } else {
                format!("{kills} times")
            }
        ));
    }
    lines
}
