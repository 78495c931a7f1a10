//! A process that holds files in three states: one half read, one written and not yet on the disk, one mapped and looked
//! into at some pages.
//!
//! Facts of the phases: the descriptors `half`, `dirty` and `mapped`, each file's `bytes`, and the pages of the mapped one
//! that were looked at (`touched`). Phases: base, held, synced.

use std::ptr::null_mut;

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::file::File;
use crate::line;
use crate::stage::Stage;

const PAGE: usize = 4096;
/// Every so many pages of the mapped file are looked at.
const STRIDE: usize = 64;

pub const PROGRAM: Program = Program {
    name: "files-held",
    about: "holds one file half read, one not yet written to the disk, one mapped",
    options: &[NumberOption {
        name: "bytes",
        default: 16 << 20,
        maximum: 1 << 36,
    }],
    run,
};

fn run(stage: &mut Stage, options: &Options) {
    let bytes = options.count("bytes").max(PAGE);
    stage.phase("base");
    let (half, mapped) = (File::make('h', bytes), File::make('m', bytes));
    for file in [half, mapped] {
        file.sync();
        file.advise(libc::POSIX_FADV_DONTNEED);
        // What is asked for is to be all that comes.
        file.advise(libc::POSIX_FADV_RANDOM);
    }
    half.read_through(bytes / 2);
    let touched = look_into(mapped, bytes);
    let dirty = File::make('d', bytes);
    let mut phase = |name: &str| {
        stage.phase_of(
            name,
            format_args!(
                "half={} dirty={} mapped={} bytes={bytes} touched={touched} ",
                half.0, dirty.0, mapped.0
            ),
        );
    };
    phase("held");
    dirty.sync();
    phase("synced");
}

/// Maps a file for the rest of the process's life, and reads a byte of every so many pages.
fn look_into(file: File, bytes: usize) -> usize {
    // SAFETY: a mapping of a file that nobody makes shorter, read within its bounds.
    unsafe {
        let start = libc::mmap(null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.0, 0);
        if start == libc::MAP_FAILED {
            line::give_up("mapping a file", line::errno(), 1);
        }
        libc::madvise(start, bytes, libc::MADV_RANDOM);
        let mut touched = 0;
        for offset in (0..bytes).step_by(PAGE * STRIDE) {
            start.cast::<u8>().add(offset).read_volatile();
            touched += 1;
        }
        touched
    }
}
