//! Images of heaps: a look at one finds what the look at the process found. With UPDATE=1 the images that
//! memtrace-analysis tests with are made again, one for each glibc at hand.

mod explain_support;

use std::fs;

use explain_support::{Heaps, differs};
use memtrace::inspect::{self, Capture, LookOptions, image};
use memtrace_test_support::scratch::Scratch;
use memtrace_test_support::workspace;

#[test]
fn an_image_is_the_heap_again() {
    let update = std::env::var_os("UPDATE").is_some_and(|value| value == "1");
    let scratch = Scratch::new();
    for heaps in Heaps::under_every_glibc("an_image_is_the_heap_again") {
        let mut process = heaps.start("sampler");
        process.skip_to("freed");
        let options = LookOptions {
            keep_words: true,
            ..LookOptions::default()
        };
        let capture = inspect::take(process.pid(), options).expect("looking at the process");
        let path = scratch.file("image");
        image::write(&path, &capture).expect("writing the image");
        let again = image::read(&path).expect("reading the image").explain();
        assert_eq!(again, capture.explain(), "{}", heaps.shown);
        assert_eq!(differs(&heaps.shown, &again, &process.facts), [""; 0]);
        if update && heaps.is_unpacked() {
            keep(&heaps, &capture, &process.facts);
        }
    }
}

/// Writes an image, without what tells of this machine, and the truth beside it.
fn keep(heaps: &Heaps, capture: &Capture, facts: &std::collections::BTreeMap<String, u64>) {
    let images = workspace().join("memtrace-analysis/tests/images");
    let (major, minor) = heaps.version;
    let mut header = capture.header.clone();
    (header.machine, header.cgroup) = (None, None);
    let text = serde_json::to_string(&header).expect("a header is JSON");
    let root = workspace().canonicalize().expect("the workspace is there");
    let text = text.replace(root.to_str().expect("a path in UTF-8"), "");
    let kept = Capture {
        header: serde_json::from_str(&text).expect("a header is JSON"),
        residency: capture.residency.clone(),
        heap: Err(String::new()),
        words: capture.words.clone(),
    };
    let name = format!("sampler-{major}.{minor}");
    image::write(&images.join(format!("{name}.img")), &kept).expect("writing the image");
    let facts = serde_json::to_string_pretty(facts).expect("facts are JSON");
    fs::write(images.join(format!("{name}.json")), facts + "\n").expect("writing the facts");
}
