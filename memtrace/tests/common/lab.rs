//! Running the lab, and finding one's way in its document.

use std::fs;
use std::path::Path;

use memtrace_test_support::binary;
use serde_json::Value;

use super::run::{finish, memtrace};

/// The document of these experiments, checked against its schema.
pub fn document(words: &[&str]) -> Value {
    document_with(words, &[])
}

/// The same, with these variables in the environment.
pub fn document_with(words: &[&str], variables: &[(&str, &str)]) -> Value {
    binary("memtrace-lab");
    let mut line = vec!["lab", "--output", "json", "--rounds", "3"];
    line.extend(words);
    let child = memtrace(&line).envs(variables.iter().copied()).spawn();
    let ran = finish(child.expect("memtrace can be started"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let document: Value = serde_json::from_str(&ran.stdout).expect("the document is JSON");
    keeps(&document, "lab.schema.json");
    document
}

pub fn keeps(document: &Value, schema: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(schema);
    let mut schema: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).expect("the schema is JSON");
    close(&mut schema);
    let validator = jsonschema::validator_for(&schema).expect("the schema is a schema");
    let errors: Vec<String> = validator
        .iter_errors(document)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert_eq!(errors, [""; 0]);
}

/// Forbids keys that the schema does not name: what is not described nobody can rely on.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.contains_key("properties") {
                object.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
            object.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

pub fn experiment<'a>(document: &'a Value, name: &str) -> &'a Value {
    let found = document["experiments"]
        .as_array()
        .unwrap()
        .iter()
        .find(|experiment| experiment["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in the document"))
}

pub fn figure(experiment: &Value, key: &str) -> f64 {
    let figures = experiment["figures"].as_array().unwrap();
    let found = figures.iter().find(|figure| figure["key"] == key);
    found
        .and_then(|figure| figure["value"].as_f64())
        .unwrap_or_else(|| panic!("{key} is not in {experiment:#}"))
}

/// Whether a directory's files have no disk behind them, as the kernel's list of mounts says.
pub fn in_memory(directory: &Path) -> bool {
    let directory = directory.canonicalize().unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let over = mounts.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let place = left.split(' ').nth(4)?;
        directory
            .starts_with(place)
            .then_some((place.len(), right.starts_with("tmpfs")))
    });
    // Of mounts of the same place the last one counts.
    over.max_by_key(|(length, _)| *length).is_some_and(|(_, tmpfs)| tmpfs)
}
