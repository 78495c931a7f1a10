//! What the trace took from the process, and for how long what was watched.

use memtrace_analysis::report::{CostSection, Coverage, DepthTimes, Report};

use crate::report::layout::Section;
use crate::report::units::{count, lasting, percent, plural, short};

pub fn cost(report: &Report) -> Section {
    let mut section = Section::new("COST");
    if let Some(cost) = &report.cost {
        let automatic = report.coverage.depth_automatic;
        section.line(headline(cost, automatic));
        if let (Some(share), Some(most)) = (cost.share, cost.max_share)
            && share > most
        {
            if automatic {
                section.warning(format!("more than the limit of {}", percent(most)));
            } else {
                section.line(format!("--depth auto would have kept it below {}", percent(most)));
            }
        }
    }
    if let Some(line) = depths(&report.coverage) {
        section.line(line);
    }
    if let Some(line) = report
        .cost
        .as_ref()
        .and_then(|cost| system_calls(cost, &report.coverage))
    {
        section.line(line);
    }
    if let Some(cost) = &report.cost
        && cost.attach_ns > 0
    {
        section.faint(format!(
            "probes put in place within {}{}{}",
            short(cost.attach_ns),
            if cost.detach_ns > 0 {
                format!(", taken away within {}", short(cost.detach_ns))
            } else {
                String::new()
            },
            match cost.pause_ns {
                Some(pause) => format!("; a running thread saw a pause of {} at most by either", short(pause)),
                None => String::new(),
            }
        ));
    }
    section
}

fn headline(cost: &CostSection, automatic: bool) -> String {
    let mut line = plural(cost.hits, "hit");
    if let Some(hit) = cost.hit_ns {
        line += &format!(
            " of {} ns (measured here): about {} of CPU time",
            count(hit.round() as u64),
            short(cost.trace_ns)
        );
    }
    if let Some(share) = cost.share.filter(|_| cost.hit_ns.is_some() || cost.hits == 0) {
        line += &format!(", {} of the process's {}", percent(share), lasting(cost.cpu_ns));
    }
    if let Some(most) = cost.max_share.filter(|_| automatic) {
        line += &format!("; the limit is {}", percent(most));
    }
    line
}

/// What is less was not told apart from nothing when it was measured; the kernel's slow way into a system call takes several
/// times as long.
const MEASURABLE_NS: f64 = 5.0;

/// Why system calls have become no longer, where they have not.
pub fn nothing_added(each_ns: f64) -> Option<String> {
    (each_ns < MEASURABLE_NS).then(|| {
        "system calls took no longer that could be measured: others trace system calls on this machine already, and while they \
         do, memtrace adds next to nothing"
            .to_owned()
    })
}

/// At most, since not each system call is counted: that would cost more than it is to tell.
fn system_calls(cost: &CostSection, coverage: &Coverage) -> Option<String> {
    let (each, all) = (cost.syscall_ns?, cost.syscalls_ns?);
    if let Some(why) = nothing_added(each) {
        return Some(why);
    }
    let share = if cost.cpu_ns > 0 {
        all as f64 / cost.cpu_ns as f64
    } else {
        0.0
    };
    Some(format!(
        "each system call took about {} ns longer{}: {} of the process's CPU time at most{}",
        count(each.round() as u64),
        if coverage.syscalls_fraction < 1.0 {
            " while system calls were watched"
        } else {
            ""
        },
        percent(share),
        if coverage.depth_automatic {
            ""
        } else {
            ", at every depth"
        },
    ))
}

/// Only where more than one was watched.
fn depths(coverage: &Coverage) -> Option<String> {
    let DepthTimes {
        calls_ns,
        slow_path_ns,
        syscalls_ns,
        nothing_ns,
    } = coverage.depths;
    let parts: Vec<String> = [
        ("every call", calls_ns),
        ("the slow path", slow_path_ns),
        ("system calls only", syscalls_ns),
        ("nothing", nothing_ns),
    ]
    .into_iter()
    .filter(|(_, ns)| *ns > 0)
    .map(|(what, ns)| format!("{what} for {}", lasting(ns)))
    .collect();
    (parts.len() > 1).then(|| {
        format!(
            "watched {}; calls were counted in {}",
            parts.join(", "),
            plural(coverage.windows, "window")
        )
    })
}
