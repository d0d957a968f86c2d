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

/// Reads any JSON integer into an `i64`; one that does not fit becomes the nearest that does.
///
/// The contract sets no bound for timeouts, versions and `Retry-After`, and one absurd value must not make a list of
/// rollouts unreadable.
pub(crate) fn saturating_i64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Fits(i64),
        TooLarge(u64),
        Spelled(f64),
    }
    match Number::deserialize(deserializer)? {
        Number::Fits(number) => Ok(number),
        Number::TooLarge(number) => Ok(i64::try_from(number).unwrap_or(i64::MAX)),
        Number::Spelled(number) if number.fract() == 0.0 => Ok(number as i64),
        Number::Spelled(number) => Err(serde::de::Error::custom(format!("{number} is not an integer"))),
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

    #[test]
    fn absurd_integers_become_the_nearest() {
        #[derive(Deserialize)]
        struct Holder(#[serde(deserialize_with = "saturating_i64")] i64);
        let read = |text: &str| serde_json::from_str::<Holder>(text).map(|holder| holder.0).ok();
        assert_eq!(read("-5"), Some(-5));
        assert_eq!(read("18446744073709551615"), Some(i64::MAX));
        assert_eq!(read("100000000000000000000"), Some(i64::MAX));
        assert_eq!(read("-100000000000000000000"), Some(i64::MIN));
        assert_eq!(read("1.5"), None);
        assert_eq!(read("\"5\""), None);
    }
}
