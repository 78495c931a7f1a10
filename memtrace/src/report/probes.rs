//! A probe plan for people: where each probe would sit, what a hit costs there, and why there.

use super::layout::{Align, Page, Section, Table};
use super::style::Style;
use crate::probe::{CostClass, ProbePlan, ProbeSite};

/// `library` is the file as it is to be shown.
pub fn render(library: &str, plan: &ProbePlan, style: Style) -> String {
    let mut page = Page::new(style);
    let version = plan
        .version
        .as_ref()
        .map_or_else(|| "version unknown".to_owned(), |version| format!("glibc {version}"));
    let build_id = plan
        .build_id
        .as_ref()
        .map_or_else(String::new, |id| format!("   build-id {id}"));
    page.headline(library, &format!("   {version}{build_id}"));
    page.gap();
    let mut sites = Section::new("PROBES");
    sites.line("one for each entry point, on the cheapest instruction that still sees the arguments");
    sites.table(&table(&plan.sites));
    page.section(&sites);
    page.gap();
    page.section(&slow_path(plan));
    page.gap();
    page.section(&books(plan));
    let mut limits = Section::new("NOT KNOWN");
    for limit in &plan.limits {
        limits.line(limit.clone());
    }
    page.section(&limits);
    page.finish()
}

fn table(sites: &[ProbeSite]) -> Table {
    let mut table = Table::new(&COLUMNS);
    for site in sites {
        table.row(row(&Row {
            name: &site.symbol,
            offset: site.offset,
            file_offset: site.file_offset,
            instruction: &site.instruction,
            cost: site.cost,
            reason: &site.reason,
        }));
    }
    table
}

/// What `--depth slow-path` probes beside the entry points that no thread cache serves.
fn slow_path(plan: &ProbePlan) -> Section {
    let mut section = Section::new("SLOW PATH");
    let slow = match &plan.slow_path {
        Ok(slow) => slow,
        Err(reason) => {
            section.line(format!("not found: {reason}"));
            return section;
        }
    };
    let mut table = Table::new(&COLUMNS);
    table.row(row(&Row {
        name: "_int_malloc",
        offset: slow.offset,
        file_offset: slow.file_offset,
        instruction: &slow.instruction,
        cost: slow.cost,
        reason: &slow.reason,
    }));
    section.line(format!("at {:#x}: what thread caches cannot serve", slow.function));
    section.table(&table);
    section
}

const COLUMNS: [(&str, Align); 7] = [
    ("function", Align::Left),
    ("offset", Align::Right),
    ("in file", Align::Right),
    ("instruction", Align::Left),
    ("the kernel", Align::Left),
    ("ns a hit", Align::Right),
    ("why", Align::Left),
];

/// A probe of either kind.
struct Row<'a> {
    name: &'a str,
    offset: u64,
    file_offset: u64,
    instruction: &'a str,
    cost: CostClass,
    reason: &'a str,
}

fn row(probe: &Row<'_>) -> Vec<String> {
    let (from, to) = probe.cost.typical_ns();
    vec![
        probe.name.to_owned(),
        format!("+{}", probe.offset),
        format!("{:#x}", probe.file_offset),
        probe.instruction.to_owned(),
        probe.cost.to_string(),
        format!("{from}-{to}"),
        probe.reason.to_owned(),
    ]
}

/// What is read of glibc's own books, by virtual address.
fn books(plan: &ProbePlan) -> Section {
    let address = |address: Option<u64>| address.map_or_else(|| "not found".to_owned(), |at| format!("{at:#x}"));
    let mut section = Section::new("BOOKS");
    section.line(format!(
        "main_arena {}   mp_ {}",
        address(plan.main_arena),
        address(plan.mp)
    ));
    section
}
