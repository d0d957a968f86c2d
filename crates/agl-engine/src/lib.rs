//! The embedded policy: tokenizer, transformer, sampler, OpenAI server, optimiser, checkpoints.

pub mod checkpoint;
mod kernels;
pub mod model;

pub use checkpoint::{load_model, save_model};
pub use kernels::softmax::{entropy, log_softmax};
pub use model::{KvCache, LlamaConfig, Logits, LogitsFor, Model, Segment, Weights};
