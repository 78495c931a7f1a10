//! Another process's memory through process_vm_readv: in big reads, and without fetching pages that are not there.

use memtrace_analysis::glibc::{ReadMemory, Residency, Unreadable};

/// Parts that one call of process_vm_readv takes (IOV_MAX).
const MOST_PARTS: usize = 1024;

pub struct ProcessMemory<'a> {
    pid: libc::pid_t,
    residency: &'a Residency,
}

impl<'a> ProcessMemory<'a> {
    pub fn new(pid: u32, residency: &'a Residency) -> Self {
        ProcessMemory {
            pid: pid.cast_signed(),
            residency,
        }
    }

    /// Bytes read; short where a part cannot be read.
    fn read_parts(&self, local: &libc::iovec, remote: &[libc::iovec]) -> Result<usize, std::io::Error> {
        // SAFETY: `local` describes memory that the caller holds mutably for the time of the call; the kernel checks
        // the remote addresses itself.
        let read =
            unsafe { libc::process_vm_readv(self.pid, local, 1, remote.as_ptr(), remote.len() as libc::c_ulong, 0) };
        usize::try_from(read).map_err(|_| std::io::Error::last_os_error())
    }
}

impl ReadMemory for ProcessMemory<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        let remote = libc::iovec {
            iov_base: address as *mut libc::c_void,
            iov_len: into.len(),
        };
        match self.read_parts(&local, &[remote]) {
            Ok(read) if read == into.len() => Ok(()),
            Ok(read) => Err(Unreadable {
                address: address.saturating_add(read as u64),
            }),
            Err(_) => Err(Unreadable { address }),
        }
    }

    fn readily(&self, address: u64) -> u64 {
        match self.residency.run(address) {
            (true, bytes) => bytes,
            (false, _) => 0,
        }
    }

    fn words(&self, addresses: &[u64], into: &mut Vec<Option<u64>>) {
        into.clear();
        let mut words = [0u64; MOST_PARTS];
        let mut rest = addresses;
        while !rest.is_empty() {
            let batch = &rest[..rest.len().min(MOST_PARTS)];
            let remote: Vec<libc::iovec> = batch
                .iter()
                .map(|address| libc::iovec {
                    iov_base: *address as *mut libc::c_void,
                    iov_len: 8,
                })
                .collect();
            let local = libc::iovec {
                iov_base: words.as_mut_ptr().cast(),
                iov_len: batch.len() * 8,
            };
            let read = self.read_parts(&local, &remote).unwrap_or(0) / 8;
            into.extend(words[..read].iter().map(|word| Some(*word)));
            // The part that stopped the read is the one that cannot be read.
            let done = if read < batch.len() {
                into.push(None);
                read + 1
            } else {
                read
            };
            rest = &rest[done..];
        }
    }
}
