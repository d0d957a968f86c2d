//! Every setting with its value and where that came from, for people who ask "why is it like this?".

use serde::Serialize;

use crate::config::{Config, ConfigError};
use crate::secret;
use crate::value::{Node, Origin, Value};

/// One setting as it is in force.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Setting {
    /// Path, such as `default_proxy.train.temperature`.
    pub key: String,
    /// Its value; `***` for a secret.
    pub value: Value,
    /// Who set it: `default`, a file with line and column, `command line`, or an environment variable.
    #[serde(serialize_with = "as_text")]
    pub origin: Origin,
}

fn as_text<S: serde::Serializer>(origin: &Origin, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(origin)
}

/// The settings of a program in the order of its struct, those of the configuration with their origin.
pub fn effective(settings: &impl Serialize, config: &Config) -> Result<Vec<Setting>, ConfigError> {
    let tree = Config::from_defaults(settings)?;
    let mut found = Vec::new();
    collect(&secret::redacted(tree.root()), "", config, &mut found);
    Ok(found)
}

fn collect(node: &Node, path: &str, config: &Config, found: &mut Vec<Setting>) {
    if let Value::Map(map) = &node.value {
        for (key, child) in map {
            let path = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
            collect(child, &path, config, found);
        }
        return;
    }
    let origin = config.select(path).map_or(Origin::Default, |node| node.origin.clone());
    found.push(Setting { key: path.to_owned(), value: node.value.clone(), origin });
}
