//! A look at a process from outside, through /proc: what becomes [`Sample`] events.

use crate::page_size::page_size;
use crate::sentence;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};

use memtrace_analysis::event::Sample;
use memtrace_analysis::glibc::summary::LookSummary;

use crate::inspect;

/// Resident bytes, threads, CPU time and break of a process now.
///
/// Errors are those of reading /proc; a process that has ended is one.
pub fn sample(pid: u32) -> io::Result<Sample> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let mut sample = parse_stat(&stat, ticks_per_second(), page_size())
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat is not that of a live process")))?;
    match File::open(format!("/proc/{pid}/maps")) {
        Ok(maps) => {
            // Without a heap the break is still where the kernel put it.
            sample.break_end = heap_end(BufReader::new(maps))?.or(sample.break_end);
        }
        // The maps of another user's process may be closed to us where its figures are not.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => sample.break_end = None,
        Err(error) => return Err(error),
    }
    Ok(sample)
}

/// What malloc's own books say now; the process runs on meanwhile. One that cannot be looked at has the reason instead.
pub fn books(pid: u32) -> Box<LookSummary> {
    Box::new(match inspect::look(pid) {
        Ok(look) => LookSummary::from(&look),
        Err(error) => LookSummary::failed(sentence::of(&error)),
    })
}

/// CLOCK_MONOTONIC, the clock of the kernel side's events.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours and writable; the clock exists on every Linux.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    debug_assert_eq!(result, 0, "CLOCK_MONOTONIC can be read");
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

fn ticks_per_second() -> u64 {
    // SAFETY: sysconf has no preconditions.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).unwrap_or(100).max(1)
}

/// proc_pid_stat(5): the name stands in parentheses and may itself hold some, so fields count from the last one. The
/// break is that of the process's start (field 47, a zero where it is hidden from us).
fn parse_stat(stat: &str, ticks: u64, page: u64) -> Option<Sample> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    // The first one here is field 3, the state. What has ended has no memory any more: a zombie, or one on its way out.
    if matches!(fields.first(), Some(&("Z" | "X" | "x"))) {
        return None;
    }
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let cpu_ticks = number(14)?.checked_add(number(15)?)?;
    Some(Sample {
        threads: u32::try_from(number(20)?).ok()?,
        resident_bytes: number(24)?.checked_mul(page)?,
        cpu_ns: cpu_ticks.checked_mul(1_000_000_000 / ticks)?,
        break_end: number(47).filter(|start| *start != 0),
    })
}

/// The end of the mapping(s) named `[heap]`: the break, rounded up to a page.
fn heap_end(maps: impl BufRead) -> io::Result<Option<u64>> {
    let mut end = None;
    for line in maps.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if line.ends_with("[heap]") {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            end = range.and_then(|(_, end)| u64::from_str_radix(end, 16).ok());
        } else if end.is_some() {
            // Pieces of the heap stand side by side.
            break;
        }
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_shifts_no_field() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 25 5 0 0 20 0 3 0 100 10000000 600 18446744073709551615";
        let sample = parse_stat(stat, 100, 4096).unwrap();
        let expected = Sample {
            resident_bytes: 600 * 4096,
            threads: 3,
            break_end: None,
            cpu_ns: 300_000_000,
        };
        assert_eq!(sample, expected);
        assert!(parse_stat(&stat.replacen(" S ", " Z ", 1), 100, 4096).is_none());
        assert!(parse_stat("7 (x", 100, 4096).is_none());
        assert!(parse_stat("", 100, 4096).is_none());
    }

    #[test]
    fn the_heap_may_have_pieces() {
        let maps = b"55550000-55551000 r-xp 0 0:0 1 /bin/x\n55559000-5557a000 rw-p 0 0:0 0 [heap]\n\
            5557a000-5557b000 r--p 0 0:0 0 [heap]\n7f0000000000-7f0000001000 rw-p 0 0:0 0 \xff\n";
        assert_eq!(heap_end(maps.as_slice()).unwrap(), Some(0x5557_b000));
        assert_eq!(heap_end(b"".as_slice()).unwrap(), None);
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let sample = sample(std::process::id()).unwrap();
        assert!(sample.resident_bytes > 100_000);
        assert!(sample.threads >= 1);
        assert!(sample.break_end.is_some());
    }
}
