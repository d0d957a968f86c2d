//! Hugging Face folders (`config.json` and safetensors, in one file or in shards) and the optimiser's state beside them.
//!
//! Reading takes f32, bf16 and f16 and checks that each tensor of the model is there once and has its shape; a folder that
//! holds a tensor the model has no place for is refused, since a model without it would compute something else. Writing is
//! f32 and atomic: a file has its final name only once it is whole and on disk.

mod load;
mod save;

pub use load::{LoadError, load_config, load_model};
pub use save::{SaveError, save_model};

pub(crate) use load::load_optimizer;
pub(crate) use save::{save_optimizer, write_atomically, write_atomically_with};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Names of the optimiser's two running means of a tensor, and of the number of steps in the metadata: PyTorch's.
const MEAN: &str = "exp_avg";
const MEAN_SQUARE: &str = "exp_avg_sq";
const STEPS: &str = "step";
