//! A probe plan for people: where each probe would sit, what a hit costs there, and why there.

use super::layout::{Align, Page, Section, Table};
use super::style::Style;
use crate::probe::{ProbePlan, ProbeSite};

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
    page.section(&books(plan));
    let mut limits = Section::new("NOT KNOWN");
    for limit in &plan.limits {
        limits.line(limit.clone());
    }
    page.section(&limits);
    page.finish()
}

fn table(sites: &[ProbeSite]) -> Table {
    let mut table = Table::new(&[
        ("function", Align::Left),
        ("offset", Align::Right),
        ("in file", Align::Right),
        ("instruction", Align::Left),
        ("the kernel", Align::Left),
        ("ns a hit", Align::Right),
        ("why", Align::Left),
    ]);
    for site in sites {
        let (from, to) = site.cost.typical_ns();
        table.row(vec![
            site.symbol.clone(),
            format!("+{}", site.offset),
            format!("{:#x}", site.file_offset),
            site.instruction.clone(),
            site.cost.to_string(),
            format!("{from}-{to}"),
            site.reason.clone(),
        ]);
    }
    table
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
