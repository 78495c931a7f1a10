//! A look at a process from outside, at one moment: what the kernel says of its memory, and glibc's settings.

use crate::page_size::page_size;
use crate::sentence;
use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};

use super::books::Books;

/// Sizes in bytes.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Seconds since the program was started.
    pub at: f64,
    pub resident: f64,
    /// Resident bytes of the main heap ([heap]); 0 before there is one.
    pub heap_resident: f64,
    /// Where the break stands, to a page; None where the kernel hides it.
    pub heap_end: Option<u64>,
    pub minor_faults: f64,
    /// In transparent huge pages.
    pub huge_pages: f64,
    pub threads: f64,
    /// Anonymous mappings without a name, by size, the largest first.
    pub anonymous: Vec<u64>,
    /// Of the whole machine.
    pub machine: MachineMemory,
    /// None where the process has no glibc that is known.
    pub books: Option<Books>,
    /// Why there are none.
    books_unknown: Option<String>,
}

/// /proc/meminfo, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct MachineMemory {
    pub total: f64,
    pub free: f64,
    pub available: f64,
    pub buffers: f64,
    pub cached: f64,
    pub dirty: f64,
    pub writeback: f64,
    /// Page cache that the kernel took back since boot because memory was short (pgsteal_* of /proc/vmstat), bytes.
    pub taken_back: f64,
}

impl Look {
    pub fn take(pid: u32, since: Instant) -> Result<Self> {
        let looked = || -> Result<Self> {
            let smaps = read(&format!("/proc/{pid}/smaps"))?;
            let stat = read(&format!("/proc/{pid}/stat"))?;
            let mut look = Self::of_smaps(&smaps);
            // The name may hold blanks and brackets; after the last one come the fields from the third on.
            let fields: Vec<_> = stat
                .rsplit_once(')')
                .map_or("", |(_, rest)| rest)
                .split_whitespace()
                .collect();
            look.minor_faults = field(&fields, 10)?;
            look.threads = field(&fields, 20)?;
            // Without a heap the break is where the program's data ended; a zero is hidden.
            let start = field(&fields, 47)?;
            look.heap_end = look.heap_end.or((start > 0.0).then_some(start as u64));
            look.machine = MachineMemory::now()?;
            match Books::read(pid) {
                Ok(books) => look.books = Some(books),
                Err(error) => look.books_unknown = Some(sentence::of(&error)),
            }
            look.at = since.elapsed().as_secs_f64();
            Ok(look)
        };
        looked().with_context(|| format!("looking at process {pid}"))
    }

    /// Why [`Look::books`] are not there, as a reason for what they would have shown.
    pub fn without_books(&self) -> String {
        let why = self.books_unknown.as_deref().unwrap_or("nobody looked");
        format!("glibc's books could not be read in this process: {why}")
    }

    fn of_smaps(smaps: &str) -> Self {
        let mut look = Self::default();
        let mut in_heap = false;
        let mut last_end = None;
        for line in smaps.lines() {
            if let Some(mapping) = Mapping::parse(line) {
                in_heap = mapping.name == "[heap]";
                if in_heap {
                    look.heap_end = Some(mapping.end);
                }
                let anonymous = mapping.name.is_empty() && mapping.inode == 0;
                if anonymous {
                    // Neighbours that differ only in their protection are one to the reader.
                    match look.anonymous.last_mut() {
                        Some(size) if last_end == Some(mapping.start) => *size += mapping.end - mapping.start,
                        _ => look.anonymous.push(mapping.end - mapping.start),
                    }
                }
                last_end = anonymous.then_some(mapping.end);
            } else if let Some(kib) = line.strip_prefix("AnonHugePages:").and_then(kib) {
                look.huge_pages += kib;
            } else if let Some(kib) = line.strip_prefix("Rss:").and_then(kib) {
                look.resident += kib;
                if in_heap {
                    look.heap_resident += kib;
                }
            }
        }
        look.anonymous.sort_unstable_by(|a, b| b.cmp(a));
        look
    }
}

impl MachineMemory {
    pub fn now() -> Result<Self> {
        let text = read("/proc/meminfo")?;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(kib)
                .with_context(|| format!("/proc/meminfo has no {name}"))
        };
        Ok(Self {
            total: value("MemTotal")?,
            free: value("MemFree")?,
            available: value("MemAvailable")?,
            buffers: value("Buffers")?,
            cached: value("Cached")?,
            dirty: value("Dirty")?,
            writeback: value("Writeback")?,
            taken_back: taken_back(&read("/proc/vmstat")?),
        })
    }

    /// What `free` calls buff/cache, reclaimable slabs left out.
    pub fn buff_cache(&self) -> f64 {
        self.buffers + self.cached
    }
}

/// Pages that kswapd or a process in need stole from the page cache, in bytes.
fn taken_back(vmstat: &str) -> f64 {
    let pages: f64 = ["pgsteal_kswapd ", "pgsteal_direct "]
        .iter()
        .filter_map(|name| vmstat.lines().find_map(|line| line.strip_prefix(name)))
        .filter_map(|value| value.trim().parse::<f64>().ok())
        .sum();
    pages * page_size() as f64
}

/// A line of /proc/PID/maps, as far as it is needed.
struct Mapping<'a> {
    start: u64,
    end: u64,
    inode: u64,
    name: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let mut rest = rest;
        let mut words = [""; 4];
        for word in &mut words {
            let trimmed = rest.trim_start();
            let end = trimmed.find(' ').unwrap_or(trimmed.len());
            (*word, rest) = trimmed.split_at(end);
        }
        Some(Self {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            inode: words[3].parse().ok()?,
            name: rest.trim(),
        })
    }
}

fn field(fields: &[&str], number: usize) -> Result<f64> {
    // `fields` begins with the third field of proc(5), counted from one.
    let text = fields
        .get(number - 3)
        .with_context(|| format!("its stat file has no field {number}"))?;
    text.parse()
        .with_context(|| format!("field {number} of its stat file is {text}"))
}

fn kib(text: &str) -> Option<f64> {
    text.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<f64>()
        .ok()
        .map(|kib| kib * 1024.0)
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_anonymous_mappings_are_one() {
        let smaps = "\
5000-7000 rw-p 00000000 00:00 0                          [heap]
Rss:                   8 kB
10000-20000 rw-p 00000000 00:00 0
Rss:                   4 kB
20000-40000 ---p 00000000 00:00 0
Rss:                   0 kB
40000-41000 r-xp 00000000 fe:00 77                       /usr/lib/a b.so
Rss:                   4 kB
";
        let look = Look::of_smaps(smaps);
        assert_eq!(look.heap_end, Some(0x7000));
        assert_eq!((look.heap_resident, look.resident), (8192.0, 16384.0));
        assert_eq!(look.anonymous, [0x30000]);
    }

    #[test]
    fn this_very_process_can_be_looked_at() {
        let look = Look::take(std::process::id(), Instant::now()).unwrap();
        assert!(look.resident > 0.0 && look.threads >= 1.0 && look.machine.total > look.resident);
    }
}
