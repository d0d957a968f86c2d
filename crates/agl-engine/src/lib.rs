//! The embedded policy: tokenizer, transformer, sampler, OpenAI server, optimiser, checkpoints.

pub mod chat;
pub mod checkpoint;
mod kernels;
pub mod learner;
pub mod model;
pub mod optimizer;
pub mod sampler;
pub mod scheduler;
pub mod tokenizer;

pub use checkpoint::{load_model, save_model};
pub use kernels::softmax::{entropy, log_softmax};
pub use learner::{Learner, Scores, Sequence, StepReport};
pub use model::{KvCache, LlamaConfig, Logits, LogitsFor, Model, Segment, Weights};
pub use optimizer::{AdamWConfig, Schedule};
