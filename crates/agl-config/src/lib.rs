//! Hydra and OmegaConf compatible configuration: YAML, override grammar, interpolation.

mod args;
pub mod cli;
mod compose;
mod config;
mod default_entry;
mod defaults;
mod dump;
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
