//! A library's code as the pieces that its unwind tables name, and the direct branches between them.
//!
//! In a stripped library these tables are all that is left of local functions: each piece (a function, or the part of one
//! that the compiler has put elsewhere) has its range in .eh_frame.

use std::collections::{BTreeMap, BTreeSet};

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use memtrace_analysis::event::Entry;
use object::{Object, ObjectSection};

use super::library::{Architecture, Library};
use super::{amd64, arm64};

/// A direct branch out of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Branch {
    /// A call returns; a jump does not.
    pub call: bool,
    pub target: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'data> {
    pub end: u64,
    pub bytes: &'data [u8],
}

/// What has to be known of a library to tell who calls whom.
#[derive(Clone, Debug)]
pub(super) struct Code<'data> {
    pub architecture: Architecture,
    /// By the address of the first instruction.
    pub pieces: BTreeMap<u64, Piece<'data>>,
    /// First instructions of exported functions.
    pub exported: BTreeSet<u64>,
    /// The allocator's entry points that there are, each address once.
    pub entries: Vec<(Entry, u64)>,
}

/// See [`Code::body`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Body {
    pub pieces: BTreeSet<u64>,
    pub ends_in: BTreeSet<u64>,
}

impl<'data> Code<'data> {
    /// None when there are no unwind tables.
    pub fn of(library: &Library<'data>) -> Option<Self> {
        let file = object::File::parse(library.bytes).ok()?;
        let section = file.section_by_name(".eh_frame")?;
        let bases = BaseAddresses::default().set_eh_frame(section.address());
        let data = section.data().ok()?;
        let frames = EhFrame::new(data, LittleEndian);
        // Stubs through which libc calls what a program may have replaced are no pieces of its own.
        let stubs: Vec<(u64, u64)> = file
            .sections()
            .filter(|section| section.name().is_ok_and(|name| name.starts_with(".plt")))
            .map(|section| (section.address(), section.address().saturating_add(section.size())))
            .collect();
        let is_stub = |address| stubs.iter().any(|&(start, end)| (start..end).contains(&address));
        let mut pieces = BTreeMap::new();
        let mut records = frames.entries(&bases);
        // What comes behind a damaged record cannot be found.
        while let Ok(Some(record)) = records.next() {
            let CieOrFde::Fde(partial) = record else { continue };
            let Ok(description) = partial.parse(EhFrame::cie_from_offset) else {
                continue;
            };
            let start = description.initial_address();
            let Some(end) = start.checked_add(description.len()).filter(|&end| end > start) else {
                continue;
            };
            if let Some(bytes) = bytes_of(library, start, end).filter(|_| !is_stub(start)) {
                pieces.insert(start, Piece { end, bytes });
            }
        }
        let mut entries: Vec<(Entry, u64)> = Vec::new();
        for entry in Entry::ALL {
            if let Some(symbol) = library.function(entry.name())
                && entries.iter().all(|&(_, address)| address != symbol.address)
            {
                entries.push((entry, symbol.address));
            }
        }
        (!pieces.is_empty()).then(|| Self {
            architecture: library.architecture,
            pieces,
            exported: library.exported().collect(),
            entries,
        })
    }

    /// The piece that `address` lies in.
    pub fn piece(&self, address: u64) -> Option<u64> {
        let (&start, piece) = self.pieces.range(..=address).next_back()?;
        (address < piece.end).then_some(start)
    }

    pub fn bytes(&self, piece: u64) -> &'data [u8] {
        self.pieces.get(&piece).map_or(&[], |piece| piece.bytes)
    }

    pub fn entry(&self, entry: Entry) -> Option<u64> {
        let found = self.entries.iter().find(|(known, _)| *known == entry);
        found.map(|&(_, address)| address)
    }

    pub fn is_entry(&self, function: u64) -> bool {
        self.entries.iter().any(|&(_, address)| address == function)
    }

    /// Direct branches from a piece into others.
    fn branches(&self, piece: u64) -> Vec<Branch> {
        let code = self.bytes(piece);
        let mut branches = match self.architecture {
            Architecture::Amd64 => amd64::branches(code, piece),
            Architecture::Arm64 => arm64::branches(code, piece),
        };
        branches.retain(|branch| self.piece(branch.target) != Some(piece));
        branches
    }

    /// The code that can run in the frame of the function at `function`: its own, the pieces it jumps to, and so on up to
    /// exported functions.
    pub fn body(&self, function: u64) -> Body {
        let mut body = Body::default();
        let mut waiting: Vec<u64> = self.piece(function).into_iter().collect();
        while let Some(piece) = waiting.pop() {
            if !body.pieces.insert(piece) {
                continue;
            }
            let jumps = self.branches(piece).into_iter().filter(|branch| !branch.call);
            for into in jumps.filter_map(|jump| self.piece(jump.target)) {
                if self.exported.contains(&into) {
                    body.ends_in.insert(into);
                } else {
                    waiting.push(into);
                }
            }
        }
        body
    }

    /// How often each piece is called by `body`, by the piece's begin; calls into the middle of one are none.
    pub fn called(&self, body: &Body) -> BTreeMap<u64, usize> {
        let mut called = BTreeMap::new();
        for branch in body.pieces.iter().flat_map(|&piece| self.branches(piece)) {
            if branch.call && self.piece(branch.target) == Some(branch.target) {
                *called.entry(branch.target).or_default() += 1;
            }
        }
        called
    }

    /// Whether `body` has `value` in the first argument at one of its calls of `function` at least.
    pub fn hands_over(&self, body: &Body, function: u64, value: u64) -> bool {
        body.pieces.iter().any(|&piece| {
            let bytes = self.bytes(piece);
            match self.architecture {
                Architecture::Amd64 => amd64::hands_over(bytes, piece, function, value),
                Architecture::Arm64 => arm64::hands_over(bytes, piece, function, value),
            }
        })
    }
}

fn bytes_of<'data>(library: &Library<'data>, start: u64, end: u64) -> Option<&'data [u8]> {
    let segment = library.segment(start)?;
    let from = usize::try_from(start - segment.address).ok()?;
    let to = usize::try_from(end.checked_sub(segment.address)?).ok()?;
    segment.bytes.get(from..to)
}
