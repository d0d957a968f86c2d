//! docs/reference/run-file.md names every key of the run file with its real default, and no other.

use std::collections::BTreeMap;

use agl::run_file::{EngineSection, GatewaySection};
use agl_trainer::TrainerSettings;
use serde_json::Value;

/// Leaves of a JSON tree by dotted path.
fn leaves(prefix: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                leaves(&format!("{prefix}.{name}"), field, into);
            }
        }
        other => {
            into.insert(prefix.to_owned(), other.clone());
        }
    }
}

/// Key → default, from the tables of the page.
fn documented() -> BTreeMap<String, String> {
    let page = include_str!("../../../docs/reference/run-file.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| {
        let (key, rest) = row.split_once("` | ")?;
        let default = rest.split(" | ").next()?.trim().trim_matches('`');
        Some((key.to_owned(), default.to_owned()))
    })
    .collect()
}

#[test]
fn every_key_is_documented_with_its_default() {
    let mut real = BTreeMap::new();
    leaves("trainer", &serde_json::to_value(TrainerSettings::default()).unwrap(), &mut real);
    leaves("engine", &serde_json::to_value(EngineSection::default()).unwrap(), &mut real);
    leaves("gateway", &serde_json::to_value(GatewaySection::default()).unwrap(), &mut real);
    let documented = documented();
    for (key, default) in &real {
        let told = documented.get(key).unwrap_or_else(|| panic!("`{key}` is not in docs/reference/run-file.md"));
        let same = match default {
            // The page writes numbers as a reader would, the tree as f32 became f64.
            Value::Number(number) if number.is_f64() => {
                let told: f64 = told.parse().unwrap_or_else(|_| panic!("`{key}`: `{told}` is no number"));
                (told - number.as_f64().unwrap()).abs() <= 1e-6 * told.abs()
            }
            Value::String(text) => told == text,
            other => serde_json::from_str::<Value>(told).is_ok_and(|told| told == *other),
        };
        assert!(same, "`{key}`: the page says {told}, the program {default}");
    }
    let optional = ["model.", "agent.", "data.", "gateway.key"];
    for key in documented.keys() {
        let known = real.contains_key(key) || optional.iter().any(|prefix| key.starts_with(prefix));
        assert!(known, "docs/reference/run-file.md has `{key}`, which does not exist");
    }
}
