//! Keys and tokens: where they come from, and how they stay out of sight.

use std::fmt;
use std::path::PathBuf;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

use crate::config::{Config, ConfigError};
use crate::surroundings::Surroundings;
use crate::value::{Node, Origin, Value};

/// What stands for a secret wherever settings are shown.
pub const REDACTED: &str = "***";
/// The environment variable that holds the key when the configuration has none.
pub const KEY_VARIABLE: &str = "AGL_KEY";
/// Largest key file, in bytes.
pub const MAX_KEY_FILE_BYTES: u64 = 64 << 10;

/// A text that is never shown: `Debug` and `Serialize` give [`REDACTED`].
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(REDACTED)
    }
}

/// Reads an optional secret as the original does, `str(value or "")`: null, false, 0 and empty text mean none.
pub(crate) fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    struct SecretVisitor;

    impl<'de> Visitor<'de> for SecretVisitor {
        type Value = Option<Secret>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("text")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok((!text.is_empty()).then(|| Secret::new(text)))
        }

        fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Self::Value, E> {
            Ok(flag.then(|| Secret::new(Value::Bool(true).to_string())))
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
            self.visit_i128(number.into())
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
            self.visit_i128(number.into())
        }

        fn visit_i128<E: de::Error>(self, number: i128) -> Result<Self::Value, E> {
            Ok((number != 0).then(|| Secret::new(number.to_string())))
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
            Ok((number != 0.0).then(|| Secret::new(Value::Float(number).to_string())))
        }

        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            match list.next_element::<IgnoredAny>()? {
                None => Ok(None),
                Some(_) => Err(de::Error::custom("must be text, not a list")),
            }
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            match map.next_entry::<IgnoredAny, IgnoredAny>()? {
                None => Ok(None),
                Some(_) => Err(de::Error::custom("must be text, not a map")),
            }
        }
    }

    deserializer.deserialize_any(SecretVisitor)
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        optional(deserializer)?.ok_or_else(|| de::Error::custom("must be text that is not empty"))
    }
}

/// The configuration with its key filled in from `key_file` or [`KEY_VARIABLE`], if it has none of its own.
///
/// A key that the command line sets to nothing (`key=''`) stays nothing: somebody wants to run without one.
pub(crate) fn with_key(
    config: &Config,
    key: &str,
    key_file: &str,
    surroundings: &Surroundings,
) -> Result<Config, ConfigError> {
    let mut config = config.clone();
    let Some(node) = config.select(key) else { return Ok(config) };
    let explicit = node.origin == Origin::CommandLine;
    if explicit || is_set(&node.value) {
        return Ok(config);
    }
    let file = config.select(key_file).filter(|node| is_set(&node.value)).map(|node| node.value.to_string());
    let found = match (file, surroundings.variable(KEY_VARIABLE)) {
        (Some(path), _) => {
            let path = surroundings.folder.join(path);
            let text = read_key_file(&path).map_err(|source| ConfigError::KeyFile { path: path.clone(), source })?;
            Some(Node::new(Value::Text(text), Origin::File { path: path.into(), line: 1, column: 1 }))
        }
        (None, Some(text)) if !text.is_empty() => {
            Some(Node::new(Value::Text(text.to_owned()), Origin::Environment { variable: KEY_VARIABLE.to_owned() }))
        }
        _ => None,
    };
    if let Some(found) = found {
        config.set(key, found);
    }
    Ok(config)
}

fn read_key_file(path: &PathBuf) -> std::io::Result<String> {
    if std::fs::metadata(path)?.len() > MAX_KEY_FILE_BYTES {
        return Err(std::io::Error::other(format!(
            "it has more than {MAX_KEY_FILE_BYTES} bytes; it should hold one key"
        )));
    }
    let text = std::fs::read_to_string(path)?;
    let key = text.trim();
    if key.is_empty() {
        return Err(std::io::Error::other("it is empty; it should hold one key"));
    }
    Ok(key.to_owned())
}

/// Whether the setting named by the last part of `path` is a secret.
pub fn is_secret(path: &str) -> bool {
    let name = path.rsplit('.').next().unwrap_or(path).to_lowercase();
    let known = ["key", "api_key", "apikey", "token", "access_token", "auth_token", "password", "secret"];
    known.contains(&name.as_str()) || ["_api_key", "_password", "_secret"].iter().any(|end| name.ends_with(end))
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

/// A copy of the tree in which [`REDACTED`] stands for every secret that is set.
pub fn redacted(node: &Node) -> Node {
    let value = match &node.value {
        Value::Map(map) => {
            let entry = |key: &crate::value::Key, child: &Node| {
                if is_secret(&key.to_string()) && is_set(&child.value) {
                    Node::new(Value::Text(REDACTED.to_owned()), child.origin.clone())
                } else {
                    redacted(child)
                }
            };
            Value::Map(map.iter().map(|(key, child)| (key.clone(), entry(key, child))).collect())
        }
        Value::List(items) => Value::List(items.iter().map(redacted).collect()),
        other => other.clone(),
    };
    Node::new(value, node.origin.clone())
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Missing | Value::Bool(false) => false,
        Value::Text(text) => !text.is_empty(),
        Value::Int(number) => *number != 0,
        _ => true,
    }
}
