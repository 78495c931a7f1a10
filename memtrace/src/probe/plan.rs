//! From a library to the plan: its entry points, one site for each, and what else the kernel side has to know.

use std::fmt;

use memtrace_analysis::event::Entry;
use memtrace_analysis::glibc::initial_pointer;

use super::books::Books;
use super::code::Code;
use super::library::{Architecture, Library, Symbol, TextSegment};
use super::site::Function;
use super::{Hook, ProbePlan, ProbeSite, amd64, arm64, slow};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    NotElf,
    /// The bytes are an ELF file for 32-bit processes.
    ThirtyTwoBit,
    Machine(String),
    Malformed(String),
    /// A function without which nothing can be traced has no symbol.
    NoSymbol(&'static str),
    /// A symbol points outside the executable segments.
    NoCode(String),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotElf => write!(f, "it is not an ELF file"),
            Self::ThirtyTwoBit => write!(f, "it is for 32-bit processes, and memtrace traces 64-bit ones"),
            Self::Machine(what) => write!(f, "it is for {what}, and memtrace knows amd64 and arm64"),
            Self::Malformed(what) => write!(f, "its ELF structures cannot be read: {what}"),
            Self::NoSymbol(name) => write!(f, "it has no symbol {name}"),
            Self::NoCode(name) => write!(f, "its symbol {name} points to no code"),
        }
    }
}

impl std::error::Error for PlanError {}

/// Longest piece of code looked at for a function whose symbol has no size.
const UNSIZED: u64 = 256;

impl ProbePlan {
    /// The plan for the glibc, or the program with a glibc inside, whose file holds `bytes`.
    pub fn for_library(bytes: &[u8]) -> Result<Self, PlanError> {
        let library = Library::parse(bytes)?;
        let mut limits = Vec::new();
        let mut sites: Vec<ProbeSite> = Vec::new();
        for entry in Entry::ALL {
            let Some(symbol) = library.function(entry.name()) else {
                // Nothing can call what is not there; but these two are always there.
                match entry {
                    Entry::Malloc | Entry::Free => return Err(PlanError::NoSymbol(entry.name())),
                    _ => continue,
                }
            };
            if sites.iter().all(|site| site.function != symbol.address) {
                sites.push(probe_site(&library, entry, symbol)?);
            }
        }

        let malloc = sites[0].function;
        let text = library
            .segment(malloc)
            .ok_or_else(|| PlanError::NoCode(String::from("malloc")))?;
        let version = library.version();
        let books = Books::of(&library, &mut limits);
        let code = Code::of(&library);
        let own = own_frees(&library, text, &mut limits);
        Ok(Self {
            hooks: version
                .as_deref()
                .filter(|version| has_malloc_hooks(version))
                .and_then(|_| Some([hook(&library, "__malloc_hook")?, hook(&library, "__realloc_hook")?])),
            version,
            build_id: library.build_id.clone(),
            sites,
            text: (text.address, text.address + text.bytes.len() as u64),
            main_arena: books.main_arena,
            mp: books.mp,
            top_offset: books.top_offset,
            huge_page_offset: books.huge_page_offset,
            first_free_twice: own.first_free_twice,
            spurious_free_returns: own.returns,
            slow_path: code.as_ref().map_or_else(
                || Err(String::from("there are no unwind tables")),
                |code| slow::slow_path(&library, code, books.main_arena),
            ),
            code: code.as_ref().map(slow::allocator_code).unwrap_or_default(),
            limits,
        })
    }
}

fn probe_site(library: &Library<'_>, entry: Entry, symbol: &Symbol) -> Result<ProbeSite, PlanError> {
    let segment = library
        .segment(symbol.address)
        .ok_or_else(|| PlanError::NoCode(symbol.name.clone()))?;
    let begin = (symbol.address - segment.address) as usize;
    let size = if symbol.size == 0 { UNSIZED } else { symbol.size };
    let code = &segment.bytes[begin..];
    let code = &code[..code.len().min(usize::try_from(size).unwrap_or(usize::MAX))];
    let function = Function {
        code,
        address: symbol.address,
        arguments: arguments(entry),
    };
    let site = match library.architecture {
        Architecture::Amd64 => amd64::site(function),
        Architecture::Arm64 => arm64::site(function),
    };
    Ok(ProbeSite {
        entry,
        symbol: symbol.name.clone(),
        function: symbol.address,
        offset: site.offset,
        file_offset: segment.file_offset + begin as u64 + site.offset,
        instruction: site.instruction,
        cost: site.cost,
        stack_moved: site.stack_moved,
        first_argument: site.first_argument,
        reason: site.reason,
    })
}

fn hook(library: &Library<'_>, name: &str) -> Option<Hook> {
    let variable = library.object(name)?.address;
    let function = initial_pointer(library.bytes, variable)?;
    Some(Hook { variable, function })
}

/// Until 2.33, malloc and realloc begin with a hook that sets malloc up, takes itself away, and jumps back to the entry.
fn has_malloc_hooks(version: &str) -> bool {
    version
        .strip_prefix("2.")
        .and_then(|minor| minor.parse::<u32>().ok())
        .is_some_and(|minor| minor < 34)
}

/// Arguments passed in registers.
const fn arguments(entry: Entry) -> usize {
    match entry {
        Entry::Malloc | Entry::Valloc | Entry::Pvalloc | Entry::Free | Entry::MallocTrim => 1,
        Entry::Calloc | Entry::Realloc | Entry::Memalign | Entry::AlignedAlloc => 2,
        Entry::PosixMemalign => 3,
    }
}

/// What glibc itself does to `free` without anybody having asked.
struct OwnFrees {
    first_free_twice: bool,
    returns: Vec<u64>,
}

/// Functions, local to glibc, that free a thread's cache when it ends; a static program may have kept their names.
const THREAD_EXIT: [&str; 4] = [
    "__malloc_arena_thread_freeres",
    "tcache_thread_shutdown",
    "tcache_thread_shutdown.part.0",
    "arena_thread_freeres",
];

/// All of libc calls free through its linkage table, so that a program can put another in its place; only malloc's own
/// code calls it directly. Up to 2.42 that is thread exit and realloc(p, 0) (which is told apart as a second hit); from
/// 2.43 thread exit has a way of its own, and the setting up of a thread's cache jumps back to free.
fn own_frees(library: &Library<'_>, text: TextSegment<'_>, limits: &mut Vec<String>) -> OwnFrees {
    let Some(free) = library.function("free") else {
        return OwnFrees {
            first_free_twice: false,
            returns: Vec::new(),
        };
    };
    let branches = match library.architecture {
        Architecture::Amd64 => amd64::direct_branches(text.bytes, text.address, free.address),
        Architecture::Arm64 => arm64::direct_branches(text.bytes, text.address, free.address),
    };
    let within = |name: &str, address: u64| {
        library
            .functions()
            .any(|f| f.name == name && (f.address..f.address + f.size).contains(&(address - 1)))
    };
    if library.shared {
        let mut returns: Vec<u64> = branches.calls;
        returns.retain(|&behind| !within("realloc", behind));
        let first_free_twice = branches.jumps.iter().any(|&behind| !within("free", behind));
        return OwnFrees {
            first_free_twice,
            returns,
        };
    }
    // A static program calls free directly everywhere: names have to tell.
    let mut returns: Vec<u64> = branches.calls;
    returns.retain(|&behind| THREAD_EXIT.iter().any(|name| within(name, behind)));
    let first_free_twice = library.functions().any(|f| f.name.starts_with("tcache_free_init"));
    if returns.is_empty() && !first_free_twice {
        limits.push(String::from(
            "frees that glibc makes itself when a thread ends cannot be told apart in this static program",
        ));
    }
    OwnFrees {
        first_free_twice,
        returns,
    }
}
