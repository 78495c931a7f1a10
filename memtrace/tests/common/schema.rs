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
    for schema in [schema(), strict] {
        let validator = jsonschema::validator_for(&schema).expect("the schema is a schema");
        let errors: Vec<String> = validator
            .iter_errors(&document)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{errors:#?}");
    }
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
