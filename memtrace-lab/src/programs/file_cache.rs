//! Two files, written, dropped from the page cache, read again, and advised about one by one.
//!
//! Phases: base, written (not yet on the disk), then in each round dropped (on the disk, out of the cache), idle (about
//! the time that reading takes, as a comparison) and read (both read through), in the end dontneed (the first given up)
//! and willneed (the first asked for, and read ahead by the kernel in its own time), pieces (asked for once more, a MiB
//! at a time). Facts: the descriptors `first` and `second`, and their `bytes`.

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::clock::{idle_ms, now_ns};
use crate::file::File;
use crate::line;
use crate::stage::Stage;

pub const PROGRAM: Program = Program {
    name: "file-cache",
    about: "writes, drops, reads two files, and gives up one of them",
    options: &[
        NumberOption {
            name: "bytes",
            default: 512 << 20,
            maximum: 1 << 40,
        },
        NumberOption {
            name: "neighbour-bytes",
            default: 32 << 20,
            maximum: 1 << 40,
        },
        NumberOption {
            name: "rounds",
            default: 5,
            maximum: 100,
        },
    ],
    run,
};

fn run(stage: &mut Stage, options: &Options) {
    let (bytes, neighbour) = (options.count("bytes"), options.count("neighbour-bytes"));
    stage.phase("base");
    let (first, second) = (File::make('a', bytes), File::make('b', neighbour));
    let mut phase = |name: &str| {
        stage.phase_of(
            name,
            format_args!(
                "first={} second={} bytes={bytes} neighbour={neighbour} ",
                first.0, second.0
            ),
        );
    };
    phase("written");
    for round in 0..options.get("rounds") {
        for file in [first, second] {
            file.sync();
            file.advise(libc::POSIX_FADV_DONTNEED);
        }
        phase("dropped");
        // About as long as a disk of two gigabytes a second needs.
        idle_ms((bytes >> 21) as u64);
        phase("idle");
        let began = now_ns();
        first.read_through(bytes);
        second.read_through(neighbour);
        line::print(format_args!("read round={round} ns={}", now_ns() - began));
        phase("read");
    }
    first.advise(libc::POSIX_FADV_DONTNEED);
    phase("dontneed");
    first.advise(libc::POSIX_FADV_WILLNEED);
    phase("willneed");
    first.advise_in_pieces(libc::POSIX_FADV_WILLNEED, bytes);
    phase("pieces");
}
