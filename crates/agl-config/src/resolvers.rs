//! The functions that `${name:arguments}` can call: OmegaConf's `oc.*`, and Hydra's `hydra:` and `now:`.
//!
//! Behaviour: <https://omegaconf.readthedocs.io/en/2.3_branch/custom_resolvers.html#built-in-resolvers>.

use std::collections::VecDeque;

use crate::interpolation::{self, MAX_CHAIN, Outcome, Resolver, Scope};
use crate::interpolation_grammar;
use crate::suggest;
use crate::tree;
use crate::value::{Key, Node, Origin, Value};
use crate::yaml;

const NAMES: [&str; 9] = [
    "oc.env",
    "oc.decode",
    "oc.create",
    "oc.select",
    "oc.deprecated",
    "oc.dict.keys",
    "oc.dict.values",
    "hydra",
    "now",
];

/// Calls the resolver `name`.
pub(crate) fn call(resolver: &mut Resolver<'_>, name: &str, arguments: Vec<Value>) -> Outcome<Value> {
    let mut arguments = Arguments { name, given: arguments.into() };
    match name {
        "oc.env" => env(resolver, arguments),
        "oc.decode" => decode(resolver, arguments),
        "oc.create" => create(arguments),
        "oc.select" => {
            let (path, default) = (arguments.text("key")?, arguments.given.pop_front());
            arguments.end()?;
            Ok(select(resolver, &path)?.or(default).unwrap_or(Value::Null))
        }
        "oc.deprecated" => {
            let path = arguments.text("key")?;
            select(resolver, &path)?.ok_or_else(|| format!("In oc.deprecated resolver: key not found: '{path}'"))
        }
        "oc.dict.keys" => {
            let map = dict(resolver, arguments)?;
            let keys = map.keys().map(|key| Node::new(Value::from_text(key.to_string()), Origin::Default));
            Ok(Value::List(keys.collect()))
        }
        "oc.dict.values" => Ok(Value::List(dict(resolver, arguments)?.into_values().collect())),
        "hydra" => {
            let path = arguments.text("key")?;
            arguments.end()?;
            hydra_setting(resolver.scope, &format!("hydra.{path}"))
        }
        "now" => {
            let pattern = arguments.text("pattern")?;
            Ok(Value::Text(resolver.scope.surroundings.format_now(&pattern)))
        }
        name => Err(format!("Unsupported interpolation type {name}; {}", suggest::known(name, NAMES))),
    }
}

struct Arguments<'a> {
    name: &'a str,
    given: VecDeque<Value>,
}

impl Arguments<'_> {
    fn any(&mut self, what: &str) -> Outcome<Value> {
        self.given.pop_front().ok_or_else(|| format!("{}: argument '{what}' is missing", self.name))
    }

    fn text(&mut self, what: &str) -> Outcome<String> {
        match self.any(what)? {
            Value::Text(text) => Ok(text),
            Value::Null | Value::List(_) | Value::Map(_) => {
                Err(format!("{}: argument '{what}' must be text", self.name))
            }
            other => Ok(other.to_string()),
        }
    }

    fn end(&self) -> Outcome<()> {
        match self.given.len() {
            0 => Ok(()),
            more => Err(format!("{}: {more} argument(s) too many; a text with a comma needs quotes", self.name)),
        }
    }
}

fn env(resolver: &Resolver<'_>, mut arguments: Arguments<'_>) -> Outcome<Value> {
    let (name, default) = (arguments.text("key")?, arguments.given.pop_front());
    arguments.end()?;
    match (resolver.scope.surroundings.variable(&name), default) {
        (Some(value), _) => Ok(Value::Text(value.to_owned())),
        (None, Some(Value::Null)) => Ok(Value::Null),
        (None, Some(default)) => Ok(Value::Text(default.to_string())),
        (None, None) => Err(format!(
            "Environment variable '{name}' not found; set it, or give a default: ${{oc.env:{name},default}}"
        )),
    }
}

fn decode(resolver: &mut Resolver<'_>, mut arguments: Arguments<'_>) -> Outcome<Value> {
    let text = arguments.any("expr")?;
    arguments.end()?;
    match text {
        Value::Null => Ok(Value::Null),
        Value::Text(text) => {
            let argument =
                interpolation_grammar::parse_value(&text).map_err(|problem| format!("oc.decode: {problem}"))?;
            resolver.argument(&argument)
        }
        other => Err(format!("`oc.decode` can only take text or null as input, but `{other}` is {}", other.kind())),
    }
}

fn create(mut arguments: Arguments<'_>) -> Outcome<Value> {
    let value = arguments.any("obj")?;
    arguments.end()?;
    match value {
        Value::Text(text) => {
            yaml::parse(&text, &yaml::Source::BuiltIn).map(|node| node.value).map_err(|error| error.to_string())
        }
        Value::Null | Value::List(_) | Value::Map(_) => Ok(value),
        other => Err(format!("oc.create: {} is no list or map", other.kind())),
    }
}

/// A setting of Hydra's own, resolved where it stands; null if it doesn't exist or has no value yet, as in Hydra.
fn hydra_setting(scope: Scope<'_>, path: &str) -> Outcome<Value> {
    let root = scope.hydra.ok_or("there are no Hydra settings here")?;
    if scope.depth >= MAX_CHAIN {
        return Err("Recursive interpolation detected".to_owned());
    }
    let Some(node) = tree::select(root, path) else { return Ok(Value::Null) };
    let keys: Vec<Key> = tree::steps(path).map(Key::from).collect();
    let scope = Scope { root, depth: scope.depth + 1, ..scope };
    let resolved = interpolation::resolve_at(scope, node, &keys).map_err(|error| error.problem)?;
    Ok(match resolved.value {
        Value::Missing => Value::Null,
        value => value,
    })
}

/// `a.b` from the root, `.a` beside the value.
fn select(resolver: &mut Resolver<'_>, path: &str) -> Outcome<Option<Value>> {
    let down = path.trim_start_matches('.');
    let steps: Vec<String> = tree::steps(down).map(ToOwned::to_owned).collect();
    let found = resolver.lookup(path.len() - down.len(), &steps)?;
    Ok(found.filter(|value| !matches!(value, Value::Missing)))
}

fn dict(resolver: &mut Resolver<'_>, mut arguments: Arguments<'_>) -> Outcome<crate::value::Map> {
    let path = arguments.text("key")?;
    arguments.end()?;
    match select(resolver, &path)? {
        Some(Value::Map(map)) => Ok(map),
        Some(other) => Err(format!("'{path}' is {}, not a map", other.kind())),
        None => Err(format!("Interpolation key '{path}' not found")),
    }
}
