//! glibc's own figures: mallinfo2(3), or mallinfo(3) where libc is older than 2.33, so that one file runs under every
//! release from 2.31 on.

use std::ffi::{CStr, c_void};

/// What a program prints of them; of the older call, figures of 2 GiB and more are cut to 32 bits by glibc.
pub struct Books {
    pub arena: usize,
    pub uordblks: usize,
    pub fordblks: usize,
    pub keepcost: usize,
    pub hblks: usize,
    pub hblkhd: usize,
}

type Mallinfo2 = unsafe extern "C" fn() -> libc::mallinfo2;

/// Reads them. Allocates nothing: a name that exists is looked up without an error message, and no other is.
pub fn read() -> Books {
    if has_mallinfo2() {
        // SAFETY: a lookup of a name that libc has.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr()) };
        // SAFETY: it is libc's function of that type, or null, which is None.
        if let Some(call) = unsafe { std::mem::transmute::<*mut c_void, Option<Mallinfo2>>(address) } {
            // SAFETY: has no precondition.
            let books = unsafe { call() };
            return Books {
                arena: books.arena,
                uordblks: books.uordblks,
                fordblks: books.fordblks,
                keepcost: books.keepcost,
                hblks: books.hblks,
                hblkhd: books.hblkhd,
            };
        }
    }
    // SAFETY: has no precondition.
    let books = unsafe { libc::mallinfo() };
    let whole = |figure: i32| figure as u32 as usize;
    Books {
        arena: whole(books.arena),
        uordblks: whole(books.uordblks),
        fordblks: whole(books.fordblks),
        keepcost: whole(books.keepcost),
        hblks: whole(books.hblks),
        hblkhd: whole(books.hblkhd),
    }
}

/// glibc 2.33 or later.
fn has_mallinfo2() -> bool {
    // SAFETY: has no precondition, and gives a string that lives for ever.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    let minor = version
        .to_bytes()
        .strip_prefix(b"2.")
        .and_then(|minor| std::str::from_utf8(minor).ok());
    minor
        .and_then(|minor| minor.split('.').next()?.parse::<u32>().ok())
        .is_none_or(|minor| minor >= 33)
}
