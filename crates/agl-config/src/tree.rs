//! Reading and changing the tree by path, as `OmegaConf.select`, `update` and `merge` do.

use crate::value::{Key, Map, Node, Value};

/// Whether a change may bring keys that nobody declared. OmegaConf calls the closed kind "struct mode".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// Only keys that exist, and these paths: a typing error doesn't become a new setting.
    Closed(&'static [&'static str]),
    /// Any key.
    Open,
}

impl Keys {
    /// Whether `path` may be added.
    fn allow(self, path: &str) -> bool {
        match self {
            Self::Open => true,
            Self::Closed(known) => known.contains(&path),
        }
    }

    /// The names that may be added directly below `parent`.
    fn below(self, parent: &str) -> impl Iterator<Item = &'static str> {
        let known = match self {
            Self::Open => &[],
            Self::Closed(known) => known,
        };
        let name = move |path: &'static str| {
            let rest = if parent.is_empty() { path } else { path.strip_prefix(parent)?.strip_prefix('.')? };
            rest.split('.').next()
        };
        let names: Vec<&str> = known.iter().filter_map(|path| name(path)).collect();
        names.into_iter()
    }
}

/// Why a change is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The key is not declared.
    #[error("Key '{key}' is not in struct\n    full_key: {full_key}\n    object_type=dict")]
    UnknownKey {
        /// Last part of its path.
        key: String,
        /// Its path.
        full_key: String,
        /// The keys that exist beside it.
        known: Vec<String>,
    },
    /// A list where a map is, or the other way round.
    #[error("Cannot merge DictConfig with ListConfig\n    full_key: {full_key}\n    object_type=dict")]
    ListAndMap {
        /// Path of the value that is there.
        full_key: String,
    },
    /// No such item in a list.
    #[error("'{index}' is no item of the list (it has {length})\n    full_key: {full_key}\n    object_type=list")]
    NoSuchItem {
        /// What was asked for.
        index: String,
        /// Items of the list.
        length: usize,
        /// Path of the item.
        full_key: String,
    },
}

/// The value at `path` (`a.b`, `list.0`); an empty path is the root itself.
pub(crate) fn select<'a>(root: &'a Node, path: &str) -> Option<&'a Node> {
    steps(path).try_fold(root, child)
}

/// The value at `path`, to be changed in place.
pub(crate) fn select_mut<'a>(root: &'a mut Node, path: &str) -> Option<&'a mut Node> {
    steps(path).try_fold(root, |node, step| match &mut node.value {
        Value::Map(map) => map.get_mut(step),
        Value::List(items) => list_index(step, items.len()).and_then(|index| items.get_mut(index)),
        _ => None,
    })
}

/// One step down.
pub(crate) fn child<'a>(node: &'a Node, step: &str) -> Option<&'a Node> {
    match &node.value {
        Value::Map(map) => map.get(step),
        Value::List(items) => items.get(list_index(step, items.len())?),
        _ => None,
    }
}

/// Sets the value at `path`. A map given for a map is merged into it; anything else replaces what is there,
/// and a scalar on the way becomes a map.
pub(crate) fn update(root: &mut Node, path: &str, new: Node, keys: Keys) -> Result<(), UpdateError> {
    let mut node = root;
    let mut walked = String::new();
    let mut steps = steps(path).peekable();
    while let Some(step) = steps.next() {
        push(&mut walked, step);
        let is_last = steps.peek().is_none();
        let origin = new.origin.clone();
        let entry = match &mut node.value {
            Value::Map(map) => {
                if !map.contains_key(step) && !keys.allow(&walked) {
                    return Err(unknown(map, keys, step, &walked));
                }
                map.entry(Key::from(step)).or_insert_with(|| Node::new(Value::Null, origin.clone()))
            }
            Value::List(items) => {
                let length = items.len();
                let item = list_index(step, length).and_then(|index| items.get_mut(index));
                item.ok_or_else(|| UpdateError::NoSuchItem {
                    index: step.to_owned(),
                    length,
                    full_key: walked.clone(),
                })?
            }
            // The loop below makes sure of a container; the root is one.
            _ => return Err(UpdateError::ListAndMap { full_key: walked }),
        };
        if !is_last && !matches!(entry.value, Value::Map(_) | Value::List(_)) {
            *entry = Node::empty_map(origin);
        }
        node = entry;
    }
    let holds_values = |node: &Node| matches!(node.value, Value::Map(_) | Value::List(_));
    if holds_values(node) && holds_values(&new) {
        return merge(node, new, keys, &walked);
    }
    *node = new;
    Ok(())
}

/// Removes the value at `path`, and says whether there was one.
pub(crate) fn remove(root: &mut Node, path: &str) -> bool {
    let (parent, last) = path.rsplit_once('.').unwrap_or(("", path));
    match select_mut(root, parent).map(|parent| &mut parent.value) {
        Some(Value::Map(map)) => map.shift_remove(last).is_some(),
        _ => false,
    }
}

/// Merges `new` into `old`: maps key by key, everything else replaces. A missing value (`???`) replaces nothing.
pub(crate) fn merge(old: &mut Node, new: Node, keys: Keys, path: &str) -> Result<(), UpdateError> {
    match (&mut old.value, new.value) {
        (Value::Map(map), Value::Map(entries)) => {
            for (key, entry) in entries {
                let mut full_key = path.to_owned();
                push(&mut full_key, &key.to_string());
                match map.get_mut(&key) {
                    Some(existing) => merge(existing, entry, keys, &full_key)?,
                    None if !keys.allow(&full_key) => return Err(unknown(map, keys, &key.to_string(), &full_key)),
                    None => {
                        map.insert(key, entry);
                    }
                }
            }
            Ok(())
        }
        (Value::Map(_), Value::List(_)) | (Value::List(_), Value::Map(_)) => {
            Err(UpdateError::ListAndMap { full_key: path.to_owned() })
        }
        (_, Value::Missing) => Ok(()),
        (_, value) => {
            *old = Node::new(value, new.origin);
            Ok(())
        }
    }
}

fn unknown(map: &Map, keys: Keys, key: &str, full_key: &str) -> UpdateError {
    let parent = full_key.rsplit_once('.').map_or("", |(parent, _)| parent);
    let mut known: Vec<String> = map.keys().map(ToString::to_string).collect();
    for name in keys.below(parent) {
        if !known.iter().any(|known| known == name) {
            known.push(name.to_owned());
        }
    }
    UpdateError::UnknownKey { key: key.to_owned(), full_key: full_key.to_owned(), known }
}

/// `a.b[0].c` as `a`, `b`, `0`, `c`.
pub(crate) fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.split(['.', '[', ']']).filter(|step| !step.is_empty())
}

fn push(path: &mut String, step: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(step);
}

fn list_index(step: &str, length: usize) -> Option<usize> {
    step.parse().ok().filter(|index| *index < length)
}
