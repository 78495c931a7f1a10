//! Images of heaps on disk: what a look rests on, to be looked at again elsewhere.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use memtrace_analysis::glibc::image::{Header, ImageMemory, decode, encode};
use memtrace_analysis::glibc::{Heap, Residency};

use super::Capture;

pub fn write(path: &Path, capture: &Capture) -> Result<()> {
    let saying = || format!("writing the image to {}", path.display());
    let header = Header {
        pages: capture.residency.pack(),
        ..capture.header.clone()
    };
    let header = serde_json::to_vec(&header).with_context(saying)?;
    fs::write(path, encode(&header, &capture.words)).with_context(saying)
}

pub fn read(path: &Path) -> Result<Capture> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&bytes).with_context(|| format!("reading {} as the image of a heap", path.display()))
}

fn parse(bytes: &[u8]) -> Result<Capture> {
    let (header, words) = decode(bytes)?;
    let mut header: Header = serde_json::from_slice(header).context("reading its header")?;
    let pages = std::mem::take(&mut header.pages);
    let residency = Residency::unpack(header.taken.page_size, &pages)
        .ok_or_else(|| anyhow!("its page states contradict each other"))?;
    let heap = match header.library {
        Some(library) => {
            let anatomy = library
                .anatomy()
                .ok_or_else(|| anyhow!("it is of a process with glibc {}, which is not known", library.version))?;
            let memory = ImageMemory {
                words: &words,
                mappings: &header.mappings,
            };
            Heap::read(&memory, &anatomy, library.base, &header.mappings, &residency).map_err(|error| error.to_string())
        }
        None => Err(header.heap_unknown.clone().unwrap_or_default()),
    };
    Ok(Capture {
        header,
        residency,
        heap,
        words,
    })
}
