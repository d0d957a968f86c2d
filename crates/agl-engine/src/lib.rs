//! The embedded policy: a model folder served over OpenAI's API and trained in the same process, without a GPU.
//!
//! In reading order:
//! - [`model`]: a transformer of the Llama family, its weights and its one forward path, on the crate's own `kernels`;
//!   [`checkpoint`] reads and writes its folder, [`import`] makes one from a GGUF file;
//! - [`score`], [`learner`] and [`optimizer`]: log-probabilities of given tokens, gradients of a loss on them, AdamW;
//! - [`tokenizer`], [`chat`] and [`sampler`]: from messages to token ids and back; [`scheduler`] batches the sequences in
//!   flight, [`serve`] is the server;
//! - [`policy`] joins both sides into what the training loop drives; [`pretrain`] makes the example's policy.

pub mod chat;
pub mod checkpoint;
pub mod import;
mod kernels;
pub mod learner;
pub mod model;
pub mod optimizer;
pub mod policy;
mod prefix_cache;
pub mod pretrain;
pub mod sampler;
pub mod scheduler;
pub mod score;
pub mod serve;
pub mod tokenizer;

pub use agl_trainer::policy::{Scores, Sequence};
pub use checkpoint::{load_model, save_model};
pub use import::import_gguf;
pub use kernels::softmax::{entropy, log_softmax};
pub use learner::{Learner, StepReport};
pub use model::{KvCache, LlamaConfig, Logits, LogitsFor, Model, Segment, Weights};
pub use optimizer::AdamWConfig;
