//! Expected outputs kept as files.

use std::path::PathBuf;

/// Compares with `tests/goldens/NAME`; UPDATE=1 in the environment writes the file instead.
pub fn check(name: &str, actual: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/goldens")
        .join(name);
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(&path, actual).unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
        return;
    }
    let expected = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("reading {}: {error}; UPDATE=1 makes it", path.display()));
    assert!(
        expected == actual,
        "{} differs (UPDATE=1 accepts the new text)\n--- expected\n{expected}--- actual\n{actual}",
        path.display()
    );
}
