//! The policy under training, wherever its weights live: what the training loop asks of an engine.

use std::ops::Range;
use std::path::Path;

/// Token ids, and which of them are scored given all that precede them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Prompt and response.
    pub tokens: Vec<u32>,
    /// Places in `tokens` that are scored; starts at 1 or later, since the first token has nothing before it.
    pub scored: Range<usize>,
}

/// What the policy makes of one sequence: one number per scored token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// log p(token | what precedes) under softmax(logits / temperature).
    pub log_probs: Vec<f32>,
    /// Entropy of the distribution that the token was drawn from, in nats.
    pub entropy: Vec<f32>,
}

/// A loss and its gradient with respect to each log-probability.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossGradient {
    /// The loss of the micro-batch.
    pub loss: f32,
    /// d loss / d log-probability, shaped as the scores.
    pub d_log_probs: Vec<Vec<f32>>,
}

/// What one optimiser step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Euclidean norm of the whole gradient before clipping.
    pub grad_norm: f32,
    /// `false`: the gradient held a NaN or an infinity, and the weights were left as they were.
    pub applied: bool,
}

/// The policy under training.
///
/// All methods may take seconds: the loop calls them off the async threads.
pub trait Policy: Send {
    /// What can go wrong inside the engine.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Log-probabilities of what was sampled under the present weights, without changing anything.
    fn score(&mut self, sequences: &[Sequence], temperature: f32) -> Result<Vec<Scores>, Self::Error>;

    /// Forward and backward of one micro-batch; gradients add up until [`Policy::step`].
    fn accumulate(
        &mut self,
        sequences: &[Sequence],
        temperature: f32,
        loss: &mut dyn FnMut(&[Scores]) -> LossGradient,
    ) -> Result<f32, Self::Error>;

    /// Clips the gathered gradient to `max_grad_norm`, updates the weights, and clears the gradient.
    fn step(&mut self, learning_rate: f32, max_grad_norm: f32) -> Result<StepReport, Self::Error>;

    /// Serves the present weights as policy version `version` from now on. Called with no call in flight.
    fn publish(&mut self, version: i64) -> Result<(), Self::Error>;

    /// Writes a model folder and all that is needed to go on training into `directory`.
    fn save(&mut self, directory: &Path) -> Result<(), Self::Error>;

    /// Goes on from what [`Policy::save`] wrote.
    fn load(&mut self, directory: &Path) -> Result<(), Self::Error>;
}
