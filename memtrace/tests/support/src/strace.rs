//! Memory system calls as strace sees them.

use std::collections::BTreeMap;

pub const SYSCALLS: [&str; 6] = ["brk", "mmap", "munmap", "mremap", "mprotect", "madvise"];

/// How often each was called, and how often it failed.
pub type Calls = BTreeMap<String, (u64, u64)>;

/// What strace is asked for, with `-f`, so that every line of its log begins with a thread's id.
pub fn arguments() -> [String; 4] {
    [
        "-f".to_owned(),
        "-qq".to_owned(),
        "-e".to_owned(),
        format!("trace={},write", SYSCALLS.join(",")),
    ]
}

/// Counts the calls in lines of strace's log. A call that another thread's line interrupts is two lines, of which the
/// second ("resumed") has the result.
pub fn count<'a>(lines: impl Iterator<Item = &'a str>) -> Calls {
    let mut calls: Calls = SYSCALLS.iter().map(|name| ((*name).to_owned(), (0, 0))).collect();
    // By thread, the break that it has asked for.
    let mut breaks: BTreeMap<&str, u64> = BTreeMap::new();
    for line in lines {
        // With one process only, strace leaves the id out.
        let call = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let thread = &line[..line.len() - call.len()];
        let call = call.trim_start();
        let resumed = call.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>"));
        let (name, begins) = match resumed {
            Some((name, _)) => (name, false),
            None => (call.split('(').next().unwrap_or_default(), true),
        };
        let Some((count, failed)) = calls.get_mut(name) else {
            continue;
        };
        *count += u64::from(begins);
        *failed += u64::from(call.contains(" = -1 E"));
        if name == "brk" {
            // It does not say that it failed: it returns the break as it is.
            if let Some(wanted) = call.strip_prefix("brk(").and_then(address) {
                breaks.insert(thread, wanted);
            }
            let got = call.rsplit_once(" = ").and_then(|(_, result)| address(result));
            if let (Some(got), Some(wanted)) = (got, breaks.get(thread)) {
                *failed += u64::from(got < *wanted);
            }
        }
    }
    calls
}

/// The address at the begin of a text; NULL is one too.
fn address(text: &str) -> Option<u64> {
    if text.starts_with("NULL") {
        return Some(0);
    }
    let digits = text.strip_prefix("0x")?;
    let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    u64::from_str_radix(&digits[..end], 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_whole_and_interrupted_calls() {
        let log = "12 brk(NULL) = 0x55\n\
                   12 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, -1, 0 <unfinished ...>\n\
                   13 munmap(0x1, 4096) = -1 EINVAL (Invalid argument)\n\
                   12 <... mmap resumed>) = -1 ENOMEM (Cannot allocate memory)\n\
                   12 write(1, \"x = -1 E\", 8) = 8\n\
                   brk(0x55) = 0x55\n\
                   brk(0x8000000000000000 <unfinished ...>\n\
                   <... brk resumed>) = 0x55\n\
                   13 brk(0x57) = 0x55\n\
                   12 +++ exited with 0 +++\n";
        let calls = count(log.lines());
        assert_eq!(calls["brk"], (4, 2));
        assert_eq!(calls["mmap"], (1, 1));
        assert_eq!(calls["munmap"], (1, 1));
        assert_eq!(calls["mremap"], (0, 0));
    }
}
