//! JSON as Python's `json` module reads it and pydantic writes it.
//!
//! The contract was made by a Python server: a client may post `NaN`, an integer of forty digits or a UTF-16 body,
//! and gets error positions counted in characters. `serde_json` refuses or rounds these, so the parties' own JSON
//! (task inputs, metadata, event data, odd model answers) is read and written here.
//!
//! One thing is stricter than Python: half of a surrogate pair (`"\ud800"`) is refused, since no UTF-8 text can hold it.

mod parse;
mod write;

use indexmap::IndexMap;

pub use parse::{DecodeError, ParseError, decode, parse};
pub use write::{Spelling, python_float, python_repr, write_string};

use crate::RawJson;

/// A JSON object in the order of its keys.
pub type Dict = IndexMap<String, Value>;

/// A JSON value, with integers of any size.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// `null`
    #[default]
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A number without fraction and exponent.
    Int(Integer),
    /// Any other number; also `NaN`, `Infinity` and `-Infinity`.
    Float(f64),
    /// A string.
    Str(String),
    /// An array.
    List(Vec<Value>),
    /// An object; of a key that comes twice, the last value counts.
    Dict(Dict),
}

/// An integer of any size, kept as its decimal digits without leading zeros.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Integer(Box<str>);

impl Integer {
    /// Reads `-?[0-9]+`; `None` for anything else.
    pub fn from_digits(text: &str) -> Option<Self> {
        let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let digits = digits.trim_start_matches('0');
        Some(match (digits, negative) {
            ("", _) => Self("0".into()),
            (digits, true) => Self(format!("-{digits}").into()),
            (digits, false) => Self(digits.into()),
        })
    }

    /// Its decimal digits.
    pub fn digits(&self) -> &str {
        &self.0
    }

    /// The number, if it fits.
    pub fn as_i64(&self) -> Option<i64> {
        self.0.parse().ok()
    }

    /// The number, or the nearest that fits.
    pub fn saturating_i64(&self) -> i64 {
        self.as_i64().unwrap_or(if self.0.starts_with('-') { i64::MIN } else { i64::MAX })
    }
}

impl From<i64> for Integer {
    fn from(number: i64) -> Self {
        Self(number.to_string().into())
    }
}

impl Value {
    /// The value at a key of an object.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Dict(dict) => dict.get(key),
            _ => None,
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The items of an array.
    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }

    /// Whether Python's `if value:` would be taken.
    pub fn is_truthy(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Int(number) => number.digits() != "0",
            Self::Float(number) => *number != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Dict(dict) => !dict.is_empty(),
        }
    }

    /// The value as JSON text, spelled as the API answers.
    pub fn to_raw(&self) -> RawJson {
        let mut text = String::new();
        self.write(&mut text, Spelling::Pydantic);
        // What `write` makes is JSON, so the fallback is never taken.
        RawJson::from_text(text).unwrap_or_default()
    }
}
