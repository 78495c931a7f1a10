//! /proc/PID/smaps and /proc/PID/pagemap.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, anyhow};
use memtrace_analysis::glibc::{Mapping, Residency};

use crate::printable::printable;

/// All mappings of a process with the kernel's figures of each.
pub fn read_smaps(pid: u32) -> Result<Vec<Mapping>> {
    let path = format!("/proc/{pid}/smaps");
    let file = File::open(&path).with_context(|| format!("opening {path}"))?;
    parse_smaps(BufReader::new(file)).with_context(|| format!("reading {path}"))
}

/// The mappings without any figures, which the kernel has at once.
pub fn read_maps(pid: u32) -> Result<Vec<Mapping>> {
    let path = format!("/proc/{pid}/maps");
    let file = File::open(&path).with_context(|| format!("opening {path}"))?;
    parse_smaps(BufReader::new(file)).with_context(|| format!("reading {path}"))
}

fn parse_smaps(mut source: impl BufRead) -> Result<Vec<Mapping>> {
    let mut mappings: Vec<Mapping> = Vec::new();
    let mut raw = Vec::new();
    loop {
        raw.clear();
        // File names are bytes; those that are no UTF-8 are shown with replacement characters.
        if source.read_until(b'\n', &mut raw)? == 0 {
            return Ok(mappings);
        }
        let line = String::from_utf8_lossy(&raw);
        let line = line.trim_end_matches('\n');
        let key = line.split_ascii_whitespace().next().unwrap_or("");
        let Some(key) = key.strip_suffix(':') else {
            mappings.push(parse_header(line).ok_or_else(|| anyhow!("cannot make sense of the line {line:?}"))?);
            continue;
        };
        let Some(mapping) = mappings.last_mut() else { continue };
        let bytes = || -> Option<u64> { Some(line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()? * 1024) };
        let field = match key {
            "Rss" => &mut mapping.resident,
            "Anonymous" => &mut mapping.anonymous,
            "Swap" => &mut mapping.swapped,
            "LazyFree" => &mut mapping.lazily_freed,
            "AnonHugePages" => &mut mapping.huge,
            "Private_Hugetlb" | "Shared_Hugetlb" => &mut mapping.hugetlb,
            _ => continue,
        };
        *field += bytes().ok_or_else(|| anyhow!("cannot make sense of the line {line:?}"))?;
    }
}

/// "7f12...-7f13... rw-p 00000000 00:00 0    [heap]"
fn parse_header(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut next = || {
        rest = rest.trim_start_matches(' ');
        let (word, after) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
        rest = after;
        word
    };
    let (range, permissions, _offset, _device, inode) = (next(), next(), next(), next(), next());
    let path = rest.trim_start_matches(' ');
    let (start, end) = range.split_once('-')?;
    let allows = |position: usize, letter: u8| permissions.as_bytes().get(position) == Some(&letter);
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        readable: allows(0, b'r'),
        writable: allows(1, b'w'),
        executable: allows(2, b'x'),
        shared: allows(3, b's'),
        inode: inode.parse().ok()?,
        // To be shown; files are opened by the kernel's own link to them, where it lets them.
        path: printable(path.as_bytes()),
        ..Mapping::default()
    })
}

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// Page states of all anonymous mappings that have anything in memory or in swap.
pub fn read_residency(pid: u32, mappings: &[Mapping], page: u64) -> Result<Residency> {
    let path = format!("/proc/{pid}/pagemap");
    let file = File::open(&path).with_context(|| format!("opening {path}"))?;
    let mut residency = Residency::new(page);
    let mut buffer = vec![0; 64 * 1024];
    let used = |mapping: &&Mapping| mapping.is_anonymous() && mapping.resident + mapping.swapped > 0;
    for mapping in mappings.iter().filter(used) {
        residency.add_range(mapping.start, mapping.end);
        let mut address = mapping.start;
        while address < mapping.end {
            let entries = ((mapping.end - address) / page).min(buffer.len() as u64 / 8) as usize;
            let bytes = &mut buffer[..entries * 8];
            let read = file
                .read_at(bytes, address / page * 8)
                .with_context(|| format!("reading {path}"))?;
            if read < 8 {
                // Unmapped since the mappings were listed.
                break;
            }
            for entry in bytes[..read].chunks_exact(8) {
                let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
                if entry & (PRESENT | SWAPPED) != 0 {
                    residency.mark(address, entry & PRESENT != 0, entry & SWAPPED != 0);
                }
                address += page;
            }
        }
    }
    Ok(residency)
}

/// All pages of mappings that have any in memory: the most that can be said without the pagemap.
pub fn assumed_residency(mappings: &[Mapping], page: u64) -> Residency {
    let mut residency = Residency::new(page);
    for mapping in mappings
        .iter()
        .filter(|mapping| mapping.is_anonymous() && mapping.resident > 0)
    {
        residency.add_range(mapping.start, mapping.end);
        for address in (mapping.start..mapping.end).step_by(page as usize) {
            residency.mark(address, true, false);
        }
    }
    residency
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_names_are_read() {
        let text = b"00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/a b (deleted)\n\
            Size:                328 kB\nRss:                 100 kB\nAnonymous:             0 kB\nVmFlags: rd ex\n\
            55d0-55d1 rw-p 00000000 00:00 0                          [heap]\n\
            Rss:                   8 kB\nAnonymous:             8 kB\nSwap:                  4 kB\nLazyFree:    4 kB\n";
        let mappings = parse_smaps(&text[..]).unwrap();
        assert_eq!(mappings.len(), 2);
        assert_eq!(mappings[0].path, "/usr/bin/a b (deleted)");
        assert_eq!(
            (mappings[0].resident, mappings[0].anonymous, mappings[0].inode),
            (102_400, 0, 173_521)
        );
        assert!(mappings[0].executable && !mappings[0].writable && !mappings[0].is_anonymous());
        assert_eq!(
            (mappings[1].start, mappings[1].end, mappings[1].swapped),
            (0x55d0, 0x55d1, 4096)
        );
        assert!(mappings[1].is_anonymous());
    }

    #[test]
    fn other_text_is_refused() {
        assert!(parse_smaps(&b"nothing of the kind\n"[..]).is_err());
        assert!(parse_smaps(&b"00400000-00452000 r-xp 0 0 1\nRss: many kB\n"[..]).is_err());
    }

    #[test]
    fn touched_pages_of_this_process_are_present() {
        let page = 4096usize;
        let mut block = vec![0u8; 64 * page];
        let start = (block.as_ptr() as usize).next_multiple_of(page);
        let skipped = start - block.as_ptr() as usize;
        for index in (0..32).step_by(2) {
            block[skipped + index * page] = 1;
        }
        let mappings = read_smaps(std::process::id()).unwrap();
        let residency = read_residency(std::process::id(), &mappings, page as u64).unwrap();
        for index in (0..32).step_by(2) {
            assert!(
                residency.is_present((start + index * page) as u64),
                "page {index} was written to"
            );
        }
    }
}
