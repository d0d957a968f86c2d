//! The embedded policy: tokenizer, transformer, sampler, OpenAI server, optimiser, checkpoints.

pub mod chat;
pub mod checkpoint;
mod kernels;
pub mod learner;
pub mod model;
pub mod optimizer;
pub mod policy;
pub mod sampler;
pub mod scheduler;
pub mod score;
pub mod serve;
pub mod tokenizer;

pub use agl_trainer::policy::{Scores, Sequence};
pub use checkpoint::{load_model, save_model};
pub use kernels::softmax::{entropy, log_softmax};
pub use learner::{Learner, StepReport};
pub use model::{KvCache, LlamaConfig, Logits, LogitsFor, Model, Segment, Weights};
pub use optimizer::AdamWConfig;
