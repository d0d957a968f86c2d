//! All parameters of a model in one slice, and the names of its parts.
//!
//! One slice makes the optimiser, gradient norms and snapshots one loop each. The order inside is chosen so that projections
//! which read the same input lie side by side: queries, keys and values are one product, gate and up another.

use std::ops::Range;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::config::LlamaConfig;

/// Name, shape and place of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// As Hugging Face checkpoints name it.
    pub name: String,
    /// Row-major; `[outputs, inputs]` for a projection.
    pub shape: Vec<usize>,
    /// Its elements in the slice of all parameters.
    pub range: Range<usize>,
}

/// Where each tensor of a model lies in the slice of all parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    tensors: Vec<TensorSpec>,
    len: usize,
    pub(crate) embedding: Range<usize>,
    pub(crate) layers: Vec<LayerRanges>,
    pub(crate) norm: Range<usize>,
    /// The embedding again when the two are tied.
    pub(crate) head: Range<usize>,
}

/// The parts of a decoder layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerRanges {
    pub(crate) input_norm: Range<usize>,
    /// `[query_width + 2 · kv_width, hidden]`
    pub(crate) qkv: Range<usize>,
    pub(crate) qkv_bias: Option<Range<usize>>,
    pub(crate) attention_out: Range<usize>,
    pub(crate) post_norm: Range<usize>,
    /// `[2 · intermediate, hidden]`
    pub(crate) gate_up: Range<usize>,
    pub(crate) down: Range<usize>,
}

impl Layout {
    /// The tensors of a model of this shape.
    pub fn new(config: &LlamaConfig) -> Self {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (q, kv) = (config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim);
        let mut list = TensorList::default();
        let embedding = list.add("model.embed_tokens.weight", &[config.vocab_size, hidden]);
        let layers = (0..config.num_hidden_layers).map(|layer| {
            let mut add = |part: &str, shape: &[usize]| list.add(&format!("model.layers.{layer}.{part}"), shape);
            let input_norm = add("input_layernorm.weight", &[hidden]);
            let query = add("self_attn.q_proj.weight", &[q, hidden]);
            add("self_attn.k_proj.weight", &[kv, hidden]);
            let value = add("self_attn.v_proj.weight", &[kv, hidden]);
            let qkv_bias = config.qkv_bias.then(|| {
                let query = add("self_attn.q_proj.bias", &[q]);
                add("self_attn.k_proj.bias", &[kv]);
                query.start..add("self_attn.v_proj.bias", &[kv]).end
            });
            let attention_out = add("self_attn.o_proj.weight", &[hidden, q]);
            let post_norm = add("post_attention_layernorm.weight", &[hidden]);
            let gate = add("mlp.gate_proj.weight", &[inner, hidden]);
            let up = add("mlp.up_proj.weight", &[inner, hidden]);
            let down = add("mlp.down_proj.weight", &[hidden, inner]);
            let (qkv, gate_up) = (query.start..value.end, gate.start..up.end);
            LayerRanges { input_norm, qkv, qkv_bias, attention_out, post_norm, gate_up, down }
        });
        let layers = layers.collect();
        let norm = list.add("model.norm.weight", &[hidden]);
        let head = if config.tie_word_embeddings {
            embedding.clone()
        } else {
            list.add("lm_head.weight", &[config.vocab_size, hidden])
        };
        Layout { tensors: list.tensors, len: list.len, embedding, layers, norm, head }
    }

    /// The tensors, in the order in which they lie.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Number of parameters.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[derive(Default)]
struct TensorList {
    tensors: Vec<TensorSpec>,
    len: usize,
}

impl TensorList {
    fn add(&mut self, name: &str, shape: &[usize]) -> Range<usize> {
        let range = self.len..self.len + shape.iter().product::<usize>();
        self.len = range.end;
        self.tensors.push(TensorSpec { name: name.to_owned(), shape: shape.to_vec(), range: range.clone() });
        range
    }
}

/// The parameters of a model: what one policy version is.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    layout: Arc<Layout>,
    values: Vec<f32>,
}

impl Weights {
    /// All zero.
    pub fn zeros(config: &LlamaConfig) -> Self {
        let layout = Arc::new(Layout::new(config));
        Weights { values: vec![0.0; layout.len()], layout }
    }

    /// Norms of one and biases of zero; all else uniform with standard deviation `std`, and the projections into the
    /// residual stream smaller by `sqrt(2 · layers)`, as in GPT-2. The same seed gives the same weights everywhere.
    pub fn random(config: &LlamaConfig, std: f32, seed: u64) -> Self {
        let mut weights = Weights::zeros(config);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let residual = 1.0 / (2.0 * config.num_hidden_layers as f32).sqrt();
        for TensorSpec { name, shape, range } in &weights.layout.tensors {
            let values = &mut weights.values[range.clone()];
            if shape.len() == 1 {
                values.fill(if name.ends_with("bias") { 0.0 } else { 1.0 });
                continue;
            }
            let into_residual = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
            let half_width = std * 3.0f32.sqrt() * if into_residual { residual } else { 1.0 };
            values.fill_with(|| rng.random_range(-half_width..half_width));
        }
        weights
    }

    /// Names, shapes and places of the tensors.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// All parameters, in the order of [`Layout::tensors`].
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// All parameters, to change.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&[f32]> {
        let spec = self.layout.tensors.iter().find(|spec| spec.name == name)?;
        Some(&self.values[spec.range.clone()])
    }

    pub(crate) fn part(&self, range: &Range<usize>) -> &[f32] {
        &self.values[range.clone()]
    }
}

/// A shape and its weights. Cloning shares both.
#[derive(Clone, Debug)]
pub struct Model {
    /// Shape and constants.
    pub config: Arc<LlamaConfig>,
    /// Parameters.
    pub weights: Arc<Weights>,
}

impl Model {
    /// A fresh model: see [`Weights::random`].
    pub fn random(config: LlamaConfig, std: f32, seed: u64) -> Self {
        let weights = Arc::new(Weights::random(&config, std, seed));
        Model { config: Arc::new(config), weights }
    }
}
