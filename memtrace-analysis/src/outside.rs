//! System calls outside the allocator: told apart at once where the modules are known, later where they become known,
//! and by what can be guessed where they never do.

use alloc::collections::VecDeque;

use crate::direct::{self, DirectBook, Origins, Verdict};
use crate::event::{Module, Syscall, SyscallKind};
use crate::meaning::Meaning;
use crate::modules::Modules;
use crate::regions::{RegionKind, Regions};
use crate::report::DirectKind;

/// Calls that wait for the modules.
const MAX_WAITING: usize = 1024;

#[derive(Clone, Debug)]
struct Call {
    syscall: Syscall,
    in_handler: bool,
    net_bytes: i64,
}

#[derive(Clone, Debug, Default)]
pub struct Outside {
    pub book: DirectBook,
    pub origins: Origins,
    modules: Modules,
    waiting: VecDeque<Call>,
}

impl Outside {
    /// Enters a call; `meaning` tells by how much one moved the break.
    pub fn enter(&mut self, syscall: &Syscall, in_handler: bool, meaning: &Meaning, regions: &mut Regions) {
        self.origins.direct_call(syscall);
        let net_bytes = net_bytes(syscall, meaning);
        let verdict = direct::classify(syscall, in_handler, &self.modules, regions);
        let kind = verdict.as_ref().map_or(DirectKind::Unknown, |verdict| verdict.kind);
        note_range(syscall, kind, regions);
        if let Some(verdict) = verdict.filter(is_told) {
            self.book.enter(&verdict, syscall.kind, net_bytes);
            return;
        }
        if self.waiting.len() >= MAX_WAITING {
            self.guess_oldest();
        }
        self.waiting.push_back(Call {
            syscall: syscall.clone(),
            in_handler,
            net_bytes,
        });
    }

    /// Whether the call is one of the loader, or of an allocator that is known by its file.
    pub fn is_apart(&self, syscall: &Syscall, regions: &Regions) -> bool {
        direct::classify(syscall, false, &self.modules, regions)
            .is_some_and(|verdict| matches!(verdict.kind, DirectKind::Loader | DirectKind::OtherAllocator))
    }

    /// Modules have become known: what waited for them finds its place.
    pub fn learn(&mut self, modules: &[Module], regions: &Regions) {
        self.modules.learn(modules);
        for call in core::mem::take(&mut self.waiting) {
            match direct::classify(&call.syscall, call.in_handler, &self.modules, regions).filter(is_told) {
                Some(verdict) => self.book.enter(&verdict, call.syscall.kind, call.net_bytes),
                None => self.waiting.push_back(call),
            }
        }
    }

    fn guess_oldest(&mut self) {
        if let Some(call) = self.waiting.pop_front() {
            let verdict = self.origins.guess(&call.syscall, call.in_handler);
            self.book.enter(&verdict, call.syscall.kind, call.net_bytes);
        }
    }

    /// The modules will not become known any more.
    pub fn guess_rest(&mut self) {
        while !self.waiting.is_empty() {
            self.guess_oldest();
        }
    }

    /// The process has replaced its program.
    pub fn new_program(&mut self) {
        self.guess_rest();
        self.origins = Origins::default();
        self.modules.clear();
    }
}

/// A call from code of no module known may be one of a module that is still to become known.
fn is_told(verdict: &Verdict) -> bool {
    verdict.kind != DirectKind::Unknown
}

/// What the call did to the ranges known.
fn note_range(syscall: &Syscall, kind: DirectKind, regions: &mut Regions) {
    let [start, bytes, new_bytes, ..] = syscall.args;
    if crate::tally::failed(syscall) {
        return;
    }
    let region = if kind == DirectKind::ThreadStack {
        RegionKind::ThreadStack
    } else {
        RegionKind::Direct(kind)
    };
    let at = syscall.result.cast_unsigned();
    match syscall.kind {
        SyscallKind::Mmap => regions.insert(at, bytes, region),
        SyscallKind::Munmap => {
            regions.remove(start, bytes);
        }
        SyscallKind::Mremap => {
            regions.remove(start, bytes);
            regions.insert(at, new_bytes, region);
        }
        SyscallKind::Brk | SyscallKind::Mprotect | SyscallKind::Madvise => {}
    }
}

/// What the call added to the process's address space.
fn net_bytes(syscall: &Syscall, meaning: &Meaning) -> i64 {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let [_, bytes, new_bytes, ..] = syscall.args;
    if crate::tally::failed(syscall) {
        return 0;
    }
    match (syscall.kind, meaning) {
        (SyscallKind::Brk, Meaning::Growth(growth)) => signed(growth.bytes()),
        (SyscallKind::Brk, Meaning::Return(returned)) => signed(returned.bytes).saturating_neg(),
        (SyscallKind::Mmap, _) => signed(bytes),
        (SyscallKind::Munmap, _) => signed(bytes).saturating_neg(),
        (SyscallKind::Mremap, _) => signed(new_bytes).saturating_sub(signed(bytes)),
        (SyscallKind::Brk | SyscallKind::Mprotect | SyscallKind::Madvise, _) => 0,
    }
}
