//! JSON that passes through: kept as the text it came in, so that no number loses a digit and no key its place.

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// A JSON value kept as text. Cloning is cheap.
///
/// Task inputs, metadata and event data are the user's: they go in and come out unchanged, whatever they hold
/// (integers beyond 64 bits, for one, which a parsed tree of numbers would round).
#[derive(Clone)]
pub struct RawJson(Arc<RawValue>);

impl RawJson {
    /// Takes JSON text that is already known to be valid; an error tells where it is not.
    pub fn from_text(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(|raw| Self(raw.into()))
    }

    /// The JSON text of any serialisable value.
    pub fn from_value<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(|raw| Self(raw.into()))
    }

    /// `null`.
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned().into())
    }

    /// `{}`.
    pub fn empty_object() -> Self {
        Self::from_value(&serde_json::Map::new()).unwrap_or_default()
    }

    /// The text itself.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// Reads the text as `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.text())
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl PartialEq for RawJson {
    /// Equal text; `1.0` and `1.00` differ.
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Default for RawJson {
    fn default() -> Self {
        Self::null()
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self(raw.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_passes_through_unchanged() {
        for text in ["null", "{}", "123456789012345678901234567890", r#"{"b":1.10,"a":[1e-7,"é"]}"#] {
            let raw: RawJson = serde_json::from_str(text).unwrap();
            assert_eq!(raw.text(), text);
            assert_eq!(serde_json::to_string(&raw).unwrap(), text);
        }
        assert_eq!(RawJson::empty_object().text(), "{}");
        assert_eq!(RawJson::null().text(), "null");
    }
}
