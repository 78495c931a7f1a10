//! The allocator's slow path, found by who calls whom.
//!
//! `_int_malloc` is a local function, without a name in a stripped library. It is what malloc calls most, from several
//! places; calloc calls it too; and so do the functions behind realloc and memalign. That it is the right one is verified
//! by its arguments: malloc hands it the address of main_arena in the first, and its own request in the second.
//!
//! ```text
//! malloc ---+                                          (from 2.43 on malloc and calloc jump to a part of their own first)
//! calloc ---+--> _int_malloc(arena, request)
//! realloc --> _int_realloc --+
//! memalign -> _mid_memalign -> _int_memalign
//! ```

use std::collections::BTreeSet;

use memtrace_analysis::event::Entry;

use super::code::{Body, Code};
use super::library::{Architecture, Library};
use super::site::{Function, Site};
use super::{AllocatorCode, SlowPath, amd64, arm64};

/// Its name, where a library has kept it.
const NAME: &str = "_int_malloc";

/// What code is which entry point's; pieces that are none's are not listed.
pub(super) fn allocator_code(code: &Code<'_>) -> AllocatorCode {
    let mut whose = AllocatorCode::default();
    for &(entry, address) in &code.entries {
        let Body { pieces, ends_in } = code.body(address);
        for piece in pieces {
            whose.pieces.entry(piece).or_default().push(entry);
        }
        for function in ends_in.into_iter().filter(|&function| !code.is_entry(function)) {
            whose.ends_in.entry(function).or_default().push(entry);
        }
    }
    whose
}

/// Where to probe the slow path of a library, or why that cannot be told.
pub(super) fn slow_path(library: &Library<'_>, code: &Code<'_>, main_arena: Option<u64>) -> Result<SlowPath, String> {
    let main_arena = main_arena.ok_or("main_arena, by which it is verified, was not found")?;
    let Slow { function, times, site } = find(code, main_arena)?;
    if let Some(symbol) = library.function(NAME)
        && symbol.address != function
    {
        return Err(format!(
            "{NAME} is at {:#x} by its symbol, and at {function:#x} by who calls it",
            symbol.address
        ));
    }
    let segment = library
        .segment(function)
        .ok_or("its code is outside the executable segment")?;
    Ok(SlowPath {
        function,
        offset: site.offset,
        file_offset: segment.file_offset + (function - segment.address) + site.offset,
        instruction: site.instruction,
        cost: site.cost,
        stack_moved: site.stack_moved,
        reason: format!(
            "malloc calls it {times} times, calloc, realloc and memalign do too, and hand it an arena and a request; {}",
            site.reason
        ),
    })
}

/// The slow path as its callers show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slow {
    pub function: u64,
    /// How often malloc calls it.
    pub times: usize,
    pub site: Site,
}

pub(super) fn find(code: &Code<'_>, main_arena: u64) -> Result<Slow, String> {
    let body = |entry: Entry| {
        let address = code.entry(entry);
        address
            .map(|address| code.body(address))
            .ok_or_else(|| format!("there is no {}", entry.name()))
    };
    let of_malloc = body(Entry::Malloc)?;
    let by_calloc = code.called(&body(Entry::Calloc)?);
    // What realloc and memalign call, and what that calls in turn.
    let further = |entry: Entry| -> Result<BTreeSet<u64>, String> {
        let first = code.called(&body(entry)?);
        let second = first
            .keys()
            .filter(|&&function| !code.is_entry(function))
            .flat_map(|&function| code.called(&code.body(function)).into_keys());
        Ok(second.chain(first.keys().copied()).collect())
    };
    let (by_realloc, by_memalign) = (further(Entry::Realloc)?, further(Entry::Memalign)?);

    let mut candidates: Vec<(usize, u64)> = code
        .called(&of_malloc)
        .into_iter()
        .filter(|(function, _)| {
            by_calloc.contains_key(function)
                && by_realloc.contains(function)
                && by_memalign.contains(function)
                && !code.exported.contains(function)
        })
        .map(|(function, times)| (times, function))
        .collect();
    candidates.sort_unstable();
    let Some((times, function)) = candidates.pop() else {
        return Err(String::from(
            "malloc, calloc, realloc and memalign call no local function in common",
        ));
    };
    if candidates.last().is_some_and(|&(others, _)| others == times) {
        return Err(format!("malloc calls two such functions {times} times each"));
    }
    if !code.hands_over(&of_malloc, function, main_arena) {
        return Err(format!(
            "malloc does not hand main_arena to the function at {function:#x} that it calls most"
        ));
    }
    let of_site = Function {
        code: code.bytes(function),
        address: function,
        arguments: 2,
    };
    let site = match code.architecture {
        Architecture::Amd64 => amd64::site(of_site),
        Architecture::Arm64 => arm64::site(of_site),
    };
    Ok(Slow { function, times, site })
}
