//! Replaces `${…}` by what it stands for.
//!
//! `${a.b}` is looked up from the root, `${.a}` beside the value, `${..a}` one level up. A text that is nothing but an
//! interpolation takes over the value with its type; in a longer text it becomes text. What a resolver brings
//! (an environment variable, say) is not looked at again.

use crate::interpolation_grammar::{self as grammar, Argument, Interpolation, Name, Part};
use crate::resolvers;
use crate::surroundings::Surroundings;
use crate::tree;
use crate::value::{Key, Map, Node, Origin, Value};

/// Most values and bytes of text that resolving may make: a few lines can stand for very much.
const MAX_RESOLVED: usize = 16 << 20;
/// Longest chain of interpolations that lead to interpolations.
pub(crate) const MAX_CHAIN: usize = 64;

/// An interpolation that leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}\n    full_key: {full_key}\n    object_type=dict", prefix(.origin))]
pub struct InterpolationError {
    /// Where the value with the interpolation came from.
    pub origin: Origin,
    /// Its path.
    pub full_key: String,
    /// What is wrong.
    pub problem: String,
}

fn prefix(origin: &Origin) -> String {
    match origin {
        Origin::Default => String::new(),
        other => format!("{other}: "),
    }
}

/// Refuses a value that holds an interpolation which doesn't parse.
pub(crate) fn check(value: &Value) -> Result<(), String> {
    match value {
        Value::Interpolation(text) => grammar::parse(text).map(|_| ()),
        Value::List(items) => items.iter().try_for_each(|item| check(&item.value)),
        Value::Map(map) => map.values().try_for_each(|child| check(&child.value)),
        _ => Ok(()),
    }
}

/// Where interpolations are looked up.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    /// The configuration itself.
    pub(crate) root: &'a Node,
    /// The tree that has Hydra's own settings, for `${hydra:job.name}`; they may not be below `root`.
    pub(crate) hydra: Option<&'a Node>,
    /// Environment variables and time.
    pub(crate) surroundings: &'a Surroundings,
    /// How many `${hydra:…}` led here.
    pub(crate) depth: usize,
    /// What to do about an interpolation that leads to `???`.
    pub(crate) on_missing: OnMissing,
}

/// What to do about an interpolation that leads to a missing value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnMissing {
    /// It is an error: the value is needed.
    Refuse,
    /// It is missing too: the configuration is only shown.
    Keep,
}

/// The whole tree, resolved. Missing values (`???`) stay what they are.
pub(crate) fn resolve(scope: Scope<'_>) -> Result<Node, InterpolationError> {
    resolve_at(scope, scope.root, &[])
}

/// `node`, which is at `path` below the root, resolved.
pub(crate) fn resolve_at(scope: Scope<'_>, node: &Node, path: &[Key]) -> Result<Node, InterpolationError> {
    let mut resolver =
        Resolver { scope, path: path.to_vec(), active: Vec::new(), spent: 0, at: (node.origin.clone(), String::new()) };
    let resolved = resolver.node(node);
    resolved.map_err(|problem| {
        let (origin, full_key) = resolver.at;
        InterpolationError { origin, full_key, problem }
    })
}

/// Problems are plain text inside; the place is added at the end.
pub(crate) type Outcome<T> = Result<T, String>;

pub(crate) struct Resolver<'a> {
    pub(crate) scope: Scope<'a>,
    /// Path of the value that is being resolved.
    path: Vec<Key>,
    /// Paths of the interpolations that are being followed.
    active: Vec<Vec<Key>>,
    spent: usize,
    /// The interpolation that a problem is about.
    at: (Origin, String),
}

impl Resolver<'_> {
    fn node(&mut self, node: &Node) -> Outcome<Node> {
        self.spend(1)?;
        let value = match &node.value {
            Value::Interpolation(text) => {
                return Ok(Node::new(self.interpolated(text, &node.origin)?, node.origin.clone()));
            }
            Value::List(items) => {
                let mut resolved = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    resolved.push(self.below(Key::Int(index as i128), item)?);
                }
                Value::List(resolved)
            }
            Value::Map(map) => {
                let mut resolved = Map::with_capacity(map.len());
                for (key, child) in map {
                    resolved.insert(key.clone(), self.below(key.clone(), child)?);
                }
                Value::Map(resolved)
            }
            other => {
                if let Value::Text(text) = other {
                    self.spend(text.len())?;
                }
                other.clone()
            }
        };
        Ok(Node::new(value, node.origin.clone()))
    }

    fn below(&mut self, key: Key, node: &Node) -> Outcome<Node> {
        self.path.push(key);
        let resolved = self.node(node);
        self.path.pop();
        resolved
    }

    /// The value of a text with interpolations that stands at the current path.
    fn interpolated(&mut self, text: &str, origin: &Origin) -> Outcome<Value> {
        if self.active.contains(&self.path) || self.active.len() >= MAX_CHAIN {
            return Err("Recursive interpolation detected".to_owned());
        }
        self.at = (origin.clone(), full_key(&self.path));
        self.active.push(self.path.clone());
        let parts = grammar::parse(text)?;
        let value = self.parts(&parts)?;
        self.active.pop();
        Ok(value)
    }

    fn parts(&mut self, parts: &[Part]) -> Outcome<Value> {
        if let [Part::Interpolation(lone)] = parts {
            return self.interpolation(lone);
        }
        self.text(parts)
    }

    /// The parts as one text; missing as a whole if one of them is.
    fn text(&mut self, parts: &[Part]) -> Outcome<Value> {
        let mut result = String::new();
        for part in parts {
            match part {
                Part::Text(text) => result.push_str(text),
                Part::Interpolation(inner) => match self.interpolation(inner)? {
                    Value::Missing => return Ok(Value::Missing),
                    value => result.push_str(&value.to_string()),
                },
            }
            self.spend(result.len())?;
        }
        Ok(Value::Text(result))
    }

    fn interpolation(&mut self, interpolation: &Interpolation) -> Outcome<Value> {
        match interpolation {
            Interpolation::Node { up, steps } => {
                let steps = self.names(steps)?;
                let path = format!("{}{}", ".".repeat(*up), steps.join("."));
                match self.lookup(*up, &steps)? {
                    Some(Value::Missing) if self.scope.on_missing == OnMissing::Refuse => {
                        Err(format!("Interpolation to a missing value: '{path}' is ???; give it a value"))
                    }
                    Some(value) => Ok(value),
                    None => Err(format!("Interpolation key '{path}' not found")),
                }
            }
            Interpolation::Resolver { name, arguments } => {
                let name = self.names(name)?.join(".");
                let arguments =
                    arguments.iter().map(|argument| self.argument(argument)).collect::<Outcome<Vec<_>>>()?;
                resolvers::call(self, &name, arguments)
            }
        }
    }

    fn names(&mut self, names: &[Name]) -> Outcome<Vec<String>> {
        let name = |name: &Name| match name {
            Name::Plain(name) => Ok(name.clone()),
            Name::Nested(inner) => match self.interpolation(inner)? {
                Value::Text(name) => Ok(name),
                other => Err(format!("an interpolation that names a key must be text, but it is `{other}`")),
            },
        };
        names.iter().map(name).collect()
    }

    pub(crate) fn argument(&mut self, argument: &Argument) -> Outcome<Value> {
        Ok(match argument {
            Argument::Scalar(value) => value.clone(),
            Argument::Parts(parts) => self.parts(parts)?,
            Argument::Quoted(parts) => self.text(parts)?,
            Argument::List(items) => {
                let item = |item| Ok(Node::new(self.argument(item)?, Origin::Default));
                Value::List(items.iter().map(item).collect::<Outcome<_>>()?)
            }
            Argument::Map(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    let key = Key::from_value(self.argument(key)?).ok_or("a key must be text or a number")?;
                    map.insert(key, Node::new(self.argument(value)?, Origin::Default));
                }
                Value::Map(map)
            }
        })
    }

    /// The resolved value that a path leads to: `up` levels above the current value (0: from the root), then `steps` down.
    pub(crate) fn lookup(&mut self, up: usize, steps: &[String]) -> Outcome<Option<Value>> {
        let mut path: Vec<Key> = match up {
            0 => Vec::new(),
            up => match self.path.len().checked_sub(up) {
                Some(depth) => self.path[..depth].to_vec(),
                None => return Ok(None),
            },
        };
        let root = self.scope.root;
        let Some(mut node) = path.iter().try_fold(root, |node, key| tree::child(node, &key.to_string())).cloned()
        else {
            return Ok(None);
        };
        for step in steps {
            if let Value::Interpolation(_) = node.value {
                node = self.resolved_at(&path, &node)?;
            }
            let Some(child) = tree::child(&node, step) else { return Ok(None) };
            path.push(match node.value {
                Value::List(_) => Key::Int(step.parse().unwrap_or_default()),
                _ => Key::Text(step.clone()),
            });
            node = child.clone();
        }
        self.resolved_at(&path, &node).map(|node| Some(node.value))
    }

    /// Resolves `node` as what stands at `path`.
    fn resolved_at(&mut self, path: &[Key], node: &Node) -> Outcome<Node> {
        let before = std::mem::replace(&mut self.path, path.to_vec());
        let (at, active) = (self.at.clone(), self.active.len());
        let resolved = self.node(node)?;
        self.path = before;
        self.at = at;
        self.active.truncate(active);
        Ok(resolved)
    }

    fn spend(&mut self, amount: usize) -> Outcome<()> {
        self.spent = self.spent.saturating_add(amount);
        if self.spent > MAX_RESOLVED {
            return Err(format!("the interpolations stand for more than {MAX_RESOLVED} bytes"));
        }
        Ok(())
    }
}

fn full_key(path: &[Key]) -> String {
    let mut result = String::new();
    for key in path {
        let step = match key {
            Key::Int(index) => format!("[{index}]"),
            key if result.is_empty() => key.to_string(),
            key => format!(".{key}"),
        };
        result.push_str(&step);
    }
    result
}
