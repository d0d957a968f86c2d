//! Keys and values of the tokens a sequence has already been through, so that each token is computed once.

use super::config::LlamaConfig;

/// The cache of one sequence. It grows as tokens come; cloning it lets two sequences share a prefix.
#[derive(Clone, Debug)]
pub struct KvCache {
    len: usize,
    width: usize,
    pub(crate) layers: Vec<LayerCache>,
}

/// `[len, kv_width]` each, rotated keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerCache {
    pub(crate) keys: Vec<f32>,
    pub(crate) values: Vec<f32>,
}

impl KvCache {
    /// An empty cache for a model of this shape.
    pub fn new(config: &LlamaConfig) -> Self {
        let layers = vec![LayerCache::default(); config.num_hidden_layers];
        KvCache { len: 0, width: config.num_key_value_heads * config.head_dim, layers }
    }

    /// Tokens held: the position of the next one.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token has been through yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all but the first `len` tokens; does nothing when there are no more than that.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        for layer in &mut self.layers {
            layer.keys.truncate(self.len * self.width);
            layer.values.truncate(self.len * self.width);
        }
    }

    /// Memory of the held tokens.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| (layer.keys.len() + layer.values.len()) * size_of::<f32>()).sum()
    }

    pub(crate) fn fits(&self, config: &LlamaConfig) -> bool {
        self.layers.len() == config.num_hidden_layers && self.width == config.num_key_value_heads * config.head_dim
    }

    /// Counts tokens whose keys and values every layer has appended.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}
