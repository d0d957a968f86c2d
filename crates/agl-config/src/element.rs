//! The value of an override, with its quotes remembered: a sweep has to write it down again as an override.

use crate::override_lexer::ESCAPABLE;
use crate::value::{Key, Map, Node, Origin, Value};

/// A parsed value.
#[derive(Debug, Clone, PartialEq)]
pub enum Element {
    /// Null, true/false or a number.
    Scalar(Value),
    /// Text without quotes, unescaped.
    Text(String),
    /// Text in quotes, unescaped.
    Quoted(String, Quote),
    /// `[a, b]`
    List(Vec<Element>),
    /// `{a: b}`
    Map(Vec<(Element, Element)>),
}

/// Which quotes were around a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quote {
    /// `'`
    Single,
    /// `"`
    Double,
}

impl Quote {
    fn character(self) -> char {
        match self {
            Self::Single => '\'',
            Self::Double => '"',
        }
    }
}

impl Element {
    /// The value for the tree. A null or a list as the key of a map is an error, which is returned as text.
    pub fn to_value(&self) -> Result<Value, String> {
        Ok(match self {
            Self::Scalar(value) => value.clone(),
            Self::Text(text) | Self::Quoted(text, _) => Value::from_text(text.clone()),
            Self::List(items) => {
                let nodes = items.iter().map(|item| Ok(Node::new(item.to_value()?, Origin::CommandLine)));
                Value::List(nodes.collect::<Result<_, String>>()?)
            }
            Self::Map(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    let key =
                        Key::from_value(key.to_value()?).ok_or("a key in {…} must be text, a number or true/false")?;
                    map.insert(key, Node::new(value.to_value()?, Origin::CommandLine));
                }
                Value::Map(map)
            }
        })
    }

    /// Written so that it parses to the same element again.
    pub fn to_override_text(&self) -> String {
        match self {
            Self::Scalar(Value::Null) => "null".to_owned(),
            Self::Scalar(value) => value.to_string(),
            Self::Text(text) => escaped(text),
            Self::Quoted(text, quote) => quoted(text, *quote),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(Self::to_override_text).collect();
                format!("[{}]", items.join(","))
            }
            Self::Map(entries) => {
                let entries: Vec<String> = entries
                    .iter()
                    .map(|(key, value)| format!("{}:{}", key.to_override_text(), value.to_override_text()))
                    .collect();
                format!("{{{}}}", entries.join(","))
            }
        }
    }
}

/// `text` with a backslash before every character that has a meaning in an override.
pub fn escaped(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for character in text.chars() {
        if ESCAPABLE.contains(&character) || character == '\t' {
            result.push('\\');
        }
        result.push(character);
    }
    result
}

/// `text` in quotes: quotes inside get a backslash, and backslashes before a quote are doubled.
pub fn quoted(text: &str, quote: Quote) -> String {
    let quote = quote.character();
    let mut result = String::from(quote);
    let mut backslashes = 0;
    for character in text.chars() {
        if character == quote {
            result.extend(std::iter::repeat_n('\\', backslashes + 1));
        }
        backslashes = if character == '\\' { backslashes + 1 } else { 0 };
        result.push(character);
    }
    result.extend(std::iter::repeat_n('\\', backslashes));
    result.push(quote);
    result
}

/// The text inside quotes: backslashes count only before a quote (the closing one included).
pub(crate) fn unquoted(token: &str) -> Option<(String, Quote)> {
    let quote = match token.chars().next()? {
        '\'' => Quote::Single,
        '"' => Quote::Double,
        _ => return None,
    };
    let mut result = String::with_capacity(token.len());
    let mut backslashes = 0;
    for character in token.chars().skip(1) {
        if character == '\\' {
            backslashes += 1;
            continue;
        }
        let kept = if character == quote.character() { backslashes / 2 } else { backslashes };
        result.extend(std::iter::repeat_n('\\', kept));
        backslashes = 0;
        result.push(character);
    }
    result.pop(); // the closing quote
    Some((result, quote))
}
