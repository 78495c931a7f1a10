//! What a mapped ELF file says of itself: how it is loaded, and which allocator's names it carries.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use object::elf::{PF_X, PT_DYNAMIC, PT_INTERP, PT_LOAD};
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{Endianness, Object, ObjectSection as _, ObjectSymbol, ReadCache};

/// Names whose presence tells something; see `allocator.rs` for what.
const TELLING: [&str; 16] = [
    "malloc",
    "free",
    "__libc_malloc",
    "_int_malloc",
    "main_arena",
    "gnu_get_libc_version",
    "_r_debug",
    "mallctl",
    "je_malloc",
    "_rjem_malloc",
    "tc_malloc",
    "MallocExtension_ReleaseFreeMemory",
    "mi_malloc",
    "__asan_init",
    "__init_libc",
    "__libc_start_main",
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub segments: Vec<Segment>,
    /// It names a program interpreter (the dynamic loader).
    pub interpreter: Option<String>,
    pub dynamic: bool,
    /// Those of `TELLING` that it exports.
    pub exports: BTreeSet<&'static str>,
    /// Those of `TELLING` that it defines for itself, as far as it has kept its symbols.
    pub carries: BTreeSet<&'static str>,
    /// Virtual address of `_r_debug`, the loader's list of what is loaded.
    pub r_debug: Option<u64>,
    pub build_id: Option<String>,
    /// Made by the Go compiler.
    pub go: bool,
}

/// A PT_LOAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub address: u64,
    pub offset: u64,
    pub file_size: u64,
    pub memory_size: u64,
    pub executable: bool,
}

/// Why there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoFacts {
    /// The bytes are no ELF file: a mapped data file, for example.
    NotElf,
    ThirtyTwoBit,
    Malformed(String),
}

impl Facts {
    pub fn read(file: &File) -> Result<Self, NoFacts> {
        let mut identity = [0; 5];
        file.read_exact_at(&mut identity, 0).map_err(|_| NoFacts::NotElf)?;
        match identity {
            [0x7f, b'E', b'L', b'F', 2] => {}
            [0x7f, b'E', b'L', b'F', 1] => return Err(NoFacts::ThirtyTwoBit),
            _ => return Err(NoFacts::NotElf),
        }
        let cache = ReadCache::new(file);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).map_err(|error| NoFacts::Malformed(error.to_string()))?;
        let endian = elf.endian();
        let mut facts = Self {
            build_id: crate::elf::build_id(&elf),
            ..Self::default()
        };
        for header in elf.elf_program_headers() {
            match header.p_type(endian) {
                PT_LOAD => facts.segments.push(Segment {
                    address: header.p_vaddr(endian),
                    offset: header.p_offset(endian),
                    file_size: header.p_filesz(endian),
                    memory_size: header.p_memsz(endian),
                    executable: header.p_flags(endian) & PF_X != 0,
                }),
                PT_DYNAMIC => facts.dynamic = true,
                PT_INTERP => {
                    let path = header.interpreter(endian, &cache).ok().flatten();
                    facts.interpreter = path.map(super::printable);
                }
                _ => {}
            }
        }
        for symbol in elf.dynamic_symbols().filter(|symbol| !symbol.is_undefined()) {
            if let Some(name) = telling(&symbol) {
                facts.exports.insert(name);
                if name == "_r_debug" {
                    facts.r_debug = Some(symbol.address());
                }
            }
        }
        facts.carries.extend(
            elf.symbols()
                .filter(|symbol| !symbol.is_undefined())
                .filter_map(|s| telling(&s)),
        );
        facts.go = elf
            .sections()
            .any(|s| matches!(s.name(), Ok(".go.buildinfo" | ".note.go.buildid")));
        Ok(facts)
    }

    pub fn has(&self, name: &str) -> bool {
        self.exports.contains(name) || self.carries.contains(name)
    }

    /// Load address of the file when its code from `offset` on is mapped at `start`: what is added to its virtual
    /// addresses. None when no executable segment holds that piece.
    pub fn base(&self, start: u64, offset: u64, page_size: u64) -> Option<u64> {
        let begin = |segment: &Segment| segment.offset - segment.offset % page_size;
        let mut code = self.segments.iter().filter(|segment| segment.executable);
        let segment = code.find(|s| begin(s) <= offset && offset < s.offset.saturating_add(s.file_size))?;
        Some(start.wrapping_sub(segment.address.wrapping_sub(segment.offset).wrapping_add(offset)))
    }

    /// Lowest and highest virtual address of the loaded file, from its first page to the end of its zeroed data.
    pub fn extent(&self, page_size: u64) -> Option<(u64, u64)> {
        let start = self
            .segments
            .iter()
            .map(|segment| segment.address - segment.address % page_size)
            .min()?;
        let end = self
            .segments
            .iter()
            .map(|segment| segment.address.saturating_add(segment.memory_size))
            .max()?;
        Some((start, end.checked_next_multiple_of(page_size)?))
    }
}

fn telling<'data>(symbol: &impl ObjectSymbol<'data>) -> Option<&'static str> {
    let name = symbol.name().ok()?;
    TELLING.into_iter().find(|telling| *telling == name)
}
