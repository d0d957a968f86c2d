//! The training side of a policy: scores of given tokens, gradients of a loss on them, optimiser steps.
//!
//! Gradients add up over as many calls of [`Learner::accumulate`] as a step needs, so memory is bounded by one micro-batch:
//! per token about `layers · (4 · hidden + 3 · intermediate) + vocabulary` floats.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub use agl_trainer::policy::{Scores, Sequence};

use crate::checkpoint::{self, LoadError, SaveError};
use crate::kernels::softmax::{chosen_log_prob_backward, entropy, log_softmax_rows};
use crate::model::{ForwardError, Gradients, Keep, KvCache, LogitsFor, Model, Pass, Segment};
use crate::optimizer::{AdamW, AdamWConfig, clip_factor, grad_norm};

/// Tokens of one pass when scoring: bounds its memory, and is far more than the threads need to be busy.
const SCORE_TOKENS: usize = 4096;

/// Why sequences could not be scored. No gradient has changed.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ScoreError {
    /// The model refuses the tokens.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The scored range is empty, starts at the first token or ends after the last.
    #[error(
        "sequence {sequence}: can't score tokens {scored:?} of {len}; the range must lie in 1..{len} and not be empty"
    )]
    Range {
        /// Index in the batch.
        sequence: usize,
        /// What was asked for.
        scored: Range<usize>,
        /// Tokens there are.
        len: usize,
    },
    /// Dividing by this temperature makes no distribution.
    #[error("the temperature is {0}; it must be above zero")]
    Temperature(f32),
    /// The loss gave gradients for other tokens than the scored ones.
    #[error("the loss gave {found:?} gradients per sequence for {expected:?} scored tokens")]
    GradientShape {
        /// Gradients of each sequence.
        found: Vec<usize>,
        /// Scored tokens of each sequence.
        expected: Vec<usize>,
    },
}

/// What [`Learner::step`] did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Norm of the gradients before clipping.
    pub grad_norm: f32,
    /// Whether they were scaled down.
    pub clipped: bool,
    /// Whether all were finite. If not, the weights and the optimiser are as before.
    pub finite: bool,
}

/// Owns the weights in training, their gradients and the optimiser's state.
#[derive(Debug)]
pub struct Learner {
    model: Model,
    gradients: Vec<f32>,
    optimizer: AdamW,
}

impl Learner {
    /// Starts from `model` with a fresh optimiser.
    pub fn new(model: Model, optimizer: AdamWConfig) -> Self {
        let parameters = model.weights.values().len();
        Learner { model, gradients: vec![0.0; parameters], optimizer: AdamW::new(optimizer, parameters) }
    }

    /// The weights as they are now. Cheap: the learner copies them when it next changes them, if they are still held.
    pub fn model(&self) -> Model {
        self.model.clone()
    }

    /// The gradients added up since the last step, in the order of the model's [`Layout`](crate::model::Layout).
    pub fn gradients(&self) -> &[f32] {
        &self.gradients
    }

    /// Steps the optimiser has taken.
    pub fn steps(&self) -> u64 {
        self.optimizer.steps()
    }

    /// Scores tokens without keeping anything for gradients. Long lists go through in several passes.
    pub fn score(&self, sequences: &[Sequence], temperature: f32) -> Result<Vec<Scores>, ScoreError> {
        check(&self.model, sequences, temperature)?;
        let mut scores = Vec::with_capacity(sequences.len());
        let mut rest = sequences;
        while !rest.is_empty() {
            let mut tokens = 0;
            let fits = rest.iter().take_while(|sequence| {
                tokens += sequence.tokens.len();
                tokens <= SCORE_TOKENS
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            scores.extend(Evaluation::run(&self.model, now, temperature, Keep::Nothing)?.scores(now));
            rest = later;
        }
        Ok(scores)
    }

    /// Adds the gradient of a loss on one micro-batch and returns the loss.
    ///
    /// `d_loss` turns the scores into the loss and its derivative with respect to each scored token's log-probability: zero
    /// for a token that the loss doesn't look at.
    pub fn accumulate(
        &mut self,
        sequences: &[Sequence],
        temperature: f32,
        d_loss: impl FnOnce(&[Scores]) -> (f32, Vec<Vec<f32>>),
    ) -> Result<f32, ScoreError> {
        check(&self.model, sequences, temperature)?;
        if sequences.is_empty() {
            return Ok(d_loss(&[]).0);
        }
        let evaluation = Evaluation::run(&self.model, sequences, temperature, Keep::Tape)?;
        let (loss, d_log_probs) = d_loss(&evaluation.scores(sequences));
        let found: Vec<usize> = d_log_probs.iter().map(Vec::len).collect();
        let expected: Vec<usize> = sequences.iter().map(|sequence| sequence.scored.len()).collect();
        if found != expected {
            return Err(ScoreError::GradientShape { found, expected });
        }
        evaluation.backward(&self.model, sequences, &d_log_probs.concat(), &mut self.gradients);
        Ok(loss)
    }

    /// Clips the gradients to `max_grad_norm`, takes one AdamW step and clears them.
    pub fn step(&mut self, lr: f32, max_grad_norm: f32) -> StepReport {
        let grad_norm = grad_norm(&self.gradients);
        let finite = grad_norm.is_finite();
        let factor = clip_factor(grad_norm, max_grad_norm);
        if finite {
            let weights = Arc::make_mut(&mut self.model.weights);
            self.optimizer.step(weights.values_mut(), &self.gradients, factor, lr);
        }
        self.gradients.fill(0.0);
        StepReport { grad_norm, clipped: finite && factor < 1.0, finite }
    }

    /// Writes the optimiser's state, bit for bit, as safetensors.
    pub fn save_optimizer(&self, path: &Path) -> Result<(), SaveError> {
        checkpoint::save_optimizer(path, self.model.weights.layout(), &self.optimizer)
    }

    /// Goes on with the optimiser's state of an earlier [`Learner::save_optimizer`].
    pub fn load_optimizer(&mut self, path: &Path) -> Result<(), LoadError> {
        self.optimizer = checkpoint::load_optimizer(path, self.model.weights.layout(), self.optimizer.config)?;
        Ok(())
    }
}

fn check(model: &Model, sequences: &[Sequence], temperature: f32) -> Result<(), ScoreError> {
    if !(temperature > 0.0 && temperature.is_finite()) {
        return Err(ScoreError::Temperature(temperature));
    }
    for (sequence, Sequence { tokens, scored }) in sequences.iter().enumerate() {
        if scored.start < 1 || scored.is_empty() || scored.end > tokens.len() {
            return Err(ScoreError::Range { sequence, scored: scored.clone(), len: tokens.len() });
        }
        // The forward pass checks its inputs, which the last scored token isn't one of.
        let vocab_size = model.config.vocab_size;
        if let Some(&token) = tokens[scored.clone()].iter().find(|token| **token as usize >= vocab_size) {
            return Err(ForwardError::TokenOutOfRange { segment: sequence, token, vocab_size }.into());
        }
    }
    Ok(())
}

/// A forward pass over sequences, up to the log-probabilities of every token of the vocabulary.
struct Evaluation {
    pass: Pass,
    temperature: f32,
    /// Rows of the pass whose next token is scored, per sequence.
    rows: Vec<Range<usize>>,
    /// Those rows of the residual stream, normalised.
    normed: Vec<f32>,
    /// `[scored tokens, vocabulary]`
    log_probs: Vec<f32>,
    vocab: usize,
}

/// The tokens that something scored depends on: all before the last scored one.
fn inputs(sequence: &Sequence) -> &[u32] {
    &sequence.tokens[..sequence.scored.end - 1]
}

fn targets(sequences: &[Sequence]) -> impl Iterator<Item = u32> {
    sequences.iter().flat_map(|sequence| &sequence.tokens[sequence.scored.clone()]).copied()
}

impl Evaluation {
    fn run(model: &Model, sequences: &[Sequence], temperature: f32, keep: Keep) -> Result<Self, ScoreError> {
        let vocab = model.config.vocab_size;
        let mut caches = vec![KvCache::new(&model.config); sequences.len()];
        let segments = sequences.iter().zip(&mut caches);
        let mut batch: Vec<Segment<'_>> = segments
            .map(|(sequence, cache)| Segment { tokens: inputs(sequence), cache, logits_for: LogitsFor::None })
            .collect();
        let pass = model.pass(&mut batch, keep)?;
        let mut start = 0;
        let rows: Vec<Range<usize>> = sequences
            .iter()
            .map(|sequence| {
                let rows = start + sequence.scored.start - 1..start + sequence.scored.end - 1;
                start = rows.end;
                rows
            })
            .collect();
        let normed = model.final_norm(&pass.hidden, &rows);
        let mut log_probs = model.head(&normed);
        log_softmax_rows(&mut log_probs, vocab, temperature);
        Ok(Evaluation { pass, temperature, rows, normed, log_probs, vocab })
    }

    fn scores(&self, sequences: &[Sequence]) -> Vec<Scores> {
        let mut rows = self.log_probs.chunks_exact(self.vocab);
        let scores = |sequence: &Sequence| {
            let tokens = &sequence.tokens[sequence.scored.clone()];
            let (log_probs, entropy) =
                tokens.iter().zip(rows.by_ref()).map(|(token, row)| (row[*token as usize], entropy(row))).unzip();
            Scores { log_probs, entropy }
        };
        sequences.iter().map(scores).collect()
    }

    fn backward(mut self, model: &Model, sequences: &[Sequence], d_log_probs: &[f32], sums: &mut [f32]) {
        let targets: Vec<u32> = targets(sequences).collect();
        chosen_log_prob_backward(&mut self.log_probs, self.vocab, self.temperature, &targets, d_log_probs);
        let mut gradients = Gradients { model, sums };
        let d_hidden = gradients.head(&self.pass.hidden, &self.rows, &self.normed, &self.log_probs);
        let inputs: Vec<&[u32]> = sequences.iter().map(inputs).collect();
        gradients.layers(self.pass, &inputs, d_hidden);
    }
}
