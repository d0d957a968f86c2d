//! Trajectories to rows, advantages, losses and metrics; the rollout manager and the training loop.

pub mod advantage;
pub mod correction;
pub mod kl;
pub mod loss;
pub mod metrics;
pub mod padding;
pub mod precision;
pub mod rollout;
pub mod rows;
pub mod schedule;
pub mod settings;

pub mod dataset;
pub mod manager;
pub mod policy;
pub mod run;

pub use dataset::{Dataset, DatasetError, RequiredField};
pub use policy::Policy;
pub use run::{Outcome, Run, RunError, RunEvent, RunFolder, RunState};
pub use settings::TrainerSettings;
