//! Which crate may know which: the arrows of ARCHITECTURE.md, held against every Cargo.toml.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail};

use crate::stage;

/// What each crate may depend on, of our own crates and of the libraries that only some may know.
const ALLOWED: &[(&str, &[&str])] = &[
    ("agl-protocol", &[]),
    ("agl-config", &[]),
    ("agl-store", &["agl-protocol"]),
    ("agl-gateway", &["agl-protocol", "agl-store", "hyper", "hyper-util"]),
    ("agl-server", &["agl-protocol", "agl-store", "agl-gateway", "hyper", "hyper-util"]),
    ("agl-client", &["agl-protocol", "reqwest"]),
    ("agl-controller", &["agl-protocol", "agl-client"]),
    ("agl-trainer", &["agl-protocol", "agl-client"]),
    ("agl-engine", &["agl-protocol", "agl-trainer", "axum", "ndarray", "tokenizers", "safetensors", "minijinja"]),
    (
        "agl",
        &[
            "agl-protocol",
            "agl-config",
            "agl-store",
            "agl-gateway",
            "agl-server",
            "agl-client",
            "agl-controller",
            "agl-trainer",
            "agl-engine",
            "minijinja",
        ],
    ),
];

/// Libraries that only the crates that list them above may use.
const RESTRICTED: &[&str] = &[
    "axum",
    "hyper",
    "hyper-util",
    "reqwest",
    "gemm",
    "tokenizers",
    "safetensors",
    "minijinja",
    "rusqlite",
    "sqlx",
    "kube",
    "pyo3",
];

/// Reads the `[dependencies]` of each crate; a new crate or a new arrow fails until it is written down here.
pub(crate) fn check() -> Result<()> {
    let crates = stage::root().join("crates");
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(&crates).with_context(|| format!("read {}", crates.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let manifest = path.join("Cargo.toml");
        if !manifest.exists() {
            continue;
        }
        let text = fs::read_to_string(&manifest).with_context(|| format!("read {}", manifest.display()))?;
        let Some((_, allowed)) = ALLOWED.iter().find(|(crate_name, _)| *crate_name == name) else {
            problems.push(format!("crate `{name}` is not in the list of crates"));
            continue;
        };
        seen.insert(name.clone());
        for dependency in dependencies(&text) {
            let watched = dependency.starts_with("agl-") || RESTRICTED.contains(&dependency.as_str());
            if watched && !allowed.contains(&dependency.as_str()) {
                problems.push(format!("`{name}` must not depend on `{dependency}`"));
            }
        }
    }
    for (name, _) in ALLOWED.iter().filter(|(name, _)| !seen.contains(*name)) {
        problems.push(format!("crate `{name}` is listed but does not exist"));
    }
    if problems.is_empty() {
        return Ok(());
    }
    bail!("crate edges (xtask/src/edges.rs, ARCHITECTURE.md):\n  {}", problems.join("\n  "))
}

/// Names in the `[dependencies]` table; test-only dependencies are free.
fn dependencies(manifest: &str) -> Vec<String> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| {
            let name: String = line.chars().take_while(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect();
            (!name.is_empty()).then_some(name)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::dependencies;

    #[test]
    fn only_the_dependencies_table_counts() {
        let manifest = "[package]\nname = \"x\"\n\n[dependencies]\nserde.workspace = true\n# why\nagl-store = { path = \"..\" }\n\n[dev-dependencies]\naxum = \"1\"\n";
        assert_eq!(dependencies(manifest), ["serde", "agl-store"]);
    }
}
