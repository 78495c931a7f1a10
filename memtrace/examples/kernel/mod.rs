//! The calls of the kernel that the examples share: an empty BPF program, and events that it is bound to.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const BPF_PROG_LOAD: libc::c_int = 5;
/// `r0 = 0; exit`
const EMPTY: [u64; 2] = [0xb7, 0x95];
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;

/// Has the kernel verify the empty program.
pub fn load(kind: u32, attach_type: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Load {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log: [u64; 2],
        version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attach_type: u32,
    }
    let attributes = Load {
        kind,
        count: EMPTY.len() as u32,
        instructions: EMPTY.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log: [0; 2],
        version: 0,
        flags: 0,
        name: *b"empty\0\0\0\0\0\0\0\0\0\0\0",
        interface: 0,
        attach_type,
    };
    // SAFETY: the structure is what this command takes, and what it points to lives through the call.
    unsafe { bpf(BPF_PROG_LOAD, &attributes) }
}

/// The begin of `struct perf_event_attr`, as far as a uprobe or a tracepoint needs it.
#[repr(C)]
#[derive(Default)]
pub struct Event {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup: u32,
    pub breakpoint_type: u32,
    pub config1: u64,
    pub config2: u64,
}

/// Opens an event of a thread, or with -1 that of all, which a processor has to be named for.
///
/// # Safety
/// What `config1` and `config2` point to, if they do, is there.
pub unsafe fn open_event(event: &Event, thread: i32, processor: i32) -> io::Result<OwnedFd> {
    // SAFETY: the structure lives through the call, and says its own size; the rest is the caller's promise.
    let file = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(event),
            thread,
            processor,
            -1,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    owned(file)
}

/// Has a program run at each event; it stays as long as the event does.
pub fn bind(event: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    // SAFETY: both are open, and the command takes no pointer.
    if unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_BPF, program.as_raw_fd()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// # Safety
/// `attributes` is what the command takes, and what it points to lives through the call.
pub unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    owned(result)
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let file = RawFd::try_from(result).map_err(io::Error::other)?;
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new file descriptor that is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}
