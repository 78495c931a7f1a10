//! Memory system calls, counted by whose they are.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};

use crate::event::{Syscall, SyscallKind, Totals};
use crate::owner::Owner;
use crate::report::SyscallCount;

#[derive(Clone, Debug, Default)]
pub struct Tally {
    seen: BTreeMap<SyscallKind, SyscallCount>,
}

/// The call did not do what was asked. brk has no errno: it returns another break than the one asked for.
pub const fn failed(syscall: &Syscall) -> bool {
    match syscall.kind {
        SyscallKind::Brk => syscall.args[0] != 0 && syscall.result.cast_unsigned() != syscall.args[0],
        _ => syscall.result < 0 && syscall.result >= -4095,
    }
}

impl Tally {
    pub fn count(&mut self, syscall: &Syscall, owner: Owner) {
        let count = self.seen.entry(syscall.kind).or_default();
        let raise = |value: &mut u64| *value = value.saturating_add(1);
        raise(&mut count.count);
        if failed(syscall) {
            raise(&mut count.failed);
        }
        match owner {
            Owner::Call { .. } => raise(&mut count.attributed),
            Owner::Direct { .. } => raise(&mut count.direct),
            Owner::Unknown => raise(&mut count.unknown),
        }
    }

    /// By name. The totals count each call; whose the ones are whose records were lost is unknown.
    pub fn report(&self, totals: Option<&Totals>) -> BTreeMap<String, SyscallCount> {
        let mut report = BTreeMap::new();
        for (place, kind) in SyscallKind::ALL.into_iter().enumerate() {
            let mut count = self.seen.get(&kind).copied().unwrap_or_default();
            let at = |table: fn(&Totals) -> &[u64; 6]| totals.and_then(|totals| table(totals).get(place).copied());
            let all = at(|totals| &totals.syscalls).unwrap_or(0).max(count.count);
            count.unknown = count.unknown.saturating_add(all.saturating_sub(count.count));
            count.count = all;
            count.failed = at(|totals| &totals.syscalls_failed).unwrap_or(0).max(count.failed);
            report.insert(kind.name().to_string(), count);
        }
        report
    }
}
