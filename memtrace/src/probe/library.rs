//! A library or a static program as an ELF file: symbols, segments, what it says of itself.

use object::elf::{EM_AARCH64, EM_X86_64, PF_X, STT_FUNC, STT_GNU_IFUNC};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, SymbolFlags};

use super::plan::PlanError;
use crate::elf::{build_id, glibc_release};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    Amd64,
    Arm64,
}

/// A PT_LOAD with execute permission.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextSegment<'data> {
    pub address: u64,
    pub file_offset: u64,
    pub bytes: &'data [u8],
}

impl TextSegment<'_> {
    pub fn contains(&self, address: u64) -> bool {
        address
            .checked_sub(self.address)
            .is_some_and(|offset| offset < self.bytes.len() as u64)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Symbol {
    pub name: String,
    pub address: u64,
    pub size: u64,
    /// Others can call it by its name; in a static program, other parts of it.
    pub exported: bool,
}

pub(super) struct Library<'data> {
    pub architecture: Architecture,
    pub text: Vec<TextSegment<'data>>,
    pub build_id: Option<String>,
    /// Exported functions and, in a program that has kept them, local ones.
    functions: Vec<Symbol>,
    objects: Vec<Symbol>,
    /// It is loaded as a library: no interpreter is named, a dynamic symbol table is there.
    pub shared: bool,
    pub bytes: &'data [u8],
}

impl<'data> Library<'data> {
    pub fn parse(bytes: &'data [u8]) -> Result<Self, PlanError> {
        // Class and byte order are told apart here, so that the message names them.
        match bytes.get(..6) {
            Some([0x7f, b'E', b'L', b'F', 2, 1]) => {}
            Some([0x7f, b'E', b'L', b'F', 1, _]) => return Err(PlanError::ThirtyTwoBit),
            Some([0x7f, b'E', b'L', b'F', _, _]) => return Err(PlanError::Machine("a foreign byte order".into())),
            _ => return Err(PlanError::NotElf),
        }
        let file = ElfFile64::<Endianness>::parse(bytes).map_err(|e| PlanError::Malformed(e.to_string()))?;
        let endian = file.endian();
        let architecture = match file.elf_header().e_machine(endian) {
            EM_X86_64 => Architecture::Amd64,
            EM_AARCH64 => Architecture::Arm64,
            other => return Err(PlanError::Machine(format!("machine type {other}"))),
        };
        let mut text = Vec::new();
        for segment in file.elf_program_headers() {
            if segment.p_type(endian) == object::elf::PT_LOAD && segment.p_flags(endian) & PF_X != 0 {
                let bytes = segment.data(endian, bytes).map_err(|()| {
                    PlanError::Malformed(String::from("an executable segment reaches beyond the end of the file"))
                })?;
                text.push(TextSegment {
                    address: segment.p_vaddr(endian),
                    file_offset: segment.p_offset(endian),
                    bytes,
                });
            }
        }
        let mut functions = Vec::new();
        let mut objects = Vec::new();
        for symbol in file.dynamic_symbols().chain(file.symbols()) {
            let SymbolFlags::Elf { st_info, .. } = symbol.flags() else {
                continue;
            };
            let Ok(name) = symbol.name() else { continue };
            if symbol.is_undefined() || symbol.address() == 0 || name.is_empty() {
                continue;
            }
            let kind = match st_info & 0xf {
                STT_FUNC => &mut functions,
                // Its address is that of a resolver, not of the function.
                STT_GNU_IFUNC => continue,
                _ => &mut objects,
            };
            kind.push(Symbol {
                name: name.to_owned(),
                address: symbol.address(),
                size: symbol.size(),
                exported: symbol.is_global(),
            });
        }
        let build_id = build_id(&file);
        let interpreted = file
            .elf_program_headers()
            .iter()
            .any(|s| s.p_type(endian) == object::elf::PT_INTERP);
        let shared = file.dynamic_symbols().next().is_some() && (!interpreted || functions.iter().any(is_libc_version));
        Ok(Self {
            architecture,
            text,
            build_id,
            functions,
            objects,
            shared,
            bytes,
        })
    }

    pub fn function(&self, name: &str) -> Option<&Symbol> {
        self.functions.iter().find(|symbol| symbol.name == name)
    }

    /// First instructions of exported functions.
    pub fn exported(&self) -> impl Iterator<Item = u64> {
        let exported = self.functions.iter().filter(|symbol| symbol.exported);
        exported.map(|symbol| symbol.address)
    }

    pub fn object(&self, name: &str) -> Option<&Symbol> {
        self.objects.iter().find(|symbol| symbol.name == name)
    }

    pub fn functions(&self) -> impl Iterator<Item = &Symbol> {
        self.functions.iter()
    }

    pub fn segment(&self, address: u64) -> Option<TextSegment<'data>> {
        self.text.iter().find(|segment| segment.contains(address)).copied()
    }

    pub fn version(&self) -> Option<String> {
        glibc_release(self.bytes)
    }
}

/// libc.so.6 names an interpreter too, since it can be run.
fn is_libc_version(symbol: &Symbol) -> bool {
    symbol.name == "gnu_get_libc_version"
}
