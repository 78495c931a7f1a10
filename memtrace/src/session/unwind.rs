//! From a system call back to the allocator call that made it, frame by frame, with libc's own unwind tables.
//!
//! That the return address still stands in its slot does not prove that the call is running: a function may lie over
//! old frames without writing to them. So the frames are followed from the system call upwards: they must be libc's own
//! without exception, and one of them must begin exactly at the slot.
//!
//! ```text
//! ip, sp -> row of .eh_frame -> canonical frame address -> return address = next ip ... until the frame's slot
//! ```

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use gimli::{
    AArch64, BaseAddresses, CfaRule, EhFrame, EhFrameHdr, LittleEndian, Register, RegisterRule, UnwindContext,
    UnwindSection, Vendor, X86_64,
};
use memtrace_analysis::event::Entry;
use object::{Architecture, Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use crate::probe::AllocatorCode;

/// User registers at a system call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    pub ip: u64,
    pub sp: u64,
    pub fp: u64,
    /// 0 on x86_64.
    pub lr: u64,
}

/// Where the frames lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through libc's code alone to the call whose slot it is.
    Arrives,
    /// The wrapper of the system call itself uses that slot: the allocator has jumped to it at its end, or the program
    /// has called it from where it had called the allocator.
    ArrivesInWrapper,
    /// Past the slot, or through code that is not the allocator's.
    Misses,
    /// It cannot be followed to its end: no table for some code, or not enough of the stack.
    Lost,
}

/// glibc's deepest allocator call takes about ten frames.
const FRAMES: usize = 24;

/// Where the frames of a system call lead when no call of the allocator was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Climb {
    /// Through libc's code to the entry point that the program, or a part of libc outside the allocator, has called.
    Call(Found),
    /// Perhaps to such a call that has jumped to the wrapper of the system call at its end, perhaps to nothing but that
    /// wrapper: the stack looks the same.
    Perhaps(Found),
    /// Out of libc's code without passing an entry point.
    Outside,
    /// It cannot be followed to its end.
    Lost,
}

/// An entry point's call that is on the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whose code runs in its frame; more than one where they jump to the same.
    pub entries: Vec<Entry>,
    pub slot: u64,
    pub return_address: u64,
    /// The call of the slow path that was asked for is on the way there, and was made by this very frame or by the one
    /// that a hook has called in its place, not by what they have called.
    pub slow_path_is_its_own: bool,
}

/// Bits of an arm64 address; above them pointer authentication puts a signature.
const ARM64_ADDRESS: u64 = (1 << 48) - 1;

/// Exported functions that may be what is found at the slot.
const ALLOCATOR: [&str; 14] = [
    "malloc",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "free",
    "cfree",
    "malloc_trim",
    "__libc_malloc",
    "__libc_free",
    "__libc_memalign",
];

/// What is needed of one libc to follow frames through it.
pub struct Unwinder {
    eh_frame: Vec<u8>,
    eh_frame_hdr: Vec<u8>,
    bases: BaseAddresses,
    architecture: Architecture,
    text: Range<u64>,
    /// The bytes of `text`.
    code: Vec<u8>,
    /// First instructions of the allocator's exported functions.
    own: HashSet<u64>,
    /// First instructions of exported functions that are no allocator entries.
    foreign: HashSet<u64>,
    /// Stubs through which libc calls what the program may have replaced: of its own functions, only the allocator's.
    stubs: Vec<Range<u64>>,
    /// Which code runs in which entry point's frame.
    allocator: AllocatorCode,
    /// Rows looked up so far: a process makes its system calls from few places.
    rows: HashMap<u64, Option<Row>>,
}

/// How to get from a frame to its caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// First instruction of the function.
    function: u64,
    /// The canonical frame address: a register plus an offset.
    base: Base,
    offset: i64,
    fp: Saved,
    return_address: Saved,
}

/// The stack as it was recorded, from `begin` upwards.
#[derive(Clone, Copy)]
struct Stack<'a> {
    begin: u64,
    words: &'a [u64],
}

impl Stack<'_> {
    fn word(self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.begin).filter(|offset| offset % 8 == 0)?;
        self.words.get(usize::try_from(offset / 8).ok()?).copied()
    }
}

/// Registers on the way up, as far as they are known.
struct Cursor {
    ip: u64,
    sp: u64,
    fp: Option<u64>,
    lr: Option<u64>,
}

impl Cursor {
    const fn new(registers: Registers) -> Self {
        let Registers { ip, sp, fp, lr } = registers;
        Self {
            ip,
            sp,
            fp: Some(fp),
            lr: Some(lr),
        }
    }
}

/// What a function's row says of its frame.
struct CallFrame {
    /// The canonical frame address: the caller's stack pointer after the return.
    end: u64,
    /// Where the return address lies on x86_64, and what stands for that place on arm64.
    slot: u64,
    back: Option<u64>,
    /// The caller's.
    fp: Option<u64>,
}

impl CallFrame {
    /// One function up, where this one returns to `back`.
    const fn caller(&self, back: u64) -> Cursor {
        Cursor {
            ip: back,
            sp: self.end,
            fp: self.fp,
            // A function that has called another one has saved its own return address.
            lr: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Sp,
    Fp,
}

/// Where the caller's register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saved {
    /// Still in the register.
    Same,
    /// At this offset from the canonical frame address.
    At(i64),
    /// There is none: this is the thread's first function.
    Nowhere,
    Unknown,
}

impl Unwinder {
    /// For the library whose file holds `bytes`, with the addresses of its text. None when it has no unwind tables.
    pub fn for_library(bytes: &[u8], text: (u64, u64), allocator: AllocatorCode) -> Option<Self> {
        let file = object::File::parse(bytes).ok()?;
        let eh_frame = file.section_by_name(".eh_frame")?;
        let eh_frame_hdr = file.section_by_name(".eh_frame_hdr")?;
        let bases = BaseAddresses::default()
            .set_eh_frame(eh_frame.address())
            .set_eh_frame_hdr(eh_frame_hdr.address())
            .set_text(text.0);
        let foreign = file
            .dynamic_symbols()
            .chain(file.symbols())
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_global())
            .map(|symbol| (symbol.address(), symbol.name().unwrap_or("")))
            .collect::<Vec<_>>();
        let own: HashSet<u64> = foreign
            .iter()
            .filter(|(_, name)| ALLOCATOR.contains(name))
            .map(|&(address, _)| address)
            .collect();
        let foreign = foreign
            .into_iter()
            .map(|(address, _)| address)
            .filter(|address| !own.contains(address))
            .collect();
        let (code_at, code) = file
            .segments()
            .find(|segment| (segment.address()..segment.address() + segment.size()).contains(&text.0))
            .and_then(|segment| Some((segment.address(), segment.data().ok()?)))?;
        let stubs = file
            .sections()
            .filter(|section| section.name().is_ok_and(|name| name.starts_with(".plt")))
            .map(|section| section.address()..section.address() + section.size())
            .collect();
        Some(Self {
            eh_frame: eh_frame.data().ok()?.to_vec(),
            eh_frame_hdr: eh_frame_hdr.data().ok()?.to_vec(),
            bases,
            architecture: file.architecture(),
            text: text.0..text.1,
            code: code
                .get(usize::try_from(text.0 - code_at).ok()?..)?
                .iter()
                .take(usize::try_from(text.1.checked_sub(text.0)?).ok()?)
                .copied()
                .collect(),
            own,
            foreign,
            stubs,
            allocator,
            rows: HashMap::new(),
        })
    }

    /// The frame of the function that runs at a cursor; None when where it ends is not known.
    fn frame(&self, row: &Row, at: &Cursor, stack: Stack<'_>) -> Option<CallFrame> {
        let from = match row.base {
            Base::Sp => Some(at.sp),
            Base::Fp => at.fp,
        };
        let end = from?.wrapping_add_signed(row.offset);
        let saved = |rule: Saved, now: Option<u64>| match rule {
            Saved::Same => now,
            Saved::At(offset) => stack.word(end.wrapping_add_signed(offset)),
            Saved::Nowhere | Saved::Unknown => None,
        };
        let (back, fp) = (saved(row.return_address, at.lr), saved(row.fp, at.fp));
        // The call pushes the return address on x86_64, so that the slot lies just below the frame's end.
        let (slot, back) = if self.architecture == Architecture::X86_64 {
            (end.wrapping_sub(8), back)
        } else {
            (end, back.map(|back| back & ARM64_ADDRESS))
        };
        Some(CallFrame { end, slot, back, fp })
    }

    /// Follows the frames. `stack` holds the words from `registers.sp` upwards, `base` is the library's load address.
    pub fn follow(&mut self, registers: Registers, base: u64, slot: u64, stack: &[u64]) -> Way {
        let stack = Stack {
            begin: registers.sp,
            words: stack,
        };
        let mut at = Cursor::new(registers);
        for depth in 0..FRAMES {
            let address = at.ip.wrapping_sub(base);
            if !self.text.contains(&address) {
                return Way::Misses;
            }
            // The instruction that made the call or the system call: what follows it may be another function.
            let Some(row) = self.row(address - 1) else {
                return Way::Lost;
            };
            let Some(frame) = self.frame(&row, &at, stack) else {
                return Way::Lost;
            };
            if frame.slot == slot {
                return match (self.foreign.contains(&row.function), depth) {
                    (false, _) if self.calls_another(frame.back, base) => Way::Misses,
                    (false, _) => Way::Arrives,
                    (true, 0) => Way::ArrivesInWrapper,
                    (true, _) => Way::Misses,
                };
            }
            if frame.slot > slot || frame.end < at.sp {
                return Way::Misses;
            }
            let Some(back) = frame.back else {
                return Way::Lost;
            };
            at = frame.caller(back);
        }
        Way::Lost
    }

    /// Climbs from a system call to the allocator's entry point, without knowing that there is one. `slow_path` is the slot
    /// of a call of the slow path that may be on the way.
    pub fn climb(&mut self, registers: Registers, base: u64, slow_path: Option<u64>, stack: &[u64]) -> Climb {
        let stack = Stack {
            begin: registers.sp,
            words: stack,
        };
        let mut at = Cursor::new(registers);
        let mut found: Option<Found> = None;
        let mut above_slow_path = false;
        let mut perhaps: Option<Found> = None;
        for depth in 0..FRAMES {
            let address = at.ip.wrapping_sub(base);
            if !self.text.contains(&address) {
                break;
            }
            // The instruction that made the call or the system call: what follows it may be another function.
            let Some(row) = self.row(address - 1) else {
                return found.map_or(Climb::Lost, Climb::Call);
            };
            let entries = self.allocator.pieces.get(&row.function);
            if row.return_address == Saved::Nowhere || found.is_some() && entries.is_none() {
                break;
            }
            let Some(frame) = self.frame(&row, &at, stack).filter(|frame| frame.end >= at.sp) else {
                return found.map_or(Climb::Lost, Climb::Call);
            };
            let Some(back) = frame.back else {
                return Climb::Lost;
            };
            if let Some(entries) = entries {
                // Up to 2.33 the first call of a process goes through a hook: calloc calls malloc for what it was asked for.
                let by_hook = found.as_ref().is_some_and(|inner| inner.slow_path_is_its_own);
                found = Some(Found {
                    entries: entries.clone(),
                    slot: frame.slot,
                    return_address: back,
                    slow_path_is_its_own: above_slow_path || by_hook,
                });
            }
            if depth == 0
                && let Some(entries) = self.allocator.ends_in.get(&row.function)
            {
                perhaps = Some(Found {
                    entries: entries.clone(),
                    slot: frame.slot,
                    return_address: back,
                    slow_path_is_its_own: false,
                });
            }
            above_slow_path = slow_path == Some(frame.slot);
            at = frame.caller(back);
        }
        match (found, perhaps) {
            (Some(found), _) => Climb::Call(found),
            (None, Some(found)) => Climb::Perhaps(found),
            (None, None) => Climb::Outside,
        }
    }

    /// Whether `address` is in code that runs in the frame of one of these entry points.
    pub fn runs_in(&mut self, address: u64, entries: &[Entry]) -> bool {
        let piece = self.function(address);
        let whose = piece.and_then(|piece| self.allocator.pieces.get(&piece));
        whose.is_some_and(|whose| whose.iter().any(|entry| entries.contains(entry)))
    }

    /// The call that returns to `back` is one of libc's own to a function that is not the allocator's: a function of libc
    /// that had called free makes its next calls with the same slot.
    fn calls_another(&self, back: Option<u64>, base: u64) -> bool {
        let Some(end) = back
            .map(|back| back.wrapping_sub(base))
            .filter(|end| self.text.contains(end))
        else {
            return false;
        };
        self.called_before(end).is_some_and(|called| {
            !self.own.contains(&called) && !self.stubs.iter().any(|stubs| stubs.contains(&called))
        })
    }

    /// What the direct call that ends at `end` calls; None when a direct call does not end there.
    fn called_before(&self, end: u64) -> Option<u64> {
        let end_at = usize::try_from(end.checked_sub(self.text.start)?).ok()?;
        let bytes = |length: usize| self.code.get(end_at.checked_sub(length)?..end_at);
        match self.architecture {
            // call rel32
            Architecture::X86_64 => {
                let &[0xe8, a, b, c, d] = bytes(5)? else { return None };
                Some(end.wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d]))))
            }
            // bl imm26, in words from the instruction
            Architecture::Aarch64 => {
                let word = u32::from_le_bytes(bytes(4)?.try_into().ok()?);
                let distance = i64::from((word << 6) as i32 >> 6) * 4;
                (word >> 26 == 0b10_0101).then(|| (end - 4).wrapping_add_signed(distance))
            }
            _ => None,
        }
    }

    /// First instruction of the piece of code that `address` lies in, as the tables have it.
    pub fn function(&mut self, address: u64) -> Option<u64> {
        self.row(address).map(|row| row.function)
    }

    fn row(&mut self, address: u64) -> Option<Row> {
        if let Some(known) = self.rows.get(&address) {
            return *known;
        }
        let row = self.look_up(address);
        self.rows.insert(address, row);
        row
    }

    fn look_up(&self, address: u64) -> Option<Row> {
        let (sp, fp, return_address) = match self.architecture {
            Architecture::X86_64 => (X86_64::RSP, X86_64::RBP, X86_64::RA),
            Architecture::Aarch64 => (AArch64::SP, AArch64::X29, AArch64::X30),
            _ => return None,
        };
        let mut eh_frame = EhFrame::new(&self.eh_frame, LittleEndian);
        if self.architecture == Architecture::Aarch64 {
            // Its tables say where return addresses are signed, in an instruction of its own.
            eh_frame.set_vendor(Vendor::AArch64);
        }
        let header = EhFrameHdr::new(&self.eh_frame_hdr, LittleEndian)
            .parse(&self.bases, 8)
            .ok()?;
        let description = header
            .table()?
            .fde_for_address(&eh_frame, &self.bases, address, EhFrame::cie_from_offset)
            .ok()?;
        let mut context = UnwindContext::new();
        let row = description
            .unwind_info_for_address(&eh_frame, &self.bases, &mut context, address)
            .ok()?;
        let &CfaRule::RegisterAndOffset { register, offset } = row.cfa() else {
            return None;
        };
        let base = if register == sp {
            Base::Sp
        } else if register == fp {
            Base::Fp
        } else {
            return None;
        };
        let saved = |register: Register| match row.register(register) {
            // Without a rule a register is not touched.
            None | Some(RegisterRule::SameValue) => Saved::Same,
            Some(RegisterRule::Offset(offset)) => Saved::At(offset),
            Some(RegisterRule::Undefined) => Saved::Nowhere,
            Some(_) => Saved::Unknown,
        };
        Some(Row {
            function: description.initial_address(),
            base,
            offset,
            fp: saved(fp),
            return_address: saved(return_address),
        })
    }
}

#[cfg(test)]
mod tests;
