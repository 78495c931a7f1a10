//! Random reads of 4 KiB: from the page cache, past it (O_DIRECT), and through it when it holds nothing of the file.
//!
//! Each timing is a line `reads way=cached round=0 count=N ns=N p10=N p50=N p90=N p99=N` (nanoseconds of one read).
//! The ways past the cache read the same places in each round: a second round that is faster tells of a cache below.
//! Where O_DIRECT is refused a line `refused way=direct error=N` says so. Phases: base, written, done.

use super::{NumberOption, Program};
use crate::arguments::Options;
use crate::clock::now_ns;
use crate::file::File;
use crate::line;
use crate::random::Random;
use crate::stage::Stage;

const PAGE: usize = 4096;
const MOST_READS: usize = 100_000;

/// Aligned as O_DIRECT wants it.
#[repr(align(4096))]
struct Page([u8; PAGE]);

pub const PROGRAM: Program = Program {
    name: "random-reads",
    about: "random reads of 4 KiB in a file, through the page cache and past it",
    options: &[
        NumberOption {
            name: "bytes",
            default: 512 << 20,
            maximum: 1 << 40,
        },
        NumberOption {
            name: "reads",
            default: 4_000,
            maximum: MOST_READS as u64,
        },
        NumberOption {
            name: "rounds",
            default: 3,
            maximum: 1_000,
        },
    ],
    run,
};

fn run(stage: &mut Stage, options: &Options) {
    let (bytes, reads, rounds) = (
        options.count("bytes").max(PAGE),
        options.count("reads"),
        options.get("rounds"),
    );
    stage.phase("base");
    let file = File::make('r', bytes);
    file.sync();
    stage.phase("written");
    file.read_through(bytes);
    for round in 0..rounds {
        time(file, "cached", round, bytes, reads, round + 1);
    }
    match file.reopen(libc::O_RDONLY | libc::O_DIRECT) {
        Some(direct) => {
            file.advise(libc::POSIX_FADV_DONTNEED);
            for round in 0..rounds {
                time(direct, "direct", round, bytes, reads, 1_000);
            }
        }
        None => line::print(format_args!("refused way=direct error={}", line::errno())),
    }
    // Without this, each read of the cold way would fetch its neighbours too.
    file.advise(libc::POSIX_FADV_RANDOM);
    for round in 0..rounds {
        file.advise(libc::POSIX_FADV_DONTNEED);
        time(file, "cold", round, bytes, reads, 2_000);
    }
    stage.phase("done");
}

fn time(file: File, way: &str, round: u64, bytes: usize, reads: usize, seed: u64) {
    let mut random = Random::new(seed);
    let mut room = [0; MOST_READS];
    let latencies = &mut room[..reads.max(1)];
    let mut page = Page([0; PAGE]);
    let began = now_ns();
    let mut last = began;
    for latency in latencies.iter_mut() {
        file.read_at(&mut page.0, random.below(bytes / PAGE) * PAGE);
        let now = now_ns();
        *latency = now - last;
        last = now;
    }
    let total = last - began;
    latencies.sort_unstable();
    let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
    line::print(format_args!(
        "reads way={way} round={round} count={} ns={:.1} p10={} p50={} p90={} p99={}",
        latencies.len(),
        total as f64 / latencies.len() as f64,
        at(10),
        at(50),
        at(90),
        at(99)
    ));
}
