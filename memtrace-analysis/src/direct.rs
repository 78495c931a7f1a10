//! System calls that no allocation caused, told apart by what made them.
//!
//! The evidence: the flags of the call, what its range is known to be, and whose code it came from. The instruction
//! pointer mostly stands in libc's wrapper, so the words on the stack say who called that; words that are no code of
//! any known module are data and say nothing.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::event::{Module, ModuleRole, Syscall, SyscallKind};
use crate::modules::Modules;
use crate::owner::mman;
use crate::regions::{RegionKind, Regions};
use crate::report::{DirectGroup, DirectKind};

/// Most groups told apart; the rest is counted under its kind alone.
const MAX_GROUPS: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub kind: DirectKind,
    /// Path of the module whose code made the call.
    pub module: Option<String>,
}

/// Tells what made a system call that is no allocator call's. None: the modules are not known yet.
pub fn classify(syscall: &Syscall, in_handler: bool, modules: &Modules, regions: &Regions) -> Option<Verdict> {
    let caller = caller(syscall, modules);
    let verdict = |kind| {
        Some(Verdict {
            kind,
            module: caller.map(|module| module.path.clone()),
        })
    };
    if in_handler {
        return verdict(DirectKind::SignalHandler);
    }
    if is_thread_stack(syscall, regions) {
        return verdict(DirectKind::ThreadStack);
    }
    let Some(module) = caller else {
        return if modules.is_empty() {
            None
        } else {
            verdict(DirectKind::Unknown)
        };
    };
    if is_loader(module) {
        return verdict(DirectKind::Loader);
    }
    let generates_code = makes_code(syscall);
    let is_break = syscall.kind == SyscallKind::Brk;
    verdict(match module.role {
        ModuleRole::Loader => DirectKind::Loader,
        ModuleRole::Allocator => DirectKind::OtherAllocator,
        ModuleRole::Runtime | ModuleRole::Anonymous => DirectKind::Runtime,
        ModuleRole::Libc => DirectKind::Libc,
        ModuleRole::Program | ModuleRole::Library if is_break => DirectKind::ProgramBreak,
        ModuleRole::Program | ModuleRole::Library if generates_code => DirectKind::Runtime,
        ModuleRole::Program | ModuleRole::Library => DirectKind::Program,
    })
}

/// Words of the stack in which the return address of a system call's wrapper is looked for: it is the first one, or
/// stands behind the registers that the wrapper saves.
const WRAPPER_WORDS: usize = 4;

/// The module that made the call: whoever called libc's wrapper, or the code itself.
fn caller<'a>(syscall: &Syscall, modules: &'a Modules) -> Option<&'a Module> {
    let at = modules.find(syscall.ip?)?;
    if at.role != ModuleRole::Libc {
        return Some(at);
    }
    let mut code = syscall.stack.iter().map(|word| modules.find(*word));
    let first = match syscall.kind {
        // sbrk stands between brk and its caller.
        SyscallKind::Brk => code.flatten().find(|module| module.role != ModuleRole::Libc),
        _ => code.by_ref().take(WRAPPER_WORDS).flatten().next(),
    };
    Some(first.unwrap_or(at))
}

/// A dynamic loader, also where it was started as a program of its own (`ld.so ./program`).
fn is_loader(module: &Module) -> bool {
    let name = module.path.rsplit('/').next().unwrap_or_default();
    module.role == ModuleRole::Loader || name.starts_with("ld-linux") || name.starts_with("ld-2.") || name == "ld.so"
}

fn is_thread_stack(syscall: &Syscall, regions: &Regions) -> bool {
    let [address, _, _, flags, ..] = syscall.args;
    match syscall.kind {
        SyscallKind::Brk => false,
        SyscallKind::Mmap => flags & mman::MAP_STACK != 0,
        SyscallKind::Munmap | SyscallKind::Mremap | SyscallKind::Mprotect | SyscallKind::Madvise => regions
            .find(address)
            .is_some_and(|region| region.kind == RegionKind::ThreadStack),
    }
}

/// Anonymous memory that may be executed: code is generated there.
fn makes_code(syscall: &Syscall) -> bool {
    let [_, _, prot, flags, ..] = syscall.args;
    let executable = prot & mman::PROT_EXEC != 0;
    match syscall.kind {
        SyscallKind::Mmap => executable && flags & mman::MAP_ANONYMOUS != 0,
        SyscallKind::Mprotect => executable,
        _ => false,
    }
}

/// Where code was seen to stand since the program began: for the calls of programs that were gone, or replaced, before
/// anybody could list their modules.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origins {
    loader: Option<u64>,
    libc: Option<u64>,
}

/// The loader's code, and libc's, is no larger than this.
const LOADER_TEXT: u64 = 256 << 10;
const LIBC_TEXT: u64 = 2 << 20;

impl Origins {
    /// An allocator call's own system call: it comes from libc.
    pub fn allocator_call(&mut self, syscall: &Syscall) {
        self.libc = self.libc.or(syscall.ip);
    }

    /// A call from outside: before the first allocation, a file mapped executable is the loader's work.
    pub fn direct_call(&mut self, syscall: &Syscall) {
        let [_, _, prot, flags, ..] = syscall.args;
        let maps_code =
            syscall.kind == SyscallKind::Mmap && prot & mman::PROT_EXEC != 0 && flags & mman::MAP_ANONYMOUS == 0;
        if maps_code && self.libc.is_none() {
            self.loader = self.loader.or(syscall.ip);
        }
    }

    /// As far as it can be told without modules.
    pub fn guess(&self, syscall: &Syscall, in_handler: bool) -> Verdict {
        let near = |place: Option<u64>, address: u64, reach| place.is_some_and(|at| at.abs_diff(address) < reach);
        let in_libc = |address| near(self.libc, address, LIBC_TEXT);
        let kind = match syscall.ip {
            _ if in_handler => DirectKind::SignalHandler,
            Some(ip) if near(self.loader, ip, LOADER_TEXT) => DirectKind::Loader,
            Some(ip) if in_libc(ip) => match syscall.stack.first() {
                Some(caller) if in_libc(*caller) && syscall.kind != SyscallKind::Brk => DirectKind::Libc,
                _ if syscall.kind == SyscallKind::Brk => DirectKind::ProgramBreak,
                _ => DirectKind::Program,
            },
            _ => DirectKind::Unknown,
        };
        Verdict { kind, module: None }
    }
}

#[derive(Clone, Debug, Default)]
struct Sums {
    syscalls: BTreeMap<SyscallKind, u64>,
    net_bytes: i64,
}

#[derive(Clone, Debug, Default)]
pub struct DirectBook {
    groups: BTreeMap<(DirectKind, Option<String>), Sums>,
}

impl DirectBook {
    /// Enters a call; `net_bytes` is what it mapped minus what it unmapped.
    pub fn enter(&mut self, verdict: &Verdict, kind: SyscallKind, net_bytes: i64) {
        let mut key = (verdict.kind, verdict.module.clone());
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&key) {
            key.1 = None;
        }
        let sums = self.groups.entry(key).or_default();
        let count = sums.syscalls.entry(kind).or_default();
        *count = count.saturating_add(1);
        sums.net_bytes = sums.net_bytes.saturating_add(net_bytes);
    }

    pub fn report(&self) -> Vec<DirectGroup> {
        let group = |((kind, module), sums): (&(DirectKind, Option<String>), &Sums)| DirectGroup {
            kind: *kind,
            module: module.clone(),
            syscalls: sums
                .syscalls
                .iter()
                .map(|(kind, count)| (kind.name().to_string(), *count))
                .collect(),
            net_bytes: sums.net_bytes,
        };
        self.groups.iter().map(group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Attribution, Snapshot};

    const PROGRAM: u64 = 0x1_0000;
    const LIBC: u64 = 0x2_0000;
    const LOADER: u64 = 0x3_0000;
    const JEMALLOC: u64 = 0x4_0000;
    const JIT: u64 = 0x5_0000;
    const DATA: u64 = 0x9_0000;

    fn modules() -> Modules {
        let module = |start: u64, path: &str, role| Module {
            start,
            end: start + 0x1000,
            path: path.to_string(),
            role,
        };
        let mut modules = Modules::default();
        modules.learn(&[
            module(PROGRAM, "/bin/program", ModuleRole::Program),
            module(LIBC, "/lib/libc.so.6", ModuleRole::Libc),
            module(LOADER, "/lib/ld-linux-x86-64.so.2", ModuleRole::Program),
            module(JEMALLOC, "/lib/libjemalloc.so.2", ModuleRole::Allocator),
            module(JIT, "", ModuleRole::Anonymous),
        ]);
        modules
    }

    fn syscall(kind: SyscallKind, args: [u64; 6], ip: Option<u64>, stack: &[u64]) -> Syscall {
        let mut words = [0; 8];
        words[..stack.len()].copy_from_slice(stack);
        Syscall {
            kind,
            args,
            result: 0,
            enter_ns: 0,
            attribution: Attribution::None,
            frame: None,
            ip,
            stack: words,
            heap: None,
            snapshot: Snapshot::default(),
            resident_bytes: None,
        }
    }

    const ANONYMOUS: u64 = mman::MAP_ANONYMOUS | 2;

    #[test]
    fn whose_code_made_the_call_tells_its_kind() {
        use DirectKind::*;
        let map = |prot| [0, 4096, prot, ANONYMOUS, u64::MAX, 0];
        let cases = [
            (SyscallKind::Mmap, map(3), LIBC, &[PROGRAM][..], Program),
            // A wrapper that saves registers first.
            (SyscallKind::Mmap, map(3), LIBC, &[DATA, 7, PROGRAM], Program),
            (SyscallKind::Mmap, map(3), LIBC, &[LIBC, PROGRAM], Libc),
            (SyscallKind::Mmap, map(3), LIBC, &[JEMALLOC], OtherAllocator),
            (SyscallKind::Mmap, map(3), JEMALLOC, &[PROGRAM], OtherAllocator),
            (SyscallKind::Mmap, map(3), LOADER, &[], Loader),
            (SyscallKind::Mmap, map(3), JIT, &[], Runtime),
            (SyscallKind::Mmap, map(7), LIBC, &[PROGRAM], Runtime),
            (
                SyscallKind::Mprotect,
                [DATA, 4096, 5, 0, 0, 0],
                LIBC,
                &[PROGRAM],
                Runtime,
            ),
            (
                SyscallKind::Brk,
                [DATA, 0, 0, 0, 0, 0],
                LIBC,
                &[LIBC, 1, LIBC, PROGRAM],
                ProgramBreak,
            ),
            (SyscallKind::Brk, [DATA, 0, 0, 0, 0, 0], LIBC, &[LIBC], Libc),
            (SyscallKind::Mmap, map(3), DATA, &[], Unknown),
        ];
        for (kind, args, ip, stack, expected) in cases {
            let call = syscall(kind, args, Some(ip), stack);
            let verdict = classify(&call, false, &modules(), &Regions::default()).unwrap();
            assert_eq!(verdict.kind, expected, "{call:?}");
            let in_handler = classify(&call, true, &modules(), &Regions::default()).unwrap();
            assert_eq!(in_handler.kind, SignalHandler);
        }
    }

    #[test]
    fn thread_stacks_are_known_by_flag_and_later_by_place() {
        let mut regions = Regions::default();
        let map = syscall(
            SyscallKind::Mmap,
            [0, 8 << 20, 0, ANONYMOUS | mman::MAP_STACK, 0, 0],
            None,
            &[],
        );
        assert_eq!(
            classify(&map, false, &Modules::default(), &regions).unwrap().kind,
            DirectKind::ThreadStack
        );
        regions.insert(DATA, 8 << 20, RegionKind::ThreadStack);
        let unmap = syscall(SyscallKind::Munmap, [DATA, 8 << 20, 0, 0, 0, 0], Some(LIBC), &[LIBC]);
        assert_eq!(
            classify(&unmap, false, &modules(), &regions).unwrap().kind,
            DirectKind::ThreadStack
        );
    }

    #[test]
    fn without_modules_the_answer_waits_or_is_guessed() {
        let code = syscall(SyscallKind::Mmap, [0, 4096, 5, 2, 3, 0], Some(LOADER), &[]);
        assert_eq!(classify(&code, false, &Modules::default(), &Regions::default()), None);
        let mut origins = Origins::default();
        assert_eq!(origins.guess(&code, false).kind, DirectKind::Unknown);
        origins.direct_call(&code);
        assert_eq!(origins.guess(&code, false).kind, DirectKind::Loader);
        origins.allocator_call(&syscall(SyscallKind::Brk, [0; 6], Some(0x7000_0000), &[]));
        let from_libc = |stack: &[u64]| syscall(SyscallKind::Mmap, [0; 6], Some(0x7000_1000), stack);
        assert_eq!(origins.guess(&from_libc(&[0x7000_2000]), false).kind, DirectKind::Libc);
        assert_eq!(origins.guess(&from_libc(&[PROGRAM]), false).kind, DirectKind::Program);
    }
}
