//! Where a field lies in a kernel structure, from the kernel's own type information (BTF). Reads just that.
//!
//! ```text
//! header | types: name, info (kind, count), size or type, then what the kind has | strings
//! ```
//! Format: Documentation/bpf/btf.rst of the kernel.

/// BTF that has been gone through once.
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Offset of each type in `types`; ids begin with 1.
    offsets: Vec<u32>,
}

const MAGIC: u16 = 0xeb9f;
/// name_off, info, size or type.
const TYPE: usize = 12;
/// name_off, type, offset.
const MEMBER: usize = 12;

mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const FLOAT: u32 = 16;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// A field found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the begin of the structure.
    pub offset: u32,
    /// Its type, typedefs and qualifiers taken off.
    pub id: u32,
}

struct Type {
    name: u32,
    kind: u32,
    count: usize,
    bitfields: bool,
    /// Size in bytes, or the type referred to.
    size_or_type: u32,
}

impl<'a> Btf<'a> {
    /// None when it is not BTF in a form that is known.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        if u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?) != MAGIC {
            return None;
        }
        let header = word(bytes, 4)? as usize;
        let section = |offset: usize| {
            let begin = header.checked_add(word(bytes, offset)? as usize)?;
            bytes.get(begin..begin.checked_add(word(bytes, offset + 4)? as usize)?)
        };
        let mut btf = Self {
            types: section(8)?,
            strings: section(16)?,
            offsets: vec![0],
        };
        let mut at = 0;
        while at < btf.types.len() {
            btf.offsets.push(u32::try_from(at).ok()?);
            let found = btf.type_at(at)?;
            at += TYPE + rest(found.kind, found.count)?;
        }
        Some(btf)
    }

    /// The structure (or union) of that name.
    pub fn structure(&self, name: &str) -> Option<u32> {
        (1..self.offsets.len() as u32).find(|&id| {
            self.get(id)
                .is_some_and(|found| found.kind == kind::STRUCT && self.string(found.name) == Some(name.as_bytes()))
        })
    }

    /// Follows a path of member names, members of nameless structures included.
    pub fn field(&self, structure: u32, path: &[&str]) -> Option<Field> {
        let mut found = Field {
            offset: 0,
            id: structure,
        };
        for name in path {
            let next = self.member(found.id, name, 0)?;
            found = Field {
                offset: found.offset.checked_add(next.offset)?,
                id: next.id,
            };
        }
        Some(found)
    }

    /// Bytes of a structure.
    pub fn size(&self, id: u32) -> Option<u32> {
        let found = self.get(id)?;
        matches!(found.kind, kind::STRUCT | kind::UNION).then_some(found.size_or_type)
    }

    /// The elements' type of an array.
    pub fn element(&self, id: u32) -> Option<u32> {
        let found = self.get(id)?;
        if found.kind != kind::ARRAY {
            return None;
        }
        self.resolve(word(self.types, self.offsets[id as usize] as usize + TYPE)?)
    }

    fn member(&self, structure: u32, name: &str, depth: u32) -> Option<Field> {
        // Nameless structures are not nested deeper than a few levels; a loop is no BTF.
        if depth > 16 {
            return None;
        }
        let found = self.get(structure)?;
        if !matches!(found.kind, kind::STRUCT | kind::UNION) {
            return None;
        }
        let begin = self.offsets[structure as usize] as usize + TYPE;
        for index in 0..found.count {
            let at = begin + index * MEMBER;
            let member_name = word(self.types, at)?;
            let id = self.resolve(word(self.types, at + 4)?)?;
            let bits = word(self.types, at + 8)?;
            // With bit-fields about, the upper byte is a width.
            let offset = if found.bitfields { bits & 0x00ff_ffff } else { bits } / 8;
            if member_name != 0 && self.string(member_name) == Some(name.as_bytes()) {
                return Some(Field { offset, id });
            }
            if member_name == 0
                && let Some(inner) = self.member(id, name, depth + 1)
            {
                return Some(Field {
                    offset: offset.checked_add(inner.offset)?,
                    id: inner.id,
                });
            }
        }
        None
    }

    /// Takes typedefs and qualifiers off.
    fn resolve(&self, mut id: u32) -> Option<u32> {
        for _ in 0..32 {
            let found = self.get(id)?;
            match found.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = found.size_or_type;
                }
                _ => return Some(id),
            }
        }
        None
    }

    fn get(&self, id: u32) -> Option<Type> {
        if id == 0 {
            // void
            return Some(Type {
                name: 0,
                kind: 0,
                count: 0,
                bitfields: false,
                size_or_type: 0,
            });
        }
        self.type_at(*self.offsets.get(id as usize)? as usize)
    }

    fn type_at(&self, at: usize) -> Option<Type> {
        let info = word(self.types, at + 4)?;
        Some(Type {
            name: word(self.types, at)?,
            kind: info >> 24 & 0x1f,
            count: (info & 0xffff) as usize,
            bitfields: info >> 31 != 0,
            size_or_type: word(self.types, at + 8)?,
        })
    }

    fn string(&self, offset: u32) -> Option<&'a [u8]> {
        let tail = self.strings.get(offset as usize..)?;
        tail.split(|&byte| byte == 0).next()
    }
}

/// Bytes that follow a type of this kind; None for a kind that is not known.
fn rest(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        kind::INT | kind::VAR | kind::DECL_TAG => 4,
        kind::ARRAY => 12,
        kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * count,
        kind::ENUM | kind::FUNC_PROTO => 8 * count,
        kind::PTR
        | kind::FWD
        | kind::TYPEDEF
        | kind::VOLATILE
        | kind::CONST
        | kind::RESTRICT
        | kind::FUNC
        | kind::FLOAT
        | kind::TYPE_TAG => 0,
        _ => return None,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// struct outer { int a; struct { u32 b; }; struct inner c[2]; } with typedef u32 -> int, struct inner { int d; }.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0a\0b\0outer\0c\0inner\0d\0u32\0";
        let name = |wanted: &str| {
            let wanted = [b"\0", wanted.as_bytes(), b"\0"].concat();
            strings
                .windows(wanted.len())
                .position(|window| window == wanted)
                .unwrap() as u32
                + 1
        };
        let mut types: Vec<u32> = Vec::new();
        types.extend([name("int"), kind::INT << 24, 4, 32]); // 1
        types.extend([name("u32"), kind::TYPEDEF << 24, 1]); // 2
        types.extend([0, kind::STRUCT << 24 | 1, 4, name("b"), 2, 0]); // 3
        types.extend([name("inner"), kind::STRUCT << 24 | 1, 8, name("d"), 1, 32]); // 4
        types.extend([0, kind::ARRAY << 24, 0, 4, 1, 2]); // 5
        types.extend([name("outer"), kind::STRUCT << 24 | 3, 24]); // 6
        types.extend([name("a"), 1, 0, 0, 3, 32, name("c"), 5, 64]);
        let types: Vec<u8> = types.into_iter().flat_map(u32::to_le_bytes).collect();
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn fields_are_found_by_path() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).unwrap();
        let outer = btf.structure("outer").unwrap();
        let offset = |path: &[&str]| btf.field(outer, path).map(|field| field.offset);
        assert_eq!(offset(&["a"]), Some(0));
        assert_eq!(offset(&["b"]), Some(4));
        assert_eq!(offset(&["c"]), Some(8));
        assert_eq!(offset(&["x"]), None);
        let array = btf.field(outer, &["c"]).unwrap().id;
        let inner = btf.element(array).unwrap();
        assert_eq!(btf.size(inner), Some(8));
        assert_eq!(btf.field(inner, &["d"]).map(|field| field.offset), Some(4));
        assert_eq!(btf.structure("nothing"), None);
    }

    #[test]
    fn damaged_type_information_is_refused_not_trusted() {
        let whole = sample();
        for length in 0..whole.len() {
            let _ = Btf::parse(&whole[..length]);
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            if let Some(btf) = Btf::parse(&damaged)
                && let Some(outer) = btf.structure("outer")
            {
                let _ = btf.field(outer, &["b"]);
                let _ = btf.field(outer, &["c"]).and_then(|field| btf.element(field.id));
            }
        }
        assert!(Btf::parse(b"").is_none());
    }
}
