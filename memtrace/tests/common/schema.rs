//! The report's schema, held against real documents.

use std::path::Path;

use serde_json::Value;

fn schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/report.schema.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()));
    serde_json::from_str(&text).expect("the schema is JSON")
}

/// Checks a document, also that it has no key the schema does not name: what is not described nobody can rely on.
pub fn check(document: &str) {
    let document: Value = serde_json::from_str(document).expect("the report is JSON");
    let mut strict = schema();
    close(&mut strict);
    assert_eq!(errors(&schema(), &document), [""; 0]);
    // One of several forms: errors are told better of the one that is meant.
    strict.as_object_mut().expect("a schema is an object").remove("oneOf");
    strict["$ref"] = "#/$defs/report".into();
    match document["processes"].as_array() {
        Some(reports) => reports
            .iter()
            .for_each(|report| assert_eq!(errors(&strict, report), [""; 0])),
        None => assert_eq!(errors(&strict, &document), [""; 0]),
    }
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
