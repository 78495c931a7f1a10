//! What the binaries are made of: every crate linked into memtrace and its kernel side, and the C library.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::ebpf::Arch;
use crate::{process, workspace};

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
    authors: Vec<String>,
    /// Of this workspace, and so in no registry.
    own: bool,
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
                let authors = package.get("authors").and_then(Value::as_array);
                let authors = authors.into_iter().flatten().filter_map(Value::as_str);
                let found = Crate {
                    licence: word("license").unwrap_or_else(|| "see the texts".to_owned()),
                    repository: word("repository"),
                    authors: authors.map(str::to_owned).collect(),
                    own: package.get("source").is_none_or(Value::is_null),
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
        let root = format!("memtrace@{}", self.version);
        let mut components: Vec<Value> = Vec::new();
        for one in self.crates.iter().filter(|one| one.name != SHIPPED[0]) {
            let Crate { name, version, .. } = one;
            let purl = format!("pkg:cargo/{name}@{version}");
            let mut component = json!({
                "type": "library",
                "bom-ref": if one.own { format!("{name}@{version}") } else { purl.clone() },
                "name": name,
                "version": version,
                "licenses": [{"expression": one.expression()}],
            });
            if !one.own {
                component["purl"] = json!(purl);
            }
            if let Some(url) = &one.repository {
                component["externalReferences"] = json!([{"type": "vcs", "url": url}]);
            }
            components.push(component);
        }
        for (name, licence) in LINKED_STATICALLY {
            components.push(json!({
                "type": "library",
                "bom-ref": name,
                "name": name,
                "licenses": [{"expression": licence}],
            }));
        }
        let all: Vec<Value> = components
            .iter()
            .map(|component| component["bom-ref"].clone())
            .collect();
        let bill = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {"component": {
                "type": "application",
                "bom-ref": root.clone(),
                "name": "memtrace",
                "version": self.version,
                // The second for the kernel side inside.
                "licenses": [{"expression": "(MIT OR Apache-2.0) AND GPL-2.0-only"}],
            }},
            "components": components,
            "dependencies": [{"ref": root, "dependsOn": all}],
        });
        let mut text = serde_json::to_string_pretty(&bill).context("writing the bill of materials")?;
        text.push('\n');
        Ok(text)
    }

    /// Every crate with its licence, then each licence text once with the crates that carry it.
    pub fn licences(&self) -> Result<String> {
        let mut text = format!("What memtrace {} is built from.\n\n", self.version);
        let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for one in &self.crates {
            let title = format!("{} {}", one.name, one.version);
            let place = one.repository.as_deref().unwrap_or("");
            _ = writeln!(text, "{title:40} {:40} {place}", one.licence);
            for licence in one.texts()? {
                texts.entry(licence).or_default().insert(title.clone());
            }
        }
        text += "\nThe static memtrace also holds parts of the GNU C Library (LGPL-2.1-or-later), of the compiler's run-time\n\
                 library (GPL-3.0-or-later with the run-time library exception) and of Rust's standard library (MIT OR\n\
                 Apache-2.0). They are those of the machine that it was built on: on another one, memtrace's source and\n\
                 `cargo xtask dist` link it with another C library.\n";
        for (file, of) in [
            ("LICENSE-GPL-2.0", "memtrace-ebpf, the kernel side"),
            (LGPL, "the GNU C Library"),
        ] {
            // A path from the root stays what it is.
            let licence = read(&workspace::root().join(file))
                .context("the licence of what is linked in goes with a release (Debian's base-files has LGPL-2.1)")?;
            texts.entry(licence).or_default().insert(of.to_owned());
        }
        for (licence, crates) in texts {
            let crates = crates.into_iter().collect::<Vec<_>>().join(", ");
            _ = write!(text, "\n{}\n{crates}\n\n{}\n", "=".repeat(80), licence.trim_end());
        }
        Ok(text)
    }
}

/// What a static program holds besides crates, by name and licence. Their versions are those of the building machine.
const LINKED_STATICALLY: [(&str, &str); 3] = [
    ("glibc", "LGPL-2.1-or-later"),
    ("libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    ("rust-std", "MIT OR Apache-2.0"),
];
const LGPL: &str = "/usr/share/common-licenses/LGPL-2.1";

impl Crate {
    /// In SPDX's form; cargo still takes an older one.
    fn expression(&self) -> String {
        self.licence.replace('/', " OR ")
    }

    /// As the crate ships them; else the standard texts of the licences that it names.
    fn texts(&self) -> Result<Vec<String>> {
        let source = if self.own {
            workspace::root()
        } else {
            Path::new(&self.source)
        };
        let shipped = licence_texts(source)?;
        if !shipped.is_empty() {
            return Ok(shipped);
        }
        let mut texts = Vec::new();
        for (name, file) in [("MIT", "LICENSE-MIT"), ("Apache-2.0", "LICENSE-APACHE")] {
            if self.expression().split(&[' ', '(', ')'][..]).any(|word| word == name) {
                let text = read(&workspace::root().join(file))?;
                texts.push(self.with_its_authors(&text));
            }
        }
        ensure!(
            !texts.is_empty(),
            "{} {} ships no licence text, and {} is none whose text is known here",
            self.name,
            self.version,
            self.licence
        );
        Ok(texts)
    }

    /// A standard text with this crate's authors where ours are named.
    fn with_its_authors(&self, text: &str) -> String {
        let authors = if self.authors.is_empty() {
            format!("the authors of {}", self.name)
        } else {
            self.authors.join(", ")
        };
        let line = |line: &str| {
            if line.starts_with("Copyright (c)") {
                format!("Copyright (c) {authors}")
            } else {
                line.to_owned()
            }
        };
        let lines: Vec<String> = text.lines().map(line).collect();
        format!(
            "(The standard text: the crate ships none of its own.)\n\n{}",
            lines.join("\n")
        )
    }
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
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
        // What a macro is made of is in the compiler, not in what it compiles.
        for dependency in dependencies {
            let kinds = dependency.get("dep_kinds").and_then(Value::as_array);
            let is_normal = kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind.get("kind") == Some(&Value::Null)));
            if let Some(id) = dependency.get("pkg").and_then(Value::as_str).filter(|_| is_normal)
                && !is_macro(package(metadata, id)?)
            {
                open.push(id);
            }
        }
    }
    Ok(seen)
}

fn is_macro(package: &Value) -> bool {
    let targets = package.get("targets").and_then(Value::as_array);
    let mut kinds = targets.into_iter().flatten().filter_map(|target| target.get("kind"));
    kinds.any(|kind| *kind == json!(["proc-macro"]))
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
            "packages": [
                package("memtrace"), package("aya"), package("object"), package("proptest"), package("xtask"),
                {"id": "serde_derive", "name": "serde_derive", "targets": [{"kind": ["proc-macro"]}]},
            ],
            "resolve": {"nodes": [
                {"id": "memtrace", "deps": [dependency("aya", Value::Null), dependency("proptest", json!("dev"))]},
                {"id": "aya", "deps": [dependency("object", Value::Null)]},
                {"id": "object", "deps": [dependency("serde_derive", Value::Null)]},
                {"id": "serde_derive", "deps": [dependency("proptest", Value::Null)]},
                {"id": "proptest", "deps": []},
                {"id": "xtask", "deps": [dependency("proptest", Value::Null)]},
            ]},
        });
        let found: Vec<String> = shipped(&metadata).expect("the graph is sound").into_iter().collect();
        assert_eq!(found, ["aya", "memtrace", "object"]);
    }

    fn of(licence: &str, source: &Path) -> Crate {
        Crate {
            name: "thing".to_owned(),
            version: "1.0.0".to_owned(),
            licence: licence.to_owned(),
            repository: None,
            authors: vec!["A. Nother".to_owned()],
            own: false,
            source: source.display().to_string(),
        }
    }

    #[test]
    fn every_crate_has_a_text_or_there_is_no_release() {
        // No licence lies there.
        let bare = workspace::root().join("xtask/src/dist");
        let texts = of("MIT/Apache-2.0", &bare).texts().expect("both are known");
        assert_eq!(texts.len(), 2);
        assert!(
            texts[0].contains("Copyright (c) A. Nother") && !texts[0].contains("memtrace authors"),
            "{}",
            texts[0]
        );
        let error = of("Sleepycat", &bare).texts().expect_err("it is not known").to_string();
        assert!(error.contains("thing 1.0.0") && error.contains("Sleepycat"), "{error}");
    }

    #[test]
    fn the_bill_names_what_is_linked_besides_crates_and_no_registry_for_our_own() {
        let mut own = of("MIT OR Apache-2.0", workspace::root());
        own.own = true;
        let materials = Materials {
            version: "1.0.0".to_owned(),
            crates: vec![own, of("MIT", workspace::root())],
        };
        let bill: Value = serde_json::from_str(&materials.bill().expect("it can be written")).expect("it is JSON");
        let components = bill["components"].as_array().expect("a list");
        assert!(components[0].get("purl").is_none() && components[1]["purl"] == "pkg:cargo/thing@1.0.0");
        assert!(components.iter().any(|component| component["name"] == "glibc"));
        let refs: Vec<&Value> = components.iter().map(|component| &component["bom-ref"]).collect();
        let depends = bill
            .pointer("/dependencies/0/dependsOn")
            .and_then(Value::as_array)
            .expect("a list");
        assert_eq!(depends.iter().collect::<Vec<_>>(), refs);
        let unique: BTreeSet<String> = refs.iter().map(ToString::to_string).collect();
        assert_eq!(unique.len(), refs.len(), "{refs:?}");
    }
}
