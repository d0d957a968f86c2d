//! The fields of an object, and of a query.

use agl_protocol::pyjson::{Dict, Integer, Value};

use super::{At, Problems, scalars};

/// The fields of one object.
pub(crate) struct Fields<'a> {
    whole: &'a Value,
    dict: &'a Dict,
    at: &'a At<'a>,
}

/// Reads one value.
pub(crate) type Read<T> = fn(&Value, &At<'_>, &mut Problems) -> Option<T>;

impl<'a> Fields<'a> {
    /// An object that stands for a model.
    pub(crate) fn of_model(value: &'a Value, at: &'a At<'a>, problems: &mut Problems) -> Option<Self> {
        if let Value::Dict(dict) = value {
            return Some(Self { whole: value, dict, at });
        }
        let message = "Input should be a valid dictionary or object to extract fields from";
        problems.add("model_attributes_type", at, message, value);
        None
    }

    pub(crate) fn dict(&self) -> &'a Dict {
        self.dict
    }

    /// A field that must be there.
    pub(crate) fn required<T>(&self, key: &str, problems: &mut Problems, read: Read<T>) -> Option<T> {
        let at = self.at.key(key);
        let value = self.dict.get(key);
        if value.is_none() {
            problems.add("missing", &at, "Field required", self.whole);
        }
        value.and_then(|value| read(value, &at, problems))
    }

    /// A field that may be absent. The outer `None` is absence (or a problem).
    pub(crate) fn optional<T>(&self, key: &str, problems: &mut Problems, read: Read<T>) -> Option<T> {
        self.dict.get(key).and_then(|value| read(value, &self.at.key(key), problems))
    }

    /// A field that may be absent or null.
    pub(crate) fn nullable<T>(&self, key: &str, problems: &mut Problems, read: Read<T>) -> Option<T> {
        let value = self.dict.get(key).filter(|value| **value != Value::Null)?;
        read(value, &self.at.key(key), problems)
    }

    /// A field where absent, null and a value are three things.
    #[expect(clippy::option_option, reason = "absent and null mean different things in a patch")]
    pub(crate) fn patched<T>(&self, key: &str, problems: &mut Problems, read: Read<T>) -> Option<Option<T>> {
        match self.dict.get(key)? {
            Value::Null => Some(None),
            value => read(value, &self.at.key(key), problems).map(Some),
        }
    }

    /// Every field that is not among the known ones is one too many.
    pub(crate) fn forbid_others(&self, known: &[&str], problems: &mut Problems) {
        for (key, value) in self.dict.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
            problems.add("extra_forbidden", &self.at.key(key), "Extra inputs are not permitted", value);
        }
    }
}

/// The parameters of a query string. Of a parameter that comes twice, the last value counts.
pub(crate) struct Query<'a> {
    pairs: &'a [(String, String)],
    problems: Problems,
}

impl<'a> Query<'a> {
    pub(crate) fn new(pairs: &'a [(String, String)]) -> Self {
        Self { pairs, problems: Problems::default() }
    }

    /// The values, once all parameters are read, or what is wrong with them.
    pub(crate) fn finish<T>(self, values: T) -> Result<T, Problems> {
        if self.problems.is_empty() { Ok(values) } else { Err(self.problems) }
    }

    pub(crate) fn text(&self, key: &str) -> Option<String> {
        self.pairs.iter().rfind(|(known, _)| known == key).map(|(_, value)| value.clone())
    }

    pub(crate) fn integer(&mut self, key: &str, default: i64) -> Integer {
        self.read(key, scalars::integer).unwrap_or_else(|| Integer::from(default))
    }

    pub(crate) fn boolean(&mut self, key: &str, default: bool) -> bool {
        self.read(key, scalars::boolean).unwrap_or(default)
    }

    fn read<T>(&mut self, key: &str, read: Read<T>) -> Option<T> {
        let value = Value::Str(self.text(key)?);
        read(&value, &At::QUERY.key(key), &mut self.problems)
    }

    /// Every value of a parameter that must be there.
    pub(crate) fn required_list<T>(&mut self, key: &str, read: Read<T>) -> Vec<T> {
        let at = At::QUERY;
        let at = at.key(key);
        let values = self.pairs.iter().filter(|(known, _)| known == key).map(|(_, value)| Value::Str(value.clone()));
        let values: Vec<Value> = values.collect();
        if values.is_empty() {
            self.problems.add("missing", &at, "Field required", &Value::Null);
        }
        let problems = &mut self.problems;
        let read = values.iter().enumerate().filter_map(|(index, value)| read(value, &at.index(index), problems));
        read.collect()
    }
}
