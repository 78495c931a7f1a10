//! Where a process's threads are while its heap is read: a heap that contradicts itself is damaged only if no thread is
//! in the middle of changing it.
//!
//! malloc's own lock does not tell: a process of one thread takes none.

use std::fs;
use std::ops::Range;

use memtrace_analysis::glibc::Mapping;

use super::proc_file;

/// CPU time in which a thread has left any one change of the heap behind: they take microseconds.
const LONG_ENOUGH_NS: u64 = 1_000_000;

/// The system calls that malloc and free make with a change half done.
const MEMORY_CALLS: [libc::c_long; 6] = [
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
];

/// All threads of a process at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threads(Vec<Thread>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Thread {
    id: libc::pid_t,
    /// It runs, or waits or was stopped where malloc may be at work.
    may_be_in_malloc: bool,
    /// CPU time so far, as the scheduler counts it.
    ran_ns: u64,
}

impl Threads {
    /// A thread that cannot be looked at has ended.
    pub fn now(pid: u32, mappings: &[Mapping], library: Option<&str>) -> Self {
        let code: Vec<Range<u64>> = mappings
            .iter()
            .filter(|mapping| mapping.executable && Some(mapping.path.as_str()) == library)
            .map(|mapping| mapping.start..mapping.end)
            .collect();
        let ids = proc_file::thread_ids(pid).unwrap_or_default();
        let thread = |id| {
            let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/task/{id}/{file}")).ok();
            Some(Thread {
                id,
                may_be_in_malloc: may_be_in_malloc(&read("syscall")?, &code),
                ran_ns: ran_ns(&read("schedstat").unwrap_or_default()),
            })
        };
        Self(ids.into_iter().filter_map(thread).collect())
    }

    pub fn none_in_malloc(&self) -> bool {
        self.0.iter().all(|thread| !thread.may_be_in_malloc)
    }

    /// Whether each thread that may be in malloc has run for so long since `before` that it is not in the same call.
    pub fn have_moved_on_since(&self, before: &Self) -> bool {
        self.0.iter().filter(|thread| thread.may_be_in_malloc).all(|thread| {
            let then = before.0.iter().find(|then| then.id == thread.id);
            then.is_some_and(|then| thread.ran_ns.saturating_sub(then.ran_ns) >= LONG_ENOUGH_NS)
        })
    }
}

/// From /proc/PID/task/TID/syscall: "NUMBER ARGUMENTS... SP PC" in a system call, "-1 SP PC" stopped outside of one, or
/// "running".
fn may_be_in_malloc(syscall: &str, code: &[Range<u64>]) -> bool {
    let mut words = syscall.split_ascii_whitespace();
    match words.next().and_then(|word| word.parse::<libc::c_long>().ok()) {
        Some(-1) => {
            let pc = words
                .next_back()
                .and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
            pc.is_none_or(|pc| code.iter().any(|range| range.contains(&pc)))
        }
        Some(number) => MEMORY_CALLS.contains(&number),
        None => true,
    }
}

/// The first number of /proc/PID/task/TID/schedstat; 0, which proves no progress, where the kernel keeps none.
fn ran_ns(schedstat: &str) -> u64 {
    let first = schedstat.split_ascii_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_thread_is() {
        let code = [0x7000..0x8000, 0x9000..0xa000];
        for (text, expected) in [
            ("running\n", true),
            ("-1 0x7ffc0000 0x7123\n", true),
            ("-1 0x7ffc0000 0x8000\n", false),
            ("", true),
            ("-1", true),
        ] {
            assert_eq!(may_be_in_malloc(text, &code), expected, "{text:?}");
        }
        let calling = |number| format!("{number} 0x0 0x0 0x0 0x0 0x0 0x0 0x7ffc0000 0x7123");
        assert!(may_be_in_malloc(&calling(libc::SYS_brk), &code));
        assert!(!may_be_in_malloc(&calling(libc::SYS_read), &code));
    }

    #[test]
    fn progress_is_time_on_a_processor() {
        let thread = |id, may_be_in_malloc, ran_ns| Thread {
            id,
            may_be_in_malloc,
            ran_ns,
        };
        let before = Threads(vec![thread(1, true, 500), thread(2, false, 7)]);
        let preempted = Threads(vec![thread(1, true, 900), thread(2, false, 7)]);
        let went_on = Threads(vec![thread(1, true, 500 + LONG_ENOUGH_NS), thread(2, false, 7)]);
        let with_another = Threads(vec![thread(2, false, 7), thread(3, true, LONG_ENOUGH_NS)]);
        assert!(!preempted.have_moved_on_since(&before));
        assert!(went_on.have_moved_on_since(&before));
        assert!(!with_another.have_moved_on_since(&before));
        assert!(!before.none_in_malloc());
        assert_eq!(ran_ns("123 45 6\n"), 123);
        assert_eq!(ran_ns(""), 0);
    }
}
