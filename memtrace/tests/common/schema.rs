//! The schemas of JSON documents, held against real ones.

use std::path::Path;

use serde_json::Value;

fn schema(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()));
    serde_json::from_str(&text).expect("the schema is JSON")
}

/// Checks a document, also that it has no key the schema does not name: what is not described nobody can rely on.
pub fn check(document: &str) {
    let document: Value = serde_json::from_str(document).expect("the report is JSON");
    assert_eq!(errors(&schema("report.schema.json"), &document), [""; 0]);
    let strict = strict("report.schema.json", "report");
    match document["processes"].as_array() {
        Some(reports) => reports
            .iter()
            .for_each(|report| assert_eq!(errors(&strict, report), [""; 0])),
        None => assert_eq!(errors(&strict, &document), [""; 0]),
    }
}

/// The same for what `memtrace explain` prints: a "look", or the "changes" between looks.
pub fn check_explain(form: &str, document: &str) {
    let document: Value = serde_json::from_str(document).expect("the answer is JSON");
    assert_eq!(errors(&schema("explain.schema.json"), &document), [""; 0]);
    assert_eq!(errors(&strict("explain.schema.json", form), &document), [""; 0]);
}

/// The same for what `memtrace doctor` prints.
pub fn check_doctor(document: &str) {
    let document: Value = serde_json::from_str(document).expect("the answer is JSON");
    assert_eq!(errors(&schema("doctor.schema.json"), &document), [""; 0]);
    assert_eq!(errors(&strict("doctor.schema.json", "doctor"), &document), [""; 0]);
}

/// The schema without room for keys that it does not name. It is one of several forms: errors are told better of the
/// one that is meant.
fn strict(file: &str, form: &str) -> Value {
    let mut strict = schema(file);
    close(&mut strict);
    strict.as_object_mut().expect("a schema is an object").remove("oneOf");
    strict["$ref"] = format!("#/$defs/{form}").into();
    strict
}

fn errors(schema: &Value, document: &Value) -> Vec<String> {
    let validator = jsonschema::validator_for(schema).expect("the schema is a schema");
    validator
        .iter_errors(document)
        .map(|error| {
            format!("{}: {error}", error.instance_path())
                .chars()
                .take(300)
                .collect()
        })
        .collect()
}

/// Forbids keys that are not named, wherever some are.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.contains_key("properties") && !object.contains_key("additionalProperties") {
                object.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
            object.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}
