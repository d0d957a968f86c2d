//! What must not be shown.

use crate::value::{Node, Value};

/// What stands for a secret wherever settings are shown.
pub const REDACTED: &str = "***";

/// Whether the setting named by the last part of `path` is a secret: `key`, `api_key`, `token`, `password`, `secret`.
pub fn is_secret(path: &str) -> bool {
    let name = path.rsplit('.').next().unwrap_or(path).to_lowercase();
    name == "key" || ["api_key", "apikey", "token", "password", "secret"].iter().any(|end| name.ends_with(end))
}

/// The value as text for a message, or [`REDACTED`].
pub(crate) fn shown(path: &str, value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Text(text) if text.is_empty() => "''".to_owned(),
        _ if is_secret(path) => REDACTED.to_owned(),
        value => value.to_string(),
    }
}

/// A copy of the tree with every secret that is set replaced by [`REDACTED`].
pub fn redacted(node: &Node) -> Node {
    let value = match &node.value {
        Value::Map(map) => Value::Map(
            map.iter()
                .map(|(key, child)| {
                    let child = match &child.value {
                        Value::Map(_) | Value::List(_) => redacted(child),
                        value if is_secret(&key.to_string()) && is_set(value) => {
                            Node::new(Value::Text(REDACTED.to_owned()), child.origin.clone())
                        }
                        _ => child.clone(),
                    };
                    (key.clone(), child)
                })
                .collect(),
        ),
        Value::List(items) => Value::List(items.iter().map(redacted).collect()),
        other => other.clone(),
    };
    Node::new(value, node.origin.clone())
}

fn is_set(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Missing | Value::Bool(_))
        && !matches!(value, Value::Text(text) if text.is_empty())
}
