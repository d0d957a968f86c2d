//! Log-probabilities and entropies of given tokens: what training compares and differentiates.

use std::ops::Range;

use agl_trainer::policy::{Scores, Sequence};

use crate::kernels::softmax::{chosen_log_prob_backward, entropy, log_softmax_rows};
use crate::model::{ForwardError, Gradients, Keep, KvCache, LogitsFor, Model, Pass, Segment};

/// Tokens of one pass when scoring: far more than the threads need to be busy.
const PASS_TOKENS: usize = 4096;
/// Logits of one pass when scoring, the most of its memory: a quarter of a gigabyte.
const PASS_LOGITS: usize = 1 << 26;

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

impl Model {
    /// Scores tokens: one log-probability and one entropy per scored token, of `softmax(logits / temperature)`.
    /// Long lists go through in several passes.
    pub fn score(&self, sequences: &[Sequence], temperature: f32) -> Result<Vec<Scores>, ScoreError> {
        check(self, sequences, temperature)?;
        let most = PASS_TOKENS.min(PASS_LOGITS / self.config.vocab_size);
        let mut scores = Vec::with_capacity(sequences.len());
        let mut rest = sequences;
        while !rest.is_empty() {
            let mut tokens = 0;
            let fits = rest.iter().take_while(|sequence| {
                tokens += sequence.tokens.len();
                tokens <= most
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            scores.extend(Evaluation::run(self, now, temperature, Keep::Nothing)?.scores(now));
            rest = later;
        }
        Ok(scores)
    }
}

pub(crate) fn check(model: &Model, sequences: &[Sequence], temperature: f32) -> Result<(), ScoreError> {
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
pub(crate) struct Evaluation {
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
    pub(crate) fn run(model: &Model, sequences: &[Sequence], temperature: f32, keep: Keep) -> Result<Self, ScoreError> {
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

    pub(crate) fn scores(&self, sequences: &[Sequence]) -> Vec<Scores> {
        let mut rows = self.log_probs.chunks_exact(self.vocab);
        let scores = |sequence: &Sequence| {
            let tokens = &sequence.tokens[sequence.scored.clone()];
            let (log_probs, entropy) =
                tokens.iter().zip(rows.by_ref()).map(|(token, row)| (row[*token as usize], entropy(row))).unzip();
            Scores { log_probs, entropy }
        };
        sequences.iter().map(scores).collect()
    }

    pub(crate) fn backward(mut self, model: &Model, sequences: &[Sequence], d_log_probs: &[f32], sums: &mut [f32]) {
        let targets: Vec<u32> = targets(sequences).collect();
        chosen_log_prob_backward(&mut self.log_probs, self.vocab, self.temperature, &targets, d_log_probs);
        let mut gradients = Gradients { model, sums };
        let d_hidden = gradients.head(&self.pass.hidden, &self.rows, &self.normed, &self.log_probs);
        let inputs: Vec<&[u32]> = sequences.iter().map(inputs).collect();
        gradients.layers(self.pass, &inputs, d_hidden);
    }
}
