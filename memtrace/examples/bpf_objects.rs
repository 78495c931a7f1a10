//! What BPF programs and links the kernel has, asked of bpf(2) itself.
//!
//! ```text
//! bpf_objects              their ids: `program 12`, `link 7`, a line each
//! ```

use std::io;

use anyhow::{Context, Result};

const BPF_PROG_GET_NEXT_ID: libc::c_int = 11;
const BPF_LINK_GET_NEXT_ID: libc::c_int = 31;

fn main() -> Result<()> {
    for (name, command) in [("program", BPF_PROG_GET_NEXT_ID), ("link", BPF_LINK_GET_NEXT_ID)] {
        for id in ids(command).with_context(|| format!("asking for the next {name}"))? {
            println!("{name} {id}");
        }
    }
    Ok(())
}

fn ids(command: libc::c_int) -> io::Result<Vec<u32>> {
    #[repr(C)]
    struct NextId {
        start: u32,
        next: u32,
        flags: u32,
    }
    let mut ids = Vec::new();
    let mut question = NextId {
        start: 0,
        next: 0,
        flags: 0,
    };
    loop {
        // SAFETY: the structure is what these commands take, and write their answer to.
        match unsafe { bpf(command, &mut question) } {
            Ok(_) => ids.push(question.next),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(ids),
            Err(error) => return Err(error),
        }
        question.start = question.next;
    }
}

/// # Safety
/// `attributes` is what the command takes, and what it points to lives through the call.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}
