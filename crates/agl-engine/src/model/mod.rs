//! A decoder-only transformer of the Llama family.
//!
//! There is one forward path. Serving calls [`Model::forward`], which continues key/value caches; the [`Learner`] calls the
//! same code with a tape that keeps what the backward pass needs. So the log-probability reported for a sampled token and the
//! one computed in training differ only by the rounding of sums of another length.
//!
//! [`Learner`]: crate::Learner

mod backward;
mod config;
mod forward;
mod kv_cache;
mod weights;

pub(crate) use backward::Gradients;
pub use config::{ConfigError, LlamaConfig, RopeScaling};
pub use forward::{ForwardError, Logits, LogitsFor, Segment};
pub(crate) use forward::{Keep, Pass};
pub use kv_cache::KvCache;
pub use weights::{Layout, Model, TensorSpec, Weights};
