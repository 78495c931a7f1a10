//! Heaps of real processes under each glibc whose lists or caches are laid out in a way of their own, kept as images;
//! images/README.md says of what and how. What a walk finds must be what the program held and what mallinfo said.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use memtrace_analysis::glibc::account::Surroundings;
use memtrace_analysis::glibc::explain::{Inputs, explain};
use memtrace_analysis::glibc::image::{Header, ImageMemory, decode, encode};
use memtrace_analysis::glibc::look::Look;
use memtrace_analysis::glibc::{Heap, Residency};

const RELEASES: [&str; 5] = ["2.31", "2.36", "2.41", "2.43", "2.44"];

/// Releases without fastbins.
const NEWER: [&str; 2] = ["2.43", "2.44"];

/// The other thread's table of thread-local storage (its dtv) is a block that glibc holds.
const OWN_BLOCKS: u64 = 1;

/// That block's usable bytes; the table has become shorter by an entry.
fn own_usable_bytes(release: &str) -> u64 {
    if NEWER.contains(&release) { 264 } else { 280 }
}

fn file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()))
}

fn look(bytes: &[u8]) -> Look {
    let (header, words) = decode(bytes).expect("an image");
    let header: Header = serde_json::from_slice(header).expect("its header");
    let residency = Residency::unpack(header.taken.page_size, &header.pages).expect("its pages");
    let library = header.library.expect("its libc");
    let memory = ImageMemory {
        words: &words,
        mappings: &header.mappings,
    };
    let anatomy = library.anatomy().expect("a known release");
    let heap = Heap::read(&memory, &anatomy, library.base, &header.mappings, &residency);
    explain(Inputs {
        target: header.target,
        taken: header.taken,
        around: Surroundings {
            mappings: &header.mappings,
            residency: &residency,
            stack_pointers: &header.stack_pointers,
            program: &header.program,
        },
        heap: heap.as_ref().map_err(ToString::to_string),
        environment: &header.environment,
        machine: header.machine,
        cgroup: header.cgroup,
        not_seen: header.not_seen,
        damaged: header.damaged,
    })
}

#[test]
fn the_walk_finds_what_the_program_held() {
    for release in RELEASES {
        let look = look(&file(&format!("sampler-{release}.img")));
        let truth: BTreeMap<String, u64> =
            serde_json::from_slice(&file(&format!("sampler-{release}.json"))).expect("facts");
        assert_eq!(look.target.glibc.as_deref(), Some(release));
        assert!(!look.torn, "{release}: {:#?}", look.problems);
        let heap = look.heap.as_ref().expect("the heap");
        let in_use: u64 = heap
            .arenas
            .iter()
            .map(|arena| arena.live_bytes + arena.cached_bytes + arena.overhead_bytes)
            .sum();
        let found = [
            ("live blocks", heap.live_blocks),
            ("live usable bytes", heap.live_usable_bytes),
            ("free bytes", heap.free_bytes),
            ("bytes in use", in_use),
            ("system bytes", heap.system_bytes),
            ("mapped blocks", heap.mapped_blocks),
            ("mapped bytes", heap.mapped_bytes),
        ];
        let expected = [
            ("live blocks", truth["blocks"] + OWN_BLOCKS),
            ("live usable bytes", truth["usable"] + own_usable_bytes(release)),
            ("free bytes", truth["fordblks"]),
            ("bytes in use", truth["uordblks"]),
            ("system bytes", truth["arena"]),
            ("mapped blocks", truth["hblks"]),
            ("mapped bytes", truth["hblkhd"]),
        ];
        assert_eq!(found, expected, "{release}");
        assert_eq!(heap.arenas.len(), 2, "{release}: the thread has an arena");
        // Which lists there are is what the releases differ in.
        assert!(heap.cached_blocks > 0, "{release}: no thread cache was found");
        assert_eq!(heap.fastbin_blocks > 0, !NEWER.contains(&release), "{release}");
    }
}

/// Whatever a word of the books is changed to, the walk ends, and a changed size of a block is seen.
#[test]
fn damage_ends_in_a_look() {
    for release in RELEASES {
        let bytes = file(&format!("sampler-{release}.img"));
        let (header, words) = decode(&bytes).expect("an image");
        let mut noticed = 0;
        for index in (0..words.len()).step_by(5) {
            let mut changed = words.clone();
            changed[index].1 ^= 0x5a50;
            noticed += u32::from(look(&encode(header, &changed)).torn);
        }
        assert!(
            noticed as usize > words.len() / 20,
            "{release}: {noticed} of {}",
            words.len() / 5
        );
    }
}
