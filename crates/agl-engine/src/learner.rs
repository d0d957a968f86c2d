//! The training side of a policy: gradients of a loss on given tokens, optimiser steps.
//!
//! Gradients add up over as many calls of [`Learner::accumulate`] as a step needs, so memory is bounded by one micro-batch:
//! at most `layers · (6 · hidden + 2 · intermediate)` floats per token and the vocabulary once more per scored one. The learner
//! itself holds four times the parameters: weights, gradients and two running means.

use std::path::Path;
use std::sync::Arc;

use agl_trainer::policy::{Scores, Sequence};

use crate::checkpoint::{self, LoadError, SaveError};
use crate::model::{Keep, Model};
use crate::optimizer::{AdamW, AdamWConfig, clip_factor, grad_norm};
use crate::score::{self, Evaluation, ScoreError};

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

    /// Constants of the optimiser.
    pub fn optimizer_config(&self) -> AdamWConfig {
        self.optimizer.config
    }

    /// Steps the optimiser has taken.
    pub fn steps(&self) -> u64 {
        self.optimizer.steps()
    }

    /// Scores tokens with the present weights: see [`Model::score`].
    pub fn score(&self, sequences: &[Sequence], temperature: f32) -> Result<Vec<Scores>, ScoreError> {
        self.model.score(sequences, temperature)
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
        score::check(&self.model, sequences, temperature)?;
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
