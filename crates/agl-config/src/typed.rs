//! From the resolved tree to a Rust struct, with errors that name the key, the value and what is allowed.
//!
//! A [`serde::Deserializer`] over [`Node`]. Unlike the original, which finds out when `int()` fails deep inside, a value of the
//! wrong type is refused here. What people write in good faith is accepted: `no`, `off` and `false` mean false,
//! `'8080'` (text, as environment variables are) is a port, `1e4` is a whole number.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, Unexpected, Visitor};

use crate::functions;
use crate::secret;
use crate::suggest;
use crate::value::{Map, Node, Origin, Value};

/// A value that does not fit the setting it was given for.
#[derive(Debug, Clone)]
pub struct ValueError {
    /// Where the value came from, as far as known.
    pub origin: Option<Origin>,
    /// The setting, such as `trainer.lr`; empty for the whole configuration.
    pub key: String,
    /// The value as it was given; `***` for secrets; empty if that isn't the point.
    pub value: String,
    /// What is wrong and what is allowed.
    pub problem: String,
}

impl std::error::Error for ValueError {}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Some(Origin::Default) | None => {}
            Some(origin) => write!(f, "{origin}: ")?,
        }
        match (self.key.as_str(), self.value.as_str()) {
            ("", _) => {}
            (key, "") => write!(f, "`{key}`: ")?,
            (key, value) => write!(f, "`{key}={value}`: ")?,
        }
        f.write_str(&self.problem)
    }
}

impl de::Error for ValueError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { origin: None, key: String::new(), value: String::new(), problem: message.to_string() }
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(format_args!("must be {expected}"))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(format_args!("must be {expected}"))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::custom(format_args!("unknown key `{field}`; {}", suggest::known(field, expected.iter().copied())))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::custom(format_args!("unknown; {}", suggest::allowed(variant, expected)))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::custom(format_args!("`{field}` is missing; give it a value"))
    }
}

/// Reads `T` from a resolved tree.
pub(crate) fn from_node<'de, T: de::Deserialize<'de>>(node: &'de Node) -> Result<T, ValueError> {
    T::deserialize(NodeReader { node, path: &Path::Root })
}

/// Reads `T` from a resolved tree that stands below `key`.
pub(crate) fn from_node_at<'de, T: de::Deserialize<'de>>(node: &'de Node, key: &str) -> Result<T, ValueError> {
    T::deserialize(NodeReader { node, path: &Path::Key(&Path::Root, key.to_owned()) })
}

/// The way from the root to a node, kept on the stack: it is only spelled out when something is wrong.
enum Path<'a> {
    Root,
    Key(&'a Path<'a>, String),
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Key(Path::Root, key) => f.write_str(key),
            Self::Key(parent, key) => write!(f, "{parent}.{key}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

#[derive(Clone, Copy)]
struct NodeReader<'de, 'p> {
    node: &'de Node,
    path: &'p Path<'p>,
}

impl<'de> NodeReader<'de, '_> {
    /// `must be …`, naming this node.
    fn must_be<T>(self, wanted: impl fmt::Display) -> Result<T, ValueError> {
        if let Value::Missing = self.node.value {
            return Err(self.locate(de::Error::custom(format_args!("Missing mandatory value: give it {wanted}"))));
        }
        Err(self.locate(de::Error::custom(format_args!("must be {wanted}"))))
    }

    /// Adds key, value and origin to an error that has none yet: the innermost node knows best.
    fn locate(self, mut error: ValueError) -> ValueError {
        if error.origin.is_none() {
            error.key = self.path.to_string();
            error.value = match &self.node.value {
                Value::Map(_) | Value::List(_) => String::new(),
                value => secret::shown(&error.key, value),
            };
            error.origin = Some(self.node.origin.clone());
        }
        error
    }

    fn visit<V: Visitor<'de>>(
        self,
        visitor: V,
        visit: impl FnOnce(V) -> Result<V::Value, ValueError>,
    ) -> Result<V::Value, ValueError> {
        visit(visitor).map_err(|error| self.locate(error))
    }

    fn whole_number(self) -> Result<i128, ValueError> {
        match &self.node.value {
            Value::Int(number) => Ok(*number),
            Value::Float(number) if number.fract() == 0.0 && number.abs() < 2f64.powi(100) => Ok(*number as i128),
            Value::Text(text) => match functions::without_underscores(text.trim()).map(|text| text.parse()) {
                Some(Ok(number)) => Ok(number),
                _ => self.must_be("a whole number"),
            },
            _ => self.must_be("a whole number"),
        }
    }

    fn number(self) -> Result<f64, ValueError> {
        match &self.node.value {
            Value::Int(number) => Ok(*number as f64),
            Value::Float(number) => Ok(*number),
            Value::Text(text) => match text.trim().parse() {
                Ok(number) => Ok(number),
                Err(_) => self.must_be("a number"),
            },
            _ => self.must_be("a number"),
        }
    }

    fn flag(self) -> Result<bool, ValueError> {
        let word = match &self.node.value {
            Value::Bool(flag) => return Ok(*flag),
            Value::Int(number) => number.to_string(),
            Value::Text(text) => text.trim().to_lowercase(),
            _ => String::new(),
        };
        match word.as_str() {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" => Ok(false),
            _ => self.must_be("true or false (yes/no, on/off and 1/0 are understood)"),
        }
    }

    fn visit_map<V: Visitor<'de>>(self, map: &'de Map, visitor: V) -> Result<V::Value, ValueError> {
        let access = MapReader { entries: map.iter(), current: None, parent: self };
        self.visit(visitor, |visitor| visitor.visit_map(access))
    }

    fn visit_list<V: Visitor<'de>>(self, items: &'de [Node], visitor: V) -> Result<V::Value, ValueError> {
        let access = ListReader { items: items.iter().enumerate(), path: self.path };
        self.visit(visitor, |visitor| visitor.visit_seq(access))
    }
}

/// Whole numbers of every width go through one check of the range.
macro_rules! whole_numbers {
    ($($method:ident => $visit:ident: $type:ty),+ $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
            let number = self.whole_number()?;
            match <$type>::try_from(number) {
                Ok(number) => self.visit(visitor, |visitor| visitor.$visit(number)),
                Err(_) => self.must_be(format_args!("a whole number from {} to {}", <$type>::MIN, <$type>::MAX)),
            }
        }
    )+};
}

impl<'de> de::Deserializer<'de> for NodeReader<'de, '_> {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match &self.node.value {
            Value::Null => self.visit(visitor, V::visit_unit),
            Value::Missing => self.must_be("a value"),
            Value::Bool(flag) => self.visit(visitor, |visitor| visitor.visit_bool(*flag)),
            Value::Int(number) => self.visit(visitor, |visitor| {
                if let Ok(number) = i64::try_from(*number) {
                    visitor.visit_i64(number)
                } else if let Ok(number) = u64::try_from(*number) {
                    visitor.visit_u64(number)
                } else {
                    visitor.visit_i128(*number)
                }
            }),
            Value::Float(number) => self.visit(visitor, |visitor| visitor.visit_f64(*number)),
            Value::BigInt(text) | Value::Text(text) | Value::Interpolation(text) => {
                self.visit(visitor, |visitor| visitor.visit_borrowed_str(text))
            }
            Value::List(items) => self.visit_list(items, visitor),
            Value::Map(map) => self.visit_map(map, visitor),
        }
    }

    whole_numbers! {
        deserialize_i8 => visit_i8: i8,
        deserialize_i16 => visit_i16: i16,
        deserialize_i32 => visit_i32: i32,
        deserialize_i64 => visit_i64: i64,
        deserialize_i128 => visit_i128: i128,
        deserialize_u8 => visit_u8: u8,
        deserialize_u16 => visit_u16: u16,
        deserialize_u32 => visit_u32: u32,
        deserialize_u64 => visit_u64: u64,
        deserialize_u128 => visit_u128: u128,
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        let number = self.number()?;
        self.visit(visitor, |visitor| visitor.visit_f64(number))
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        self.deserialize_f32(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        let flag = self.flag()?;
        self.visit(visitor, |visitor| visitor.visit_bool(flag))
    }

    /// Scalars become text as in the original (`model_name=1.5` is the name "1.5"); null, lists and maps don't.
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match &self.node.value {
            Value::Text(text) | Value::BigInt(text) => self.visit(visitor, |visitor| visitor.visit_borrowed_str(text)),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                let text = self.node.value.to_string();
                self.visit(visitor, |visitor| visitor.visit_string(text))
            }
            _ => self.must_be("text"),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.node.value {
            Value::Null => self.visit(visitor, V::visit_none),
            _ => self.visit(visitor, |visitor| visitor.visit_some(self)),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.node.value {
            Value::Null => self.visit(visitor, V::visit_unit),
            _ => self.must_be("null"),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, ValueError> {
        self.visit(visitor, |visitor| visitor.visit_newtype_struct(self))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match &self.node.value {
            Value::List(items) => self.visit_list(items, visitor),
            _ => self.must_be("a list, such as [a, b]"),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, ValueError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match &self.node.value {
            Value::Map(map) => self.visit_map(map, visitor),
            _ => self.must_be("a map of keys and values"),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        match &self.node.value {
            Value::Map(map) => self.visit_map(map, visitor),
            _ => self.must_be(format_args!("a map with the keys {}", fields.join(", "))),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        match &self.node.value {
            Value::Text(text) => {
                let name: StrDeserializer<'_, ValueError> = text.as_str().into_deserializer();
                self.visit(visitor, |visitor| visitor.visit_enum(name))
            }
            Value::Map(map) if map.len() == 1 => {
                let access = MapReader { entries: map.iter(), current: None, parent: self };
                let access = de::value::MapAccessDeserializer::new(access);
                self.visit(visitor, |visitor| visitor.visit_enum(access))
            }
            _ => self.must_be(format_args!("one of {}", variants.join(", "))),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! { bytes byte_buf unit_struct tuple_struct identifier }
}

struct ListReader<'de, 'p> {
    items: std::iter::Enumerate<std::slice::Iter<'de, Node>>,
    path: &'p Path<'p>,
}

impl<'de> de::SeqAccess<'de> for ListReader<'de, '_> {
    type Error = ValueError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ValueError> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        let reader = NodeReader { node, path: &Path::Index(self.path, index) };
        seed.deserialize(reader).map(Some).map_err(|error| reader.locate(error))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct MapReader<'de, 'p> {
    entries: indexmap::map::Iter<'de, crate::value::Key, Node>,
    current: Option<(String, &'de Node)>,
    parent: NodeReader<'de, 'p>,
}

impl<'de> de::MapAccess<'de> for MapReader<'de, '_> {
    type Error = ValueError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ValueError> {
        let Some((key, node)) = self.entries.next() else { return Ok(None) };
        let name = key.to_string();
        let reader: StrDeserializer<'_, ValueError> = name.as_str().into_deserializer();
        let read = seed.deserialize(reader).map_err(|mut error| {
            // An unknown key: its own place, not that of the map around it.
            error.origin = Some(node.origin.clone());
            error.key = Path::Key(self.parent.path, name.clone()).to_string();
            error
        })?;
        self.current = Some((name, node));
        Ok(Some(read))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ValueError> {
        let Some((name, node)) = self.current.take() else {
            return Err(de::Error::custom("a value was asked for before its key"));
        };
        let path = Path::Key(self.parent.path, name);
        let reader = NodeReader { node, path: &path };
        seed.deserialize(reader).map_err(|error| reader.locate(error))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}
