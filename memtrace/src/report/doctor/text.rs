//! What the doctor found, for people.

use super::{DepthFound, Doctor, State};
use crate::report::layout::{Align, Page, Section, Table};
use crate::report::style::Style;
use crate::report::text::nothing_added;
use crate::report::units::{count, pages, percent, short};

pub fn render(doctor: &Doctor, style: Style) -> String {
    let mut page = Page::new(style);
    let verdict = if doctor.works {
        "everything works here"
    } else {
        "something is missing"
    };
    let whom = doctor.target.as_ref().map_or_else(String::new, |target| {
        format!(
            "   {} (pid {}), seccomp {}",
            target.name,
            target.pid,
            seccomp(target.seccomp)
        )
    });
    page.headline("memtrace doctor:", &format!(" {verdict}{whom}"));
    page.gap();
    page.section(&depths(doctor));
    page.gap();
    page.section(&checks(doctor));
    page.gap();
    page.section(&costs(doctor));
    page.section(&memory(doctor));
    page.gap();
    page.section(&libc(doctor));
    page.finish()
}

const fn seccomp(mode: u8) -> &'static str {
    match mode {
        0 => "off",
        1 => "strict",
        _ => "filter",
    }
}

fn depths(doctor: &Doctor) -> Section {
    let mut section = Section::new("DEPTHS");
    section.line(match &doctor.target {
        Some(target) => format!(
            "what {} (pid {}) would pay for each, by a short look",
            target.name, target.pid
        ),
        None => "what works here; --pid PID tells what each would cost a process".to_owned(),
    });
    // Without a process no cost is known, and the line above has said so.
    let why = |depth: &DepthFound| {
        let unknown = depth.cost_unknown.as_ref().filter(|_| doctor.target.is_some());
        depth.because.as_ref().or(unknown).cloned().unwrap_or_default()
    };
    let mut columns = vec![("--depth", Align::Left), ("works", Align::Left)];
    if doctor.target.is_some() {
        columns.extend([
            ("hits a second", Align::Right),
            ("system calls a second", Align::Right),
            ("of its CPU time", Align::Right),
        ]);
    }
    if doctor.depths.iter().any(|depth| !why(depth).is_empty()) {
        columns.push(("why", Align::Left));
    }
    let mut table = Table::new(&columns);
    for depth in &doctor.depths {
        let mut row = vec![depth.depth.clone(), if depth.works { "yes" } else { "no" }.to_owned()];
        if doctor.target.is_some() {
            let dash = || "-".to_owned();
            for rate in [depth.hits_per_second, depth.syscalls_per_second] {
                row.push(rate.map_or_else(dash, |rate| count(rate.round() as u64)));
            }
            row.push(depth.cost_share.map_or_else(dash, percent));
        }
        row.push(why(depth));
        row.truncate(columns.len());
        table.row(row);
    }
    section.table(&table);
    section
}

fn checks(doctor: &Doctor) -> Section {
    let mut section = Section::new("CHECKS");
    for check in &doctor.checks {
        let mark = match check.state {
            State::Ok => "ok",
            State::Missing => "MISSING",
            State::Less => "less",
            State::Unknown => "unknown",
        };
        let line = format!("{mark:<8} {}: {}", check.name, check.found);
        match check.state {
            State::Ok => section.line(line),
            _ => section.warning(line),
        }
        if let Some(advice) = &check.advice {
            section.line(format!("         -> {advice}"));
        }
    }
    section
}

fn costs(doctor: &Doctor) -> Section {
    let mut section = Section::new("A HIT");
    match (doctor.hit.ns, &doctor.hit.unknown) {
        (Some(ns), _) => section.line(format!(
            "{} ns of a cheap probe, measured here; probes that come and go stop a running thread for {} at most",
            count(ns.round() as u64),
            short(doctor.hit.pause_ns.unwrap_or(0))
        )),
        (None, why) => section.line(format!(
            "not measured: {}",
            why.as_deref().unwrap_or("no reason is known")
        )),
    }
    if let Some(ns) = doctor.hit.syscall_ns {
        section.line(nothing_added(ns).unwrap_or_else(|| {
            format!(
                "at every depth each system call of this machine takes about {} ns longer",
                count(ns.round() as u64)
            )
        }));
    }
    section
}

fn memory(doctor: &Doctor) -> Section {
    let mut section = Section::new("KERNEL MEMORY");
    let maps: Vec<String> = doctor
        .memory
        .maps
        .iter()
        .map(|map| format!("{} {}", map.name, pages(map.bytes)))
        .collect();
    section.line(format!(
        "{} at most, taken when a trace begins and given back at its end: {}",
        pages(doctor.memory.bytes),
        maps.join(", ")
    ));
    section
}

fn libc(doctor: &Doctor) -> Section {
    let mut section = Section::new("LIBC");
    let Some(libc) = &doctor.libc else {
        section.line(doctor.libc_unknown.clone().unwrap_or_default());
        return section;
    };
    section.line(format!(
        "{}: {}, {} {}{}",
        libc.of,
        libc.path,
        libc.allocator,
        libc.version.as_deref().unwrap_or("of unknown version"),
        libc.build_id
            .as_ref()
            .map_or_else(String::new, |id| format!(", build-id {id}"))
    ));
    let mut table = Table::new(&[
        ("probe", Align::Left),
        ("offset", Align::Right),
        ("instruction", Align::Left),
        ("the kernel", Align::Left),
        ("ns a hit", Align::Right),
    ]);
    for probe in &libc.probes {
        table.row(vec![
            probe.function.clone(),
            format!("+{}", probe.offset),
            probe.instruction.clone(),
            probe.cost_class.clone(),
            probe
                .expected_ns
                .map_or_else(|| "-".to_owned(), |ns| count(ns.round() as u64)),
        ]);
    }
    section.table(&table);
    section
}
