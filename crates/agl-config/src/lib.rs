//! Hydra and OmegaConf compatible configuration: YAML, override grammar, interpolation.
//!
//! Two kinds of users. `agl-server` and `agl-controller` take the command line of the programs they replace:
//! [`cli::command`] turns its words into settings ([`ServerConfig`], [`ControllerConfig`]), a text to print, or a refusal
//! with an exit code. `agl train --config run.yaml key=value` loads a file and applies the same overrides to a struct of
//! its own: [`load_file`], [`Config::apply_overrides`], [`Config::deserialize`].
//!
//! Everything is a pure function over the words, the environment ([`Surroundings`]) and the files that they name.
//! Modules in reading order:
//!
//! - the tree: `value`, `yaml` (with `yaml_scalar`), `dump` back to YAML, `tree` (select, update, merge);
//! - overrides: `override_lexer`, `override_grammar`, `element`, `functions`, `sweep`;
//! - `${…}`: `interpolation_grammar`, `interpolation`, `resolvers`;
//! - composition: `program` (built-in files), `sources`, `default_entry`, `choices`, `defaults`, `compose`;
//! - the command line: `args`, `cli`, `help`, `info`;
//! - use: `config`, `typed` (serde), `settings`, `secret`, `effective` (where each value came from), `suggest`.
//!
//! Measured against hydra-core 1.3.2 and omegaconf 2.3.0; `tests/golden.rs` lists every deliberate deviation with its reason.

mod args;
mod choices;
pub mod cli;
mod compose;
mod config;
mod default_entry;
mod defaults;
mod dump;
mod effective;
mod element;
mod functions;
mod help;
mod info;
mod interpolation;
mod interpolation_grammar;
mod override_grammar;
mod override_lexer;
mod program;
mod resolvers;
pub mod secret;
mod settings;
mod sources;
mod suggest;
mod surroundings;
mod sweep;
mod tree;
mod typed;
mod value;
mod yaml;
mod yaml_scalar;

pub use config::{Config, ConfigError, MAX_FILE_BYTES, OverrideError, load_file};
pub use defaults::ComposeError;
pub use dump::to_yaml;
pub use effective::{Setting, effective};
pub use element::{Element, Quote, escaped, quoted};
pub use interpolation::InterpolationError;
pub use interpolation_grammar::MAX_INTERPOLATION_DEPTH;
pub use override_grammar::{
    Action, MAX_OVERRIDE_BYTES, MAX_OVERRIDE_DEPTH, Override, OverrideSyntaxError, OverrideValue,
};
pub use program::Program;
pub use secret::Secret;
pub use settings::{
    AglServer, ControllerConfig, DefaultProxy, K8sRunner, Limits, LocalRunner, Log, LogFormat, RunnerType, Sampling,
    ServerConfig, Upstream,
};
pub use surroundings::Surroundings;
pub use sweep::{MAX_SWEEP, Number, Range, Sweep};
pub use tree::{Keys, UpdateError};
pub use typed::ValueError;
pub use value::{Key, Map, Node, Origin, Value};
pub use yaml::{MAX_DEPTH, MAX_VALUES, YamlError};
