//! The configuration tree: ordered maps, lists and scalars, each with the place it came from.
//!
//! What OmegaConf decides by looking into a string again and again is decided once here, when a value enters the tree:
//! text that holds `${` is an [`Value::Interpolation`], the text `???` is [`Value::Missing`].

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Serialize, Serializer};

/// The entries of a map, in the order in which they were first given.
pub type Map = IndexMap<Key, Node>;

/// A value and the place it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What it is.
    pub value: Value,
    /// Who set it last.
    pub origin: Origin,
}

/// What a configuration can hold.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`.
    Null,
    /// `???`: somebody has to give a value before it is read.
    Missing,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// A whole number beyond 128 bits, as its decimal digits: Python has no largest one, and a key may be made of digits.
    BigInt(String),
    /// A number with a fraction or an exponent; may be infinite or not a number.
    Float(f64),
    /// Text, as it is.
    Text(String),
    /// Text that holds `${…}`, not yet resolved.
    Interpolation(String),
    /// `[a, b]`.
    List(Vec<Node>),
    /// `{a: b}`.
    Map(Map),
}

/// The key of a map entry: text nearly always, but YAML allows any scalar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// `a:`
    Text(String),
    /// `1:`
    Int(i128),
    /// `1.5:`, in Python's spelling, so that it can be compared and hashed.
    Float(String),
    /// `true:`
    Bool(bool),
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A default of the program.
    Default,
    /// A file; line and column count from 1 and point to the entry.
    File {
        /// Path as it was opened.
        path: Arc<Path>,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
    },
    /// An override such as `port=9000`.
    CommandLine,
    /// An environment variable.
    Environment {
        /// Its name.
        variable: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::CommandLine => f.write_str("command line"),
            Self::Environment { variable } => write!(f, "environment variable {variable}"),
        }
    }
}

impl Node {
    /// A value that came from `origin`.
    pub fn new(value: Value, origin: Origin) -> Self {
        Self { value, origin }
    }

    /// An empty map.
    pub fn empty_map(origin: Origin) -> Self {
        Self::new(Value::Map(Map::new()), origin)
    }

    /// The entries, if it is a map.
    pub fn as_map(&self) -> Option<&Map> {
        match &self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The entry `key` of a map.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.as_map()?.get(key)
    }

    /// The text, if it is plain text.
    pub fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl Value {
    /// Text on its way into the tree: `???` and `${…}` have a meaning.
    pub fn from_text(text: impl Into<String>) -> Self {
        let text = text.into();
        if text == "???" {
            Self::Missing
        } else if text.contains("${") {
            Self::Interpolation(text)
        } else {
            Self::Text(text)
        }
    }

    /// A decimal whole number of any length (`-12`, `+5`), without underscores.
    ///
    /// `None` if there is anything but digits after the sign.
    pub fn from_decimal(text: &str) -> Option<Self> {
        if let Ok(number) = text.parse() {
            return Some(Self::Int(number));
        }
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", text.strip_prefix('+').unwrap_or(text)),
        };
        let digits = digits.trim_start_matches('0');
        let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        all_digits.then(|| Self::BigInt(format!("{sign}{digits}")))
    }

    /// What it is called in a message.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Missing => "missing",
            Self::Bool(_) => "true/false",
            Self::Int(_) | Self::BigInt(_) => "whole number",
            Self::Float(_) => "number",
            Self::Text(_) => "text",
            Self::Interpolation(_) => "interpolation",
            Self::List(_) => "list",
            Self::Map(_) => "map",
        }
    }

    /// Whether Python calls the two equal: `1 == 1.0 == True`, lists and maps by their content.
    pub fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(a), Self::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.value.equals(&b.value))
            }
            (Self::Map(a), Self::Map(b)) => {
                a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| a.value.equals(&b.value)))
            }
            _ => match (self.as_number(), other.as_number()) {
                (Some(a), Some(b)) => a.partial_cmp(&b).is_some_and(std::cmp::Ordering::is_eq),
                _ => self == other,
            },
        }
    }

    fn as_number(&self) -> Option<f64> {
        match self {
            Self::Bool(flag) => Some(f64::from(u8::from(*flag))),
            Self::Int(number) => Some(*number as f64),
            Self::Float(number) => Some(*number),
            _ => None,
        }
    }
}

/// As Python's `str()` writes it: `True`, `None`, `1.0`, `['a', 1]`. This is how the original puts values into text.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("None"),
            Self::Missing => f.write_str("???"),
            Self::Bool(flag) => f.write_str(python_bool(*flag)),
            Self::Int(number) => write!(f, "{number}"),
            Self::BigInt(digits) => f.write_str(digits),
            Self::Float(number) => f.write_str(&python_float(*number)),
            Self::Text(text) | Self::Interpolation(text) => f.write_str(text),
            Self::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { ", " })?;
                    write_repr(&item.value, f)?;
                }
                f.write_str("]")
            }
            Self::Map(map) => {
                f.write_str("{")?;
                for (index, (key, item)) in map.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { ", " })?;
                    match key {
                        Key::Text(text) => write_quoted(text, f)?,
                        other => write!(f, "{other}")?,
                    }
                    f.write_str(": ")?;
                    write_repr(&item.value, f)?;
                }
                f.write_str("}")
            }
        }
    }
}

/// As Python's `repr()`: like `str()`, but text is quoted.
fn write_repr(value: &Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match value {
        Value::Text(text) | Value::Interpolation(text) => write_quoted(text, f),
        Value::Missing => write_quoted("???", f),
        other => write!(f, "{other}"),
    }
}

fn write_quoted(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    write!(f, "{quote}")?;
    for character in text.chars() {
        match character {
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            '\r' => f.write_str("\\r")?,
            other if other == quote => write!(f, "\\{quote}")?,
            other => write!(f, "{other}")?,
        }
    }
    write!(f, "{quote}")
}

fn python_bool(flag: bool) -> &'static str {
    if flag { "True" } else { "False" }
}

/// The shortest text that reads back as the same number, laid out as Python's `repr(float)` does.
pub(crate) fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => format!("{number:?}"),
    }
}

/// As JSON has it; numbers that are not finite become null, as `serde_json` does.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Missing => serializer.serialize_str("???"),
            Self::Bool(flag) => serializer.serialize_bool(*flag),
            Self::Int(number) => match i64::try_from(*number) {
                Ok(number) => serializer.serialize_i64(number),
                Err(_) => serializer.serialize_i128(*number),
            },
            Self::Float(number) => serializer.serialize_f64(*number),
            Self::BigInt(text) | Self::Text(text) | Self::Interpolation(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items.iter().map(|item| &item.value)),
            Self::Map(map) => serializer.collect_map(map.iter().map(|(key, child)| (key.to_string(), &child.value))),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Float(text) => f.write_str(text),
            Self::Int(number) => write!(f, "{number}"),
            Self::Bool(flag) => f.write_str(python_bool(*flag)),
        }
    }
}

impl Key {
    /// The value as a key; `None` for what can't be one (null, lists, maps).
    pub fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Text(text) | Value::Interpolation(text) | Value::BigInt(text) => Some(Self::Text(text)),
            Value::Missing => Some(Self::Text("???".to_owned())),
            Value::Int(number) => Some(Self::Int(number)),
            Value::Float(number) => Some(Self::Float(python_float(number))),
            Value::Bool(flag) => Some(Self::Bool(flag)),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A text key hashes as its text, so that a map can be asked with a plain `&str`.
impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        match self {
            Self::Text(text) | Self::Float(text) => text.hash(state),
            Self::Int(number) => number.hash(state),
            Self::Bool(flag) => flag.hash(state),
        }
    }
}

impl indexmap::Equivalent<Key> for str {
    fn equivalent(&self, key: &Key) -> bool {
        matches!(key, Key::Text(text) if text == self)
    }
}
