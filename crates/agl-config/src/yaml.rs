//! YAML text to the configuration tree, with the line and column of every entry.
//!
//! The events come from `saphyr-parser`; what they mean follows PyYAML's safe loader as OmegaConf sets it up:
//! YAML 1.1 scalars (see [`crate::yaml_scalar`]), duplicate keys are an error, `<<` merges maps.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag};

use crate::interpolation;
use crate::value::{Key, Map, Node, Origin, Value};
use crate::yaml_scalar;

/// Deepest nesting that is read.
pub const MAX_DEPTH: usize = 128;
/// Most values a document may have, aliases expanded: a few lines of aliases can stand for billions of values.
pub const MAX_VALUES: usize = 1_000_000;

/// Why a text is no configuration. Every variant names the place.
#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    /// Not YAML.
    #[error("{at}: not valid YAML: {problem}")]
    Syntax {
        /// Where.
        at: Origin,
        /// What the parser says.
        problem: String,
    },
    /// A key twice in one map.
    #[error("{at}: found duplicate key `{key}`; its first value is at {first}; keep one of them")]
    DuplicateKey {
        /// The second one.
        at: Origin,
        /// The key.
        key: String,
        /// The first one.
        first: Origin,
    },
    /// A value of a kind that a configuration can't hold.
    #[error("{at}: {problem}")]
    Unsupported {
        /// Where.
        at: Origin,
        /// What and why.
        problem: String,
    },
}

/// Reads one document. An empty text is an empty map; a lone text `a` is the map `a: null`, as in OmegaConf.
pub(crate) fn parse(text: &str, source: &Source) -> Result<Node, YamlError> {
    let mut reader = Reader { source, anchors: HashMap::new(), values: 0 };
    let mut events = Parser::new_from_str(text);
    let root = reader.document(&mut events)?;
    let root = match root {
        None => Node::empty_map(source.at(1, 1)),
        Some(Node { value: Value::Null, origin }) => Node::empty_map(origin),
        Some(Node { value: Value::Text(text), origin }) => {
            let entry = Node::new(Value::Null, origin.clone());
            Node::new(Value::Map(Map::from_iter([(Key::Text(text), entry)])), origin)
        }
        Some(node) => node,
    };
    match root.value {
        Value::Map(_) | Value::List(_) => Ok(root),
        other => Err(YamlError::Unsupported {
            at: root.origin,
            problem: format!("a configuration is a map of keys and values, but this is {}", other.kind()),
        }),
    }
}

/// What is read: a file, or a default built into the program.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// Values carry the path and position.
    File(Arc<Path>),
    /// Values carry [`Origin::Default`]; the name is for messages about the text itself.
    BuiltIn,
}

impl Source {
    fn at(&self, line: usize, column: usize) -> Origin {
        match self {
            Self::File(path) => Origin::File { path: path.clone(), line, column },
            Self::BuiltIn => Origin::Default,
        }
    }

    fn marker(&self, marker: &Marker) -> Origin {
        self.at(marker.line(), marker.col() + 1)
    }
}

struct Reader<'a> {
    source: &'a Source,
    anchors: HashMap<usize, Node>,
    values: usize,
}

type Events<'a> = Parser<'a, saphyr_parser::StrInput<'a>>;

impl Reader<'_> {
    /// The only document of the text, or `None` if there is none.
    fn document(&mut self, events: &mut Events<'_>) -> Result<Option<Node>, YamlError> {
        let mut root = None;
        while let Some(event) = events.next() {
            let (event, span) = event.map_err(|error| self.syntax(&error))?;
            match event {
                Event::Nothing | Event::StreamStart | Event::DocumentEnd => {}
                Event::StreamEnd => break,
                Event::DocumentStart(_) if root.is_none() => {}
                Event::DocumentStart(_) => {
                    return Err(YamlError::Unsupported {
                        at: self.source.marker(&span.start),
                        problem: "a second document begins; put everything into one, without `---` between".to_owned(),
                    });
                }
                other => root = Some(self.node(other, span, events, 0)?),
            }
        }
        Ok(root)
    }

    fn node(&mut self, event: Event<'_>, span: Span, events: &mut Events<'_>, depth: usize) -> Result<Node, YamlError> {
        let at = self.source.marker(&span.start);
        self.count(1, &at)?;
        if depth > MAX_DEPTH {
            return Err(YamlError::Unsupported { at, problem: format!("nested deeper than {MAX_DEPTH} levels") });
        }
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => (scalar(text.as_ref(), style, tag.as_deref(), &at)?, anchor),
            Event::SequenceStart(anchor, tag) => {
                check_collection_tag(tag.as_deref(), "seq", &at)?;
                (Value::List(self.sequence(events, depth)?), anchor)
            }
            Event::MappingStart(anchor, tag) => {
                check_collection_tag(tag.as_deref(), "map", &at)?;
                (Value::Map(self.mapping(events, depth)?), anchor)
            }
            Event::Alias(anchor) => return self.alias(anchor, at),
            _ => {
                return Err(YamlError::Syntax { at, problem: "a value is expected here".to_owned() });
            }
        };
        if let Value::Interpolation(_) = value {
            interpolation::check(&value).map_err(|problem| YamlError::Syntax { at: at.clone(), problem })?;
        }
        let node = Node::new(value, at);
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn alias(&mut self, anchor: usize, at: Origin) -> Result<Node, YamlError> {
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            // An alias inside the value that it names: its anchor isn't complete yet.
            return Err(YamlError::Unsupported { at, problem: "a value can't contain itself".to_owned() });
        };
        self.count(size(&node), &at)?;
        Ok(node)
    }

    fn sequence(&mut self, events: &mut Events<'_>, depth: usize) -> Result<Vec<Node>, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.next(events)? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, span) => items.push(self.node(event, span, events, depth + 1)?),
            }
        }
    }

    /// Merged entries (`<<`) come first, in order; the map's own entries replace them in place.
    fn mapping(&mut self, events: &mut Events<'_>, depth: usize) -> Result<Map, YamlError> {
        let mut merged = Map::new();
        let mut own: Vec<(Key, Node)> = Vec::new();
        let mut first_of: HashMap<String, Origin> = HashMap::new();
        loop {
            let (event, span) = match self.next(events)? {
                (Event::MappingEnd, _) => break,
                other => other,
            };
            let is_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key_node = self.node(event, span, events, depth + 1)?;
            let at = key_node.origin.clone();
            let (event, span) = self.next(events)?;
            let mut value = self.node(event, span, events, depth + 1)?;
            if is_merge {
                Self::merge(&mut merged, value)?;
                continue;
            }
            let key = Key::from_value(key_node.value).ok_or_else(|| YamlError::Unsupported {
                at: at.clone(),
                problem: "a key must be text, a number or true/false".to_owned(),
            })?;
            if let Key::Text(text) = &key
                && let Some(first) = first_of.insert(text.clone(), at.clone())
            {
                return Err(YamlError::DuplicateKey { at, key: text.clone(), first });
            }
            // Messages about a value point to its key: that is where people look.
            value.origin = at;
            own.push((key, value));
        }
        merged.extend(own);
        Ok(merged)
    }

    /// Adds the entries of one merged map, or of a list of them, of which the first wins.
    fn merge(merged: &mut Map, value: Node) -> Result<(), YamlError> {
        let Node { value, origin } = value;
        match value {
            Value::Map(map) => merged.extend(map),
            Value::List(items) => {
                for item in items.into_iter().rev() {
                    match item.value {
                        Value::Map(map) => merged.extend(map),
                        other => return Err(not_a_map(other.kind(), item.origin)),
                    }
                }
            }
            other => return Err(not_a_map(other.kind(), origin)),
        }
        Ok(())
    }

    fn next<'e>(&self, events: &mut Events<'e>) -> Result<(Event<'e>, Span), YamlError> {
        match events.next() {
            Some(event) => event.map_err(|error| self.syntax(&error)),
            None => Err(YamlError::Syntax { at: self.source.at(1, 1), problem: "the text ends too early".to_owned() }),
        }
    }

    fn syntax(&self, error: &ScanError) -> YamlError {
        YamlError::Syntax { at: self.source.marker(error.marker()), problem: error.info().to_owned() }
    }

    fn count(&mut self, values: usize, at: &Origin) -> Result<(), YamlError> {
        self.values = self.values.saturating_add(values);
        if self.values > MAX_VALUES {
            let problem = format!("more than {MAX_VALUES} values, aliases included");
            return Err(YamlError::Unsupported { at: at.clone(), problem });
        }
        Ok(())
    }
}

fn not_a_map(kind: &str, at: Origin) -> YamlError {
    YamlError::Unsupported { at, problem: format!("`<<` merges maps, but this is {kind}") }
}

fn size(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Map(map) => 1 + map.values().map(size).sum::<usize>(),
        _ => 1,
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, at: &Origin) -> Result<Value, YamlError> {
    let Some(tag) = tag.filter(|tag| !is_non_specific(tag)) else {
        return Ok(match style {
            ScalarStyle::Plain => yaml_scalar::plain(text),
            _ => Value::from_text(text),
        });
    };
    let wrong = |wanted: &str| YamlError::Unsupported { at: at.clone(), problem: format!("`{text}` is not {wanted}") };
    match core_tag(tag) {
        Some("str") => Ok(Value::from_text(text)),
        Some("null") => Ok(Value::Null),
        Some("bool") => yaml_scalar::bool_word(text).map(Value::Bool).ok_or_else(|| wrong("true/false")),
        Some("int") => yaml_scalar::int(text).ok_or_else(|| wrong("a whole number")),
        Some("float") => {
            let (negative, digits) = match text.strip_prefix('-') {
                Some(digits) => (true, digits),
                None => (false, text.strip_prefix('+').unwrap_or(text)),
            };
            yaml_scalar::float_value(negative, digits).ok_or_else(|| wrong("a number"))
        }
        _ => Err(unknown_tag(tag, at)),
    }
}

fn check_collection_tag(tag: Option<&Tag>, expected: &str, at: &Origin) -> Result<(), YamlError> {
    match tag {
        Some(tag) if !is_non_specific(tag) && core_tag(tag) != Some(expected) => Err(unknown_tag(tag, at)),
        _ => Ok(()),
    }
}

/// A lone `!`: PyYAML reads the value as if it weren't there.
fn is_non_specific(tag: &Tag) -> bool {
    format!("{}{}", tag.handle, tag.suffix) == "!"
}

fn core_tag(tag: &Tag) -> Option<&str> {
    tag.is_yaml_core_schema().then_some(tag.suffix.as_str())
}

fn unknown_tag(tag: &Tag, at: &Origin) -> YamlError {
    let problem = format!(
        "could not determine a constructor for the tag `{}{}`; use plain values, or !!str, !!int, !!float, !!bool",
        tag.handle, tag.suffix
    );
    YamlError::Unsupported { at: at.clone(), problem }
}
