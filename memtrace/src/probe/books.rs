//! Where glibc keeps its books: main_arena, mp_, and `top` in the former.

use memtrace_analysis::glibc::{Anatomy, Machine, Version};

use super::library::{Architecture, Library};

/// Virtual addresses, and the offsets of `top` in malloc_state and of `hp_pagesize` in malloc_par.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Books {
    pub main_arena: Option<u64>,
    pub mp: Option<u64>,
    pub top_offset: Option<u32>,
    pub huge_page_offset: Option<u32>,
}

impl Books {
    /// What is not known is said in `limits`.
    pub fn of(library: &Library<'_>, limits: &mut Vec<String>) -> Self {
        let unsupported = match Anatomy::of_library(library.bytes) {
            Ok(anatomy) => return Self::from(anatomy),
            Err(unsupported) => unsupported,
        };
        // A static program has no banner in it, but where it has kept its symbols, these name what is sought, and their
        // sizes are those of the structures.
        if let Some((oldest, newest)) = by_symbols(library) {
            limits.push(format!(
                "the release of glibc is not said in the file; by the sizes of its structures it is one of {} to {}",
                oldest.version, newest.version
            ));
            return Self::from(newest);
        }
        if library.version().is_none() {
            limits.push(String::from("the release of glibc is not said in the file"));
        }
        limits.push(format!(
            "arenas and thresholds cannot be read from the process: {unsupported}"
        ));
        Self::default()
    }
}

impl From<Anatomy> for Books {
    fn from(anatomy: Anatomy) -> Self {
        Self {
            main_arena: Some(anatomy.main_arena),
            mp: Some(anatomy.mp),
            top_offset: u32::try_from(anatomy.malloc_state.top).ok(),
            huge_page_offset: anatomy
                .malloc_par
                .hp_pagesize
                .and_then(|offset| u32::try_from(offset).ok()),
        }
    }
}

/// The oldest and the newest release whose structures have the sizes of the symbols; they agree on where the fields are.
fn by_symbols(library: &Library<'_>) -> Option<(Anatomy, Anatomy)> {
    let (mp, main_arena) = (library.object("mp_")?, library.object("main_arena")?);
    let machine = match library.architecture {
        Architecture::Amd64 => Machine::Amd64,
        Architecture::Arm64 => Machine::Arm64,
    };
    let minors = Version::OLDEST.minor..=Version::NEWEST.minor;
    let mut fitting = minors
        .map(|minor| Anatomy::known(machine, Version { major: 2, minor }, mp.address, main_arena.address))
        .filter(|anatomy| anatomy.malloc_par.size == mp.size && anatomy.malloc_state.size == main_arena.size);
    let oldest = fitting.next()?;
    let newest = fitting.next_back().unwrap_or(oldest);
    let agree = oldest.malloc_state.top == newest.malloc_state.top
        && oldest.malloc_par.hp_pagesize == newest.malloc_par.hp_pagesize;
    agree.then_some((oldest, newest))
}
