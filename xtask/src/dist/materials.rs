//! What the binaries are made of: every crate linked into memtrace and its kernel side, and the C library.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::ebpf::Arch;
use crate::process;

/// Packages of the workspace whose dependencies end up in a binary.
const SHIPPED: [&str; 3] = ["memtrace", "memtrace-ebpf", "memtrace-lab"];

pub struct Materials {
    pub version: String,
    crates: Vec<Crate>,
}

struct Crate {
    name: String,
    version: String,
    licence: String,
    repository: Option<String>,
    /// The directory of its source, where its licence texts are.
    source: String,
}

impl Materials {
    /// Of all the architectures together.
    pub fn of_the_release(architectures: &[Arch]) -> Result<Self> {
        let mut crates = BTreeMap::new();
        let mut version = String::new();
        for arch in architectures {
            let mut cargo = process::cargo();
            cargo.args([
                "metadata",
                "--locked",
                "--format-version",
                "1",
                "--filter-platform",
                arch.triple(),
            ]);
            let text = process::capture(&mut cargo, "asking cargo what the workspace depends on")?;
            let metadata: Value = serde_json::from_str(&text).context("reading cargo's metadata")?;
            for id in shipped(&metadata)? {
                let package = package(&metadata, &id)?;
                let word = |key: &str| package.get(key).and_then(Value::as_str).map(str::to_owned);
                let name = word("name").context("a package has no name")?;
                let of_crate = word("version").context("a package has no version")?;
                if name == SHIPPED[0] {
                    version.clone_from(&of_crate);
                }
                let manifest = word("manifest_path").context("a package has no manifest")?;
                let found = Crate {
                    licence: word("license").unwrap_or_else(|| "see the texts".to_owned()),
                    repository: word("repository"),
                    source: manifest.trim_end_matches("Cargo.toml").to_owned(),
                    name: name.clone(),
                    version: of_crate.clone(),
                };
                crates.insert((name, of_crate), found);
            }
        }
        let crates = crates.into_values().collect();
        Ok(Self { version, crates })
    }

    /// A bill of materials in CycloneDX's form.
    pub fn bill(&self) -> Result<String> {
        let libraries = self.crates.iter().filter(|one| !SHIPPED.contains(&one.name.as_str()));
        let components: Vec<Value> = libraries
            .map(
                |Crate {
                     name,
                     version,
                     licence,
                     repository,
                     source: _,
                 }| {
                    let purl = format!("pkg:cargo/{name}@{version}");
                    let mut component = json!({
                        "type": "library",
                        "bom-ref": purl,
                        "name": name,
                        "version": version,
                        "purl": purl,
                        "licenses": [{"expression": licence.replace('/', " OR ")}],
                    });
                    if let Some(url) = repository {
                        component["externalReferences"] = json!([{"type": "vcs", "url": url}]);
                    }
                    component
                },
            )
            .collect();
        let bill = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {"component": {
                "type": "application",
                "bom-ref": format!("pkg:cargo/memtrace@{}", self.version),
                "name": "memtrace",
                "version": self.version,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
            }},
            "components": components,
        });
        let mut text = serde_json::to_string_pretty(&bill).context("writing the bill of materials")?;
        text.push('\n');
        Ok(text)
    }

    /// Every crate with its licence, then each licence text once with the crates that carry it.
    pub fn licences(&self) -> Result<String> {
        let mut text = format!("What memtrace {} is built from.\n\n", self.version);
        let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for Crate {
            name,
            version,
            licence,
            repository,
            source,
        } in &self.crates
        {
            let place = repository.as_deref().unwrap_or("");
            _ = writeln!(text, "{:40} {licence:40} {place}", format!("{name} {version}"));
            for licence in licence_texts(Path::new(source))? {
                texts.entry(licence).or_default().insert(format!("{name} {version}"));
            }
        }
        text += "\nThe static memtrace also holds parts of the GNU C Library (LGPL-2.1-or-later), of the compiler's run-time\n\
                 library (GPL-3.0 with the run-time exception) and of Rust's standard library (MIT OR Apache-2.0). Its source\n\
                 and `cargo xtask dist` make it again with another C library.\n";
        for (licence, crates) in texts {
            let crates = crates.into_iter().collect::<Vec<_>>().join(", ");
            _ = write!(text, "\n{}\n{crates}\n\n{}\n", "=".repeat(80), licence.trim_end());
        }
        Ok(text)
    }
}

/// Ids of all packages that normal dependencies lead to from those shipped; what only builds or tests need is not in a
/// binary.
fn shipped(metadata: &Value) -> Result<BTreeSet<String>> {
    let nodes = metadata
        .pointer("/resolve/nodes")
        .and_then(Value::as_array)
        .context("cargo's metadata has no graph")?;
    let by_id: BTreeMap<&str, &Value> = nodes
        .iter()
        .filter_map(|node| Some((node.get("id")?.as_str()?, node)))
        .collect();
    let mut open: Vec<&str> = Vec::new();
    for id in by_id.keys() {
        let name = package(metadata, id)?
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if SHIPPED.contains(&name) {
            open.push(id);
        }
    }
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id.to_owned()) {
            continue;
        }
        let dependencies = by_id
            .get(id)
            .and_then(|node| node.get("deps")?.as_array())
            .into_iter()
            .flatten();
        for dependency in dependencies {
            let kinds = dependency.get("dep_kinds").and_then(Value::as_array);
            let is_normal = kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind.get("kind") == Some(&Value::Null)));
            if let Some(id) = dependency.get("pkg").and_then(Value::as_str).filter(|_| is_normal) {
                open.push(id);
            }
        }
    }
    Ok(seen)
}

fn package<'a>(metadata: &'a Value, id: &str) -> Result<&'a Value> {
    let packages = metadata
        .get("packages")
        .and_then(Value::as_array)
        .context("cargo's metadata has no packages")?;
    let found = packages
        .iter()
        .find(|package| package.get("id").and_then(Value::as_str) == Some(id));
    found.with_context(|| format!("cargo's metadata has no package {id}"))
}

fn licence_texts(source: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(source).with_context(|| format!("listing {}", source.display()))? {
        let file = entry.with_context(|| format!("listing {}", source.display()))?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let is_text = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "UNLICENSE", "NOTICE"]
            .iter()
            .any(|word| name.starts_with(word));
        if is_text && file.is_file() {
            texts.push(fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?);
        }
    }
    texts.sort();
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_linked_in_is_listed() {
        let dependency = |id: &str, kind: Value| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let package = |name: &str| json!({"id": name, "name": name});
        let metadata = json!({
            "packages": [package("memtrace"), package("aya"), package("object"), package("proptest"), package("xtask")],
            "resolve": {"nodes": [
                {"id": "memtrace", "deps": [dependency("aya", Value::Null), dependency("proptest", json!("dev"))]},
                {"id": "aya", "deps": [dependency("object", Value::Null)]},
                {"id": "object", "deps": []},
                {"id": "proptest", "deps": []},
                {"id": "xtask", "deps": [dependency("proptest", Value::Null)]},
            ]},
        });
        let found: Vec<String> = shipped(&metadata).expect("the graph is sound").into_iter().collect();
        assert_eq!(found, ["aya", "memtrace", "object"]);
    }
}
