//! `memtrace explain` as a user runs it.

mod common;
mod explain_support;

use std::fs;

use common::run::run;
use common::schema;
use explain_support::{Heaps, Process};
use memtrace_test_support::scratch::Scratch;
use serde_json::Value;

fn freed(kind: &str) -> Process {
    let mut process = Heaps::under_own_glibc().start(kind);
    process.skip_to("freed");
    process
}

fn succeeds(args: &[&str]) -> String {
    let ran = run(args);
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (Some(0), ""),
        "memtrace {args:?} said {}",
        ran.stdout
    );
    ran.stdout
}

#[test]
fn a_look_keeps_the_schema() {
    for kind in ["late-survivor", "workers", "all-mapped", "own-mapping", "wrong-knobs"] {
        let process = freed(kind);
        let document = succeeds(&["explain", "--output", "json", "--pid", &process.pid().to_string()]);
        schema::check_explain("look", &document);
        let value: Value = serde_json::from_str(&document).unwrap();
        for key in [
            "live",
            "retained",
            "file",
            "other_anon",
            "stacks",
            "shared",
            "allocator_overhead",
            "total",
        ] {
            assert!(value["resident"][key].is_u64(), "{key}");
        }
        assert!(value["trim_would_return_bytes"].is_u64());
    }
}

#[test]
fn the_text_says_what_matters_first() {
    let process = freed("late-survivor");
    let text = succeeds(&["explain", "--pid", &process.pid().to_string()]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("memtrace explain: heaps (pid "), "{text}");
    assert!(lines[3].starts_with("VERDICT         Retention: "), "{text}");
    assert!(
        text.contains(&format!("{:#x}", process.facts["pin"])),
        "the pin is named: {text}"
    );
    assert!(text.contains("HEAP MAP") && text.contains("WHAT HELPS"), "{text}");
    assert!(!text.contains('\x1b'), "no colour where nobody sees it");
    assert!(lines.iter().all(|line| line.chars().count() <= 130), "{text}");
}

#[test]
fn the_picture_is_well_formed() {
    let process = freed("workers");
    let picture = succeeds(&["explain", "--output", "svg", "--pid", &process.pid().to_string()]);
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    for element in ["<text", "<rect", "<title>"] {
        assert!(picture.contains(element), "{element}");
    }
    assert_eq!(picture.matches("<title>").count(), picture.matches("</title>").count());
    assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
    assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
}

/// What an image gives is what the process gave; it holds headers and lists, and nothing that the program wrote.
#[test]
fn an_image_is_seen_as_the_process_was() {
    let mut wrong = Vec::new();
    for heaps in Heaps::under_every_glibc("an_image_is_seen_as_the_process_was") {
        let scratch = Scratch::new();
        for kind in [
            "crumbs",
            "cached-lid",
            "tiles",
            "workers",
            "mapped-held",
            "blocked-break",
            "random 3 3000 3",
        ] {
            let mut process = heaps.start(kind);
            process.skip_to("freed");
            let (image, live) = (scratch.file("heap.img"), scratch.file("live.json"));
            let pid = process.pid().to_string();
            let [image, live] = [&image, &live].map(|path| path.to_str().unwrap());
            succeeds(&[
                "explain", "--pid", &pid, "--record", image, "--output", "json", "-o", live,
            ]);
            drop(process);
            let replayed: Value =
                serde_json::from_str(&succeeds(&["explain", "--image", image, "--output", "json"])).unwrap();
            let live: Value = serde_json::from_str(&fs::read_to_string(live).unwrap()).unwrap();
            if replayed != live {
                wrong.push(format!(
                    "{kind} under {}:\n{}",
                    heaps.shown,
                    first_difference(&live, &replayed, "")
                ));
            }
            let stored = fs::read(image).unwrap();
            // The programs fill their blocks with ones.
            assert!(
                !stored.windows(16).any(|window| window.iter().all(|byte| *byte == 1)),
                "{kind} is in its image"
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn first_difference(left: &Value, right: &Value, path: &str) -> String {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => left
            .iter()
            .find(|(key, value)| right.get(*key) != Some(value))
            .map(|(key, value)| {
                first_difference(value, right.get(key).unwrap_or(&Value::Null), &format!("{path}/{key}"))
            })
            .unwrap_or_else(|| format!("{path}: keys differ")),
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => left
            .iter()
            .zip(right)
            .enumerate()
            .find(|(_, (left, right))| left != right)
            .map(|(index, (left, right))| first_difference(left, right, &format!("{path}/{index}")))
            .unwrap_or_default(),
        _ => format!("{path}: {left} is {right} in the image"),
    }
}

#[test]
fn damaged_images_are_refused() {
    let scratch = Scratch::new();
    let process = freed("crumbs");
    let path = scratch.file("heap.img");
    let name = path.to_str().unwrap();
    succeeds(&[
        "explain",
        "--pid",
        &process.pid().to_string(),
        "--record",
        name,
        "-o",
        "/dev/null",
    ]);
    let whole = fs::read(&path).unwrap();
    for (bytes, word) in [
        (whole[..whole.len() - 1].to_vec(), "ends too early"),
        (whole[..40].to_vec(), "ends too early"),
        (b"something else".to_vec(), "no image"),
        ([&whole[..8], &[9, 0, 0, 0], &whole[12..]].concat(), "version 9"),
        ([&whole[..], &[0]].concat(), "damaged"),
    ] {
        fs::write(&path, bytes).unwrap();
        let ran = run(&["explain", "--image", name]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
}

/// A list that grows between two looks, with the sizes it grows by.
#[test]
fn growth_between_two_looks_is_found() {
    let scratch = Scratch::new();
    let mut process = Heaps::under_own_glibc().start("hoard");
    let (before, after) = (scratch.file("before.json"), scratch.file("after.json"));
    let [before, after] = [&before, &after].map(|path| path.to_str().unwrap());
    for (moment, file) in [("full", before), ("freed", after)] {
        process.skip_to(moment);
        succeeds(&[
            "explain",
            "--pid",
            &process.pid().to_string(),
            "--output",
            "json",
            "-o",
            file,
        ]);
    }
    let document = succeeds(&["explain", "--diff", before, after, "--output", "json"]);
    schema::check_explain("changes", &document);
    let changes: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(changes["verdict"]["kind"], "growth", "{changes:#}");
    assert_eq!(changes["verdict"]["causes"][0]["kind"], "live_growth");
    assert_eq!(changes["live_blocks"], 15_000);
    assert_eq!(changes["sizes"][0]["chunk_bytes"], 1520);
    let text = succeeds(&["explain", "--diff", before, after]);
    assert!(text.contains("1 520 bytes") && text.contains("+15 000"), "{text}");

    let same: Value =
        serde_json::from_str(&succeeds(&["explain", "--diff", after, after, "--output", "json"])).unwrap();
    assert_eq!(same["verdict"]["kind"], "healthy", "{same:#}");
    assert_eq!(same["resident"]["total"], 0);
}

#[test]
fn looks_in_a_row_are_judged() {
    let process = freed("sieve");
    let pid = process.pid().to_string();
    let text = succeeds(&["explain", "--pid", &pid, "--watch", "50ms", "--looks", "3"]);
    assert!(text.contains("live blocks") && text.contains("VERDICT"), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains(" s  ")).count(), 3, "{text}");
    let lines = succeeds(&[
        "explain", "--pid", &pid, "--watch", "50ms", "--looks", "2", "--output", "json",
    ]);
    let documents: Vec<&str> = lines.lines().collect();
    assert_eq!(documents.len(), 3, "two looks and what has changed");
    for (form, document) in ["look", "look", "changes"].into_iter().zip(documents) {
        schema::check_explain(form, document);
    }
}

#[test]
fn what_cannot_be_looked_at_is_said() {
    for (args, words) in [
        (&["explain", "--pid", "4194304"][..], &["no process 4194304"][..]),
        (&["explain", "--image", "/nowhere"], &["/nowhere"]),
        (
            &["explain", "--diff", "/etc/hostname", "/etc/hostname"],
            &["/etc/hostname", "JSON"],
        ),
    ] {
        let ran = run(args);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(words.iter().all(|word| ran.stderr.contains(word)), "{}", ran.stderr);
        assert!(ran.stdout.is_empty());
    }
    for args in [
        &["explain"][..],
        &["explain", "--pid", "1", "--image", "x"],
        &["explain", "--pid", "1", "--output", "xml"],
    ] {
        assert_eq!(run(args).code, Some(2), "{args:?}");
    }
}
