//! The embedded policy as the training loop sees it: a learner and a server that share weights.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use agl_trainer::policy::{LossGradient, Policy, Scores, Sequence, StepReport};

use crate::chat::{ChatTemplate, TemplateError};
use crate::checkpoint::{LoadError, SaveError, load_model, save_model};
use crate::learner::Learner;
use crate::optimizer::AdamWConfig;
use crate::sampler::LogProbs;
use crate::scheduler::{SchedulerLimits, SubmitError};
use crate::score::ScoreError;
use crate::serve::{PolicyServer, ServeError, ServeOptions};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Files of a model folder that training does not change, and that a checkpoint needs all the same.
const COMPANIONS: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "generation_config.json",
];
const OPTIMIZER: &str = "optimizer.safetensors";

/// How the policy is served while it trains.
#[derive(Clone, Debug)]
pub struct PolicyOptions {
    /// The name agents see.
    pub model_name: String,
    /// Sequences generated at the same time.
    pub max_num_seqs: usize,
    /// Tokens of prompt and response together; the model's own limit when absent.
    pub max_model_len: Option<usize>,
    /// Seed of sampling for requests without one.
    pub seed: u64,
}

/// What can go wrong inside the embedded policy.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The model folder is incomplete or damaged.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Its tokenizer is.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Its chat template is.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The server can't start.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Rows can't be scored.
    #[error(transparent)]
    Score(#[from] ScoreError),
    /// The scheduler has ended.
    #[error(transparent)]
    Swap(#[from] SubmitError),
    /// A checkpoint can't be written.
    #[error("checkpoint: {0}")]
    Save(#[from] SaveError),
    /// A file of the model folder can't be copied into a checkpoint.
    #[error("checkpoint: cannot copy {path}: {source}")]
    Copy {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// A model folder, served and trained in this process.
#[derive(Debug)]
pub struct EmbeddedPolicy {
    folder: PathBuf,
    learner: Learner,
    server: PolicyServer,
}

impl EmbeddedPolicy {
    /// Loads a model folder and serves it on a free port of the loopback interface.
    pub async fn open(folder: &Path, options: PolicyOptions) -> Result<Self, PolicyError> {
        let model = load_model(folder)?;
        let tokenizer = Tokenizer::load(folder)?;
        let template = ChatTemplate::load(folder)?;
        let serve = ServeOptions {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            model_name: options.model_name,
            max_model_len: options.max_model_len,
            seed: options.seed,
            // Ratios of the loss need the distribution that was sampled from.
            log_probs: LogProbs::Processed,
            limits: SchedulerLimits { max_num_seqs: options.max_num_seqs, ..SchedulerLimits::default() },
        };
        let server = PolicyServer::start(model.clone(), tokenizer, template, serve).await?;
        // GRPO's gradients are noisy and its steps few: weight decay would only pull towards zero.
        let optimizer = AdamWConfig { weight_decay: 0.0, ..AdamWConfig::default() };
        Ok(Self { folder: folder.to_owned(), learner: Learner::new(model, optimizer), server })
    }

    /// Base URL of its OpenAI API.
    pub fn endpoint(&self) -> String {
        format!("http://{}/v1", self.server.address())
    }
}

impl Policy for EmbeddedPolicy {
    type Error = PolicyError;

    fn score(&mut self, sequences: &[Sequence], temperature: f32) -> Result<Vec<Scores>, PolicyError> {
        Ok(self.learner.score(sequences, temperature)?)
    }

    fn accumulate(
        &mut self,
        sequences: &[Sequence],
        temperature: f32,
        loss: &mut dyn FnMut(&[Scores]) -> LossGradient,
    ) -> Result<f32, PolicyError> {
        let d_loss = |scores: &[Scores]| {
            let LossGradient { loss, d_log_probs } = loss(scores);
            (loss, d_log_probs)
        };
        Ok(self.learner.accumulate(sequences, temperature, d_loss)?)
    }

    fn step(&mut self, learning_rate: f32, max_grad_norm: f32) -> Result<StepReport, PolicyError> {
        let report = self.learner.step(learning_rate, max_grad_norm);
        Ok(StepReport { grad_norm: report.grad_norm, applied: report.finite })
    }

    fn publish(&mut self, version: i64) -> Result<(), PolicyError> {
        Ok(self.server.swap(self.learner.model(), version)?)
    }

    fn save(&mut self, directory: &Path) -> Result<(), PolicyError> {
        save_model(&self.learner.model(), directory)?;
        for name in COMPANIONS {
            let (from, to) = (self.folder.join(name), directory.join(name));
            if from.exists() && from != to {
                fs::copy(&from, &to).map_err(|source| PolicyError::Copy { path: from, source })?;
            }
        }
        self.learner.save_optimizer(&directory.join(OPTIMIZER))?;
        Ok(())
    }

    fn load(&mut self, directory: &Path) -> Result<(), PolicyError> {
        let config = self.learner.optimizer_config();
        self.learner = Learner::new(load_model(directory)?, config);
        self.learner.load_optimizer(&directory.join(OPTIMIZER))?;
        Ok(())
    }
}
