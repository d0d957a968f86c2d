//! A configuration as the programs use it: load, override, read into a struct.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! #[derive(serde::Deserialize, serde::Serialize, Default)]
//! #[serde(deny_unknown_fields, default)]
//! struct Train { steps: u32, lr: f64 }
//!
//! let mut config = agl_config::Config::from_defaults(&Train { steps: 30, lr: 3e-4 })?;
//! config.apply_overrides(&["lr=1e-3"])?;
//! let train: Train = config.deserialize()?;
//! assert_eq!((train.steps, train.lr), (30, 1e-3));
//!
//! let error = config.apply_overrides(&["stepz=1"]).unwrap_err();
//! assert!(error.to_string().contains("did you mean `steps`?"));
//! # Ok(())
//! # }
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::defaults::ComposeError;
use crate::interpolation::{self, InterpolationError, OnMissing, Scope};
use crate::override_grammar::{Action, Override, OverrideSyntaxError, OverrideValue};
use crate::secret;
use crate::suggest;
use crate::surroundings::Surroundings;
use crate::tree::{self, Keys, UpdateError};
use crate::typed::{self, ValueError};
use crate::value::{Node, Origin, Value};
use crate::yaml::{self, YamlError};

/// Largest configuration file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// A tree of settings, each with its origin, and the rule for keys that aren't in it.
#[derive(Debug, Clone)]
pub struct Config {
    root: Node,
    keys: Keys,
}

/// A configuration that can't be read or put together.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("cannot read the configuration `{path}`: {source}")]
    Read {
        /// Path as given.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It isn't YAML, or not such as a configuration is.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// A list, where keys and values are needed.
    #[error("{path}: a configuration is a map of keys and values, but this is a list")]
    NotAMap {
        /// Path as given.
        path: PathBuf,
    },
    /// The file has a key that the defaults don't have.
    #[error("{at}: unknown key `{key}`; {hint}")]
    UnknownKey {
        /// Where the key is.
        at: Origin,
        /// Its path.
        key: String,
        /// The nearest known one.
        hint: String,
    },
    /// The file has a list where the defaults have a map, or the other way round.
    #[error("{at}: {source}")]
    Merge {
        /// Where the value is.
        at: Origin,
        /// What and why.
        source: Box<UpdateError>,
    },
    /// The defaults of a program can't be written down as a map.
    #[error("the defaults are not a map of plain values: {0}")]
    Defaults(String),
    /// An override doesn't parse.
    #[error(transparent)]
    Syntax(#[from] OverrideSyntaxError),
    /// An override can't be applied.
    #[error(transparent)]
    Override(#[from] OverrideError),
    /// The files can't be put together.
    #[error(transparent)]
    Compose(#[from] ComposeError),
    /// `${…}` that leads nowhere.
    #[error(transparent)]
    Interpolation(#[from] InterpolationError),
    /// A value of the wrong type.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// A section that other settings need.
    #[error("`{section}` is missing; {because} needs it")]
    MissingSection {
        /// Its key.
        section: &'static str,
        /// The setting that needs it.
        because: String,
    },
    /// The key file can't be read.
    #[error("cannot read the key from `{path}`: {source}")]
    KeyFile {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// An override that doesn't fit the configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OverrideError {
    /// `prot=1`
    #[error("Could not override '{key}'.\n{hint}\nTo append to your config use +{text}\n{source}")]
    UnknownKey {
        /// The key of the override.
        key: String,
        /// Nearest known key.
        hint: String,
        /// The override.
        text: String,
        /// Which key exactly.
        source: Box<UpdateError>,
    },
    /// `+port=1`
    #[error(
        "Could not append to config. An item is already at '{key}'.\nEither remove + prefix: '{plain}'\n\
         Or add a second + to add or override '{key}': '+{text}'"
    )]
    AlreadyThere {
        /// The key.
        key: String,
        /// The override without its `+`.
        plain: String,
        /// The override.
        text: String,
    },
    /// `~nokey`
    #[error("Could not delete from config. '{key}' does not exist.{hint}")]
    NothingToDelete {
        /// The key.
        key: String,
        /// Nearest known key, or why there is nothing.
        hint: String,
    },
    /// `~port=1`
    #[error("Could not delete from config. The value of '{key}' is {found} and not {wanted}.")]
    OtherValue {
        /// The key.
        key: String,
        /// What it is.
        found: String,
        /// What the override says.
        wanted: String,
    },
    /// `port=1,2` without `--multirun`.
    #[error(
        "Ambiguous value for argument '{text}'\n1. To use it as a list, use key=[value1,value2]\n\
         2. To use it as string, quote the value: key=\\'value1,value2\\'\n\
         3. To sweep over it, add --multirun to your command line"
    )]
    Ambiguous {
        /// The override.
        text: String,
    },
    /// `port=range(1,5)` without `--multirun`.
    #[error("Sweep parameters '{text}' requires --multirun")]
    Sweep {
        /// The override.
        text: String,
    },
    /// `proxy@default_proxy=big`, but there is no such group.
    #[error("Override {text} looks like a config group override, but config group '{group}' does not exist.")]
    NoSuchGroup {
        /// The override.
        text: String,
        /// The group.
        group: String,
    },
    /// Anything else that can't be merged.
    #[error("Error merging override {text}\n{problem}")]
    Merge {
        /// The override.
        text: String,
        /// Why.
        problem: String,
    },
}

/// Reads a YAML file. Every key is allowed: [`Config::deserialize`] finds the unknown ones.
pub fn load_file(path: impl AsRef<Path>) -> Result<Config, ConfigError> {
    Ok(Config { root: read_file(path.as_ref())?, keys: Keys::Open })
}

impl Config {
    /// Starts from a program's defaults; only their keys are allowed from here on.
    pub fn from_defaults(defaults: &impl Serialize) -> Result<Self, ConfigError> {
        let value = serde_json::to_value(defaults).map_err(|error| ConfigError::Defaults(error.to_string()))?;
        match from_json(value) {
            root @ Node { value: Value::Map(_), .. } => Ok(Self { root, keys: Keys::Closed(&[]) }),
            other => Err(ConfigError::Defaults(format!("they are {}", other.value.kind()))),
        }
    }

    pub(crate) fn from_node(root: Node, keys: Keys) -> Self {
        Self { root, keys }
    }

    /// Replaces the value at `path`, which exists.
    pub(crate) fn set(&mut self, path: &str, new: Node) {
        if let Some(node) = tree::select_mut(&mut self.root, path) {
            *node = new;
        }
    }

    /// Merges a YAML file over what is there.
    pub fn merge_file(&mut self, path: impl AsRef<Path>) -> Result<(), ConfigError> {
        let new = read_file(path.as_ref())?;
        let places = new.clone();
        tree::merge(&mut self.root, new, self.keys, "").map_err(|source| match source {
            UpdateError::UnknownKey { key, full_key, known } => ConfigError::UnknownKey {
                at: origin_at(&places, &full_key),
                hint: suggest::known(&key, known.iter().map(String::as_str)),
                key: full_key,
            },
            UpdateError::ListAndMap { full_key } | UpdateError::NoSuchItem { full_key, .. } => ConfigError::Merge {
                at: origin_at(&places, &full_key),
                source: Box::new(UpdateError::ListAndMap { full_key }),
            },
        })
    }

    /// Applies overrides such as `lr=1e-3`, `+a.b=[1,2]` or `~c`, from left to right; the last one wins.
    pub fn apply_overrides<S: AsRef<str>>(&mut self, overrides: &[S]) -> Result<(), ConfigError> {
        let overrides: Vec<Override> =
            overrides.iter().map(|text| Override::parse(text.as_ref())).collect::<Result<_, _>>()?;
        overrides.iter().try_for_each(|change| self.apply(change))
    }

    /// Applies one override.
    pub(crate) fn apply(&mut self, change: &Override) -> Result<(), ConfigError> {
        let text = change.text.clone();
        if change.package.is_some() {
            return Err(OverrideError::NoSuchGroup { text, group: change.key.clone() }.into());
        }
        let merge_error = |problem: String| OverrideError::Merge { text: text.clone(), problem };
        let new = match &change.value {
            None => None,
            Some(OverrideValue::One(element)) => {
                let value = element.to_value().map_err(merge_error)?;
                interpolation::check(&value).map_err(merge_error)?;
                Some(Node::new(value, Origin::CommandLine))
            }
            Some(OverrideValue::Sweep(crate::sweep::Sweep::SimpleChoice(_))) => {
                return Err(OverrideError::Ambiguous { text }.into());
            }
            Some(OverrideValue::Sweep(_)) => return Err(OverrideError::Sweep { text }.into()),
        };
        match (change.action, new) {
            (Action::Delete, wanted) => self.delete(&change.key, wanted.as_ref())?,
            (_, None) => {} // the grammar gives every other override a value
            (Action::Change, Some(new)) => self.change(change, new)?,
            (Action::Add, Some(new)) => {
                let existing = tree::select(&self.root, &change.key);
                let free = existing.is_none_or(|node| matches!(node.value, Value::Null | Value::Missing));
                if !free && !matches!(new.value, Value::Map(_) | Value::List(_)) {
                    let plain = change.text[1..].to_owned();
                    return Err(OverrideError::AlreadyThere { key: change.key.clone(), plain, text }.into());
                }
                self.force(change, new)?;
            }
            (Action::Force, Some(new)) => self.force(change, new)?,
        }
        Ok(())
    }

    fn change(&mut self, change: &Override, new: Node) -> Result<(), OverrideError> {
        tree::update(&mut self.root, &change.key, new, self.keys).map_err(|source| match &source {
            UpdateError::UnknownKey { key, known, .. } => OverrideError::UnknownKey {
                key: change.key.clone(),
                hint: suggest::known(key, known.iter().map(String::as_str)),
                text: change.text.clone(),
                source: Box::new(source),
            },
            _ => OverrideError::Merge { text: change.text.clone(), problem: source.to_string() },
        })
    }

    fn force(&mut self, change: &Override, new: Node) -> Result<(), OverrideError> {
        tree::update(&mut self.root, &change.key, new, Keys::Open)
            .map_err(|error| OverrideError::Merge { text: change.text.clone(), problem: error.to_string() })
    }

    fn delete(&mut self, key: &str, wanted: Option<&Node>) -> Result<(), OverrideError> {
        let nothing = |hint: String| OverrideError::NothingToDelete { key: key.to_owned(), hint };
        let found = match tree::select(&self.root, key) {
            // As in Hydra, a key without a value can't be deleted.
            Some(Node { value: value @ (Value::Null | Value::Missing), .. }) => {
                return Err(nothing(format!(" Its value is {}: nothing to delete.", value.kind())));
            }
            Some(node) => &node.value,
            None => {
                return Err(nothing(
                    self.nearest(key).map(|near| format!(" Did you mean '{near}'?")).unwrap_or_default(),
                ));
            }
        };
        if let Some(wanted) = wanted
            && !matches!(wanted.value, Value::Null)
            && !wanted.value.equals(found)
        {
            let (found, wanted) = (secret::shown(key, found), secret::shown(key, &wanted.value));
            return Err(OverrideError::OtherValue { key: key.to_owned(), found, wanted });
        }
        tree::remove(&mut self.root, key);
        Ok(())
    }

    /// The key beside `path` that looks most like it.
    fn nearest(&self, path: &str) -> Option<String> {
        let (parent, last) = path.rsplit_once('.').unwrap_or(("", path));
        let map = tree::select(&self.root, parent)?.as_map()?;
        let names: Vec<String> = map.keys().map(ToString::to_string).collect();
        let near = suggest::nearest(last, names.iter().map(String::as_str))?;
        Some(if parent.is_empty() { near.to_owned() } else { format!("{parent}.{near}") })
    }

    /// Reads the whole into a struct. Derive it with `deny_unknown_fields`, and unknown keys are refused with the nearest known one.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        self.deserialize_in(&Surroundings::of_process())
    }

    /// As [`Config::deserialize`], with these environment variables.
    pub fn deserialize_in<T: DeserializeOwned>(&self, surroundings: &Surroundings) -> Result<T, ConfigError> {
        Ok(typed::from_node(&self.resolve_in(surroundings)?)?)
    }

    /// The tree with every `${…}` replaced by what it stands for; environment variables are those of the process.
    pub fn resolve(&self) -> Result<Node, InterpolationError> {
        self.resolve_in(&Surroundings::of_process())
    }

    /// The tree with every `${…}` replaced by what it stands for.
    pub fn resolve_in(&self, surroundings: &Surroundings) -> Result<Node, InterpolationError> {
        interpolation::resolve(Scope {
            root: &self.root,
            hydra: None,
            surroundings,
            depth: 0,
            on_missing: OnMissing::Refuse,
        })
    }

    /// The tree as it was put together, interpolations unresolved.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// The value at `path`, such as `default_proxy.train` or `list.0`.
    pub fn select(&self, path: &str) -> Option<&Node> {
        tree::select(&self.root, path)
    }
}

fn read_file(path: &Path) -> Result<Node, ConfigError> {
    let root = yaml::parse(&read_text(path)?, &yaml::Source::File(Arc::from(path)))?;
    match root.value {
        Value::Map(_) => Ok(root),
        _ => Err(ConfigError::NotAMap { path: path.to_owned() }),
    }
}

pub(crate) fn read_text(path: &Path) -> Result<String, ConfigError> {
    let error = |source| ConfigError::Read { path: path.to_owned(), source };
    let size = std::fs::metadata(path).map_err(error)?.len();
    if size > MAX_FILE_BYTES {
        let problem = format!("it has {size} bytes; at most {MAX_FILE_BYTES} are read");
        return Err(error(std::io::Error::other(problem)));
    }
    std::fs::read_to_string(path).map_err(error)
}

/// The place of the entry at `path`; of the nearest one above it, if it has none of its own.
fn origin_at(root: &Node, path: &str) -> Origin {
    tree::select(root, path).unwrap_or(root).origin.clone()
}

fn from_json(value: serde_json::Value) -> Node {
    let value = match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(flag) => Value::Bool(flag),
        serde_json::Value::Number(number) => match number.as_i128() {
            Some(number) => Value::Int(number),
            None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::Text(text),
        serde_json::Value::Array(items) => Value::List(items.into_iter().map(from_json).collect()),
        serde_json::Value::Object(map) => {
            Value::Map(map.into_iter().map(|(key, value)| (crate::value::Key::Text(key), from_json(value))).collect())
        }
    };
    Node::new(value, Origin::Default)
}
