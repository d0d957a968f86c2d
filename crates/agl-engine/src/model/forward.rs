//! The forward pass: packed sequences in, logits out.

use std::ops::Range;

use super::config::LlamaConfig;
use super::kv_cache::KvCache;
use super::weights::{LayerRanges, Model};
use crate::kernels::attention::{self, Heads, Span};
use crate::kernels::matmul::linear;
use crate::kernels::rope::{self, Rotation};
use crate::kernels::rows::add_assign;
use crate::kernels::{rms_norm, swiglu};

/// Which rows of a segment are worth the product with the output head, the largest of all in small models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsFor {
    /// Those of the last token: to sample the next one.
    Last,
    /// Those of every token.
    All,
    /// None: a chunk of a prompt that goes on.
    None,
}

/// New tokens of one sequence, continuing its cache.
#[derive(Debug)]
pub struct Segment<'a> {
    /// At least one; their positions start at `cache.len()`.
    pub tokens: &'a [u32],
    /// Grows by `tokens.len()`. Unchanged if the forward pass refuses the batch.
    pub cache: &'a mut KvCache,
    /// Which logits to return.
    pub logits_for: LogitsFor,
}

/// Rows of logits, `[len, vocab]`, in the order of the segments and their tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    values: Vec<f32>,
    vocab: usize,
}

impl Logits {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.values.len() / self.vocab
    }

    /// Whether no logits were asked for.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The rows, each of `vocab` logits.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.vocab)
    }

    /// Row `index`, or `None` past the end.
    pub fn row(&self, index: usize) -> Option<&[f32]> {
        self.values.chunks_exact(self.vocab).nth(index)
    }
}

/// Why a batch was refused. Nothing was computed, and no cache has changed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ForwardError {
    /// A segment brings no tokens.
    #[error("segment {segment} of the batch holds no token")]
    EmptySegment {
        /// Index in the batch.
        segment: usize,
    },
    /// A token id the embedding has no row for.
    #[error("token id {token} of segment {segment} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// Index in the batch.
        segment: usize,
        /// The id.
        token: u32,
        /// Ids are below this.
        vocab_size: usize,
    },
    /// The sequence would get longer than the model was made for.
    #[error("segment {segment} would reach {len} tokens; the model was made for {max} (max_position_embeddings)")]
    TooLong {
        /// Index in the batch.
        segment: usize,
        /// Tokens after this segment.
        len: usize,
        /// The most there may be.
        max: usize,
    },
    /// The cache was made for a model of another shape.
    #[error("the cache of segment {segment} was made for a model of another shape")]
    ForeignCache {
        /// Index in the batch.
        segment: usize,
    },
}

/// Whether a pass keeps what the backward pass needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Nothing,
    Tape,
}

/// What a pass through all layers leaves, `[rows, …]` each, rows being all tokens of the batch.
pub(crate) struct Pass {
    /// The residual stream after the last layer.
    pub(crate) hidden: Vec<f32>,
    /// One a layer, or none for [`Keep::Nothing`].
    pub(crate) layers: Vec<LayerTape>,
    pub(crate) rotation: Rotation,
}

/// What one layer leaves on the tape. What is cheap to compute again (norms, activations) is not on it.
pub(crate) struct LayerTape {
    /// Residual stream before attention.
    pub(crate) input: Vec<f32>,
    /// Rotated.
    pub(crate) qkv: Vec<f32>,
    pub(crate) log_sums: Vec<f32>,
    pub(crate) attended: Vec<f32>,
    /// Residual stream before the feed-forward layer.
    pub(crate) middle: Vec<f32>,
    pub(crate) gate_up: Vec<f32>,
}

impl Model {
    /// Runs the new tokens of several sequences through the model, packed: a batch mixes prompts, chunks of prompts and
    /// single tokens.
    pub fn forward(&self, batch: &mut [Segment<'_>]) -> Result<Logits, ForwardError> {
        let hidden = self.pass(batch, Keep::Nothing)?.hidden;
        let mut wanted = Vec::new();
        let mut start = 0;
        for segment in batch.iter() {
            let end = start + segment.tokens.len();
            match segment.logits_for {
                LogitsFor::Last => wanted.push(end - 1..end),
                LogitsFor::All => wanted.push(start..end),
                LogitsFor::None => {}
            }
            start = end;
        }
        Ok(Logits { values: self.head(&self.final_norm(&hidden, &wanted)), vocab: self.config.vocab_size })
    }

    pub(crate) fn heads(&self) -> Heads {
        let LlamaConfig { num_attention_heads, num_key_value_heads, head_dim, .. } = *self.config;
        Heads { queries: num_attention_heads, kv: num_key_value_heads, dim: head_dim }
    }

    /// Embedding and all layers.
    pub(crate) fn pass(&self, batch: &mut [Segment<'_>], keep: Keep) -> Result<Pass, ForwardError> {
        self.check(batch)?;
        let width = self.config.hidden_size;
        let embedding = self.weights.part(&self.weights.layout().embedding);
        let tokens = batch.iter().flat_map(|segment| segment.tokens);
        let mut hidden: Vec<f32> =
            tokens.flat_map(|&token| &embedding[token as usize * width..][..width]).copied().collect();
        let positions = batch.iter().flat_map(|segment| (segment.cache.len()..).take(segment.tokens.len()));
        let rotation = Rotation::new(positions, &rope::inverse_frequencies(&self.config));
        let mut layers = Vec::new();
        for (index, layer) in self.weights.layout().layers.iter().enumerate() {
            let tape = self.layer(layer, index, batch, &rotation, &mut hidden);
            if keep == Keep::Tape {
                layers.push(tape);
            }
        }
        for segment in batch.iter_mut() {
            segment.cache.advance(segment.tokens.len());
        }
        Ok(Pass { hidden, layers, rotation })
    }

    fn check(&self, batch: &[Segment<'_>]) -> Result<(), ForwardError> {
        let (vocab_size, max) = (self.config.vocab_size, self.config.max_position_embeddings);
        for (segment, Segment { tokens, cache, .. }) in batch.iter().enumerate() {
            let len = cache.len() + tokens.len();
            if tokens.is_empty() {
                return Err(ForwardError::EmptySegment { segment });
            }
            if let Some(&token) = tokens.iter().find(|token| **token as usize >= vocab_size) {
                return Err(ForwardError::TokenOutOfRange { segment, token, vocab_size });
            }
            if len > max {
                return Err(ForwardError::TooLong { segment, len, max });
            }
            if !cache.fits(&self.config) {
                return Err(ForwardError::ForeignCache { segment });
            }
        }
        Ok(())
    }

    /// One decoder layer, in place of `x`.
    fn layer(
        &self,
        layer: &LayerRanges,
        index: usize,
        batch: &mut [Segment<'_>],
        rotation: &Rotation,
        x: &mut [f32],
    ) -> LayerTape {
        let heads = self.heads();
        let width = self.config.hidden_size;
        let rows = x.len() / width;
        let input = x.to_vec();

        let qkv = self.project_qkv(layer, x, rotation);
        append_to_caches(batch, index, &qkv, heads);
        let spans: Vec<Span<'_>> = batch.iter().map(|segment| span(segment, index)).collect();
        let mut attended = vec![0.0; rows * heads.query_width()];
        let mut log_sums = vec![0.0; rows * heads.queries];
        attention::forward(heads, &qkv, &spans, &mut attended, &mut log_sums);
        let mut out = vec![0.0; x.len()];
        linear(&attended, self.weights.part(&layer.attention_out), heads.query_width(), &mut out);
        add_assign(x, &out);
        let middle = x.to_vec();

        let gate_up = self.project_gate_up(layer, x);
        let mut activated = vec![0.0; gate_up.len() / 2];
        swiglu::forward(&gate_up, self.config.intermediate_size, &mut activated);
        linear(&activated, self.weights.part(&layer.down), self.config.intermediate_size, &mut out);
        add_assign(x, &out);
        LayerTape { input, qkv, log_sums, attended, middle, gate_up }
    }

    /// Queries, keys and values of each row, rotated.
    fn project_qkv(&self, layer: &LayerRanges, x: &[f32], rotation: &Rotation) -> Vec<f32> {
        let heads = self.heads();
        let normed = self.norm(&layer.input_norm, x);
        let width = self.config.hidden_size;
        let mut qkv = vec![0.0; x.len() / width * heads.qkv_width()];
        linear(&normed, self.weights.part(&layer.qkv), width, &mut qkv);
        if let Some(bias) = &layer.qkv_bias {
            qkv.chunks_exact_mut(heads.qkv_width()).for_each(|row| add_assign(row, self.weights.part(bias)));
        }
        rotation.apply(&mut qkv, heads.qkv_width(), heads.query_width() + heads.kv_width());
        qkv
    }

    fn project_gate_up(&self, layer: &LayerRanges, x: &[f32]) -> Vec<f32> {
        let normed = self.norm(&layer.post_norm, x);
        let width = self.config.hidden_size;
        let mut gate_up = vec![0.0; x.len() / width * 2 * self.config.intermediate_size];
        linear(&normed, self.weights.part(&layer.gate_up), width, &mut gate_up);
        gate_up
    }

    pub(crate) fn norm(&self, weight: &Range<usize>, x: &[f32]) -> Vec<f32> {
        let mut normed = vec![0.0; x.len()];
        rms_norm::forward(x, self.weights.part(weight), self.config.rms_norm_eps, &mut normed);
        normed
    }

    /// The wanted rows of the last residual stream, normalised.
    pub(crate) fn final_norm(&self, hidden: &[f32], wanted: &[Range<usize>]) -> Vec<f32> {
        let width = self.config.hidden_size;
        let rows: Vec<f32> =
            wanted.iter().flat_map(|rows| &hidden[rows.start * width..rows.end * width]).copied().collect();
        self.norm(&self.weights.layout().norm, &rows)
    }

    /// Logits of normalised rows.
    pub(crate) fn head(&self, normed: &[f32]) -> Vec<f32> {
        let width = self.config.hidden_size;
        let mut logits = vec![0.0; normed.len() / width * self.config.vocab_size];
        linear(normed, self.weights.part(&self.weights.layout().head), width, &mut logits);
        logits
    }
}

fn append_to_caches(batch: &mut [Segment<'_>], layer: usize, qkv: &[f32], heads: Heads) {
    let mut rows = qkv.chunks_exact(heads.qkv_width());
    for segment in batch {
        let cache = &mut segment.cache.layers[layer];
        for row in rows.by_ref().take(segment.tokens.len()) {
            let (keys, values) = row[heads.query_width()..].split_at(heads.kv_width());
            cache.keys.extend_from_slice(keys);
            cache.values.extend_from_slice(values);
        }
    }
}

fn span<'a>(segment: &'a Segment<'_>, layer: usize) -> Span<'a> {
    let cache = &segment.cache.layers[layer];
    Span { rows: segment.tokens.len(), keys: &cache.keys, values: &cache.values }
}
