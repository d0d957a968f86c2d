//! The recorded model, and small random ones.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;

use agl_engine::{LlamaConfig, Model};
use flate2::read::GzDecoder;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Places of `name` among the recordings: below `$AGL_GOLDEN`, which may hold only some of them, then ours.
fn recordings(name: &str) -> impl Iterator<Item = PathBuf> {
    let ours = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let theirs = std::env::var_os("AGL_GOLDEN").map(PathBuf::from);
    let folders = theirs.into_iter().chain([ours]).flat_map(|root| ["", "trainer"].map(|folder| root.join(folder)));
    folders.map(move |folder| folder.join(name)).filter(|path| path.exists())
}

/// The folder of a two-layer model with what PyTorch and transformers computed with it.
pub(crate) fn tiny_llama() -> PathBuf {
    recordings("tiny-llama").next().unwrap()
}

/// The recorded vectors of this kind in `helpers.jsonl`.
pub(crate) fn helper_vectors<T: DeserializeOwned>(kind: &str) -> Vec<T> {
    let plain = recordings("helpers.jsonl").map(|path| fs::read_to_string(path).unwrap());
    let zipped = recordings("helpers.jsonl.gz").map(|path| {
        let mut text = String::new();
        GzDecoder::new(fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        text
    });
    let texts: Vec<String> = plain.chain(zipped).collect();
    let vectors = texts.iter().flat_map(|text| text.lines());
    let vectors = vectors.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    vectors.filter(|vector| vector["kind"] == kind).map(|vector| serde_json::from_value(vector).unwrap()).collect()
}

/// A batch of padded rows, and four optimiser steps on it.
#[derive(Deserialize)]
pub(crate) struct Golden {
    pub(crate) input_ids: Vec<Vec<u32>>,
    pub(crate) attention_mask: Vec<Vec<u8>>,
    pub(crate) response_mask: Vec<Vec<u8>>,
    pub(crate) advantages: Vec<Vec<f32>>,
    pub(crate) old_log_probs: Vec<Vec<f32>>,
    pub(crate) logits_step0: Vec<Vec<Vec<f32>>>,
    pub(crate) entropy_step0: Vec<Vec<f32>>,
    pub(crate) prompt_length: usize,
    pub(crate) clip: Clip,
    pub(crate) optimizer: Optimizer,
    pub(crate) steps: Vec<Step>,
}

#[derive(Deserialize)]
pub(crate) struct Clip {
    pub(crate) low: f32,
    pub(crate) high: f32,
}

#[derive(Deserialize)]
pub(crate) struct Optimizer {
    pub(crate) lr: f32,
    pub(crate) betas: [f32; 2],
    pub(crate) eps: f32,
    pub(crate) weight_decay: f32,
    pub(crate) max_grad_norm: f32,
}

#[derive(Deserialize)]
pub(crate) struct Step {
    pub(crate) loss: f32,
    pub(crate) grad_norm: f32,
    pub(crate) log_probs: Vec<Vec<f32>>,
}

impl Golden {
    pub(crate) fn read() -> Self {
        let text = fs::read_to_string(tiny_llama().join("golden.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Columns of row `row` that are tokens and not padding.
    pub(crate) fn real_columns(&self, row: usize) -> Vec<usize> {
        (0..self.attention_mask[row].len()).filter(|column| self.attention_mask[row][*column] == 1).collect()
    }

    /// The tokens of row `row` without the padding.
    pub(crate) fn tokens(&self, row: usize) -> Vec<u32> {
        self.real_columns(row).into_iter().map(|column| self.input_ids[row][column]).collect()
    }
}

/// A small shape; `kv_heads` below 4 groups the queries.
pub(crate) fn small_config(kv_heads: usize, tied: bool, model_type: &str) -> LlamaConfig {
    LlamaConfig {
        model_type: model_type.to_owned(),
        vocab_size: 23,
        hidden_size: 20,
        intermediate_size: 28,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: kv_heads,
        head_dim: 6,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: None,
        max_position_embeddings: 512,
        tie_word_embeddings: tied,
        qkv_bias: model_type == "qwen2",
        bos_token_id: None,
        eos_token_ids: vec![0],
    }
}

/// A random model whose norms and biases are random too, so that each of them matters.
pub(crate) fn small_model(config: LlamaConfig, seed: u64) -> Model {
    let mut model = Model::random(config, 0.2, seed);
    let weights = std::sync::Arc::make_mut(&mut model.weights);
    for spec in weights.layout().clone().tensors().iter().filter(|spec| spec.shape.len() == 1) {
        for (index, value) in weights.values_mut()[spec.range.clone()].iter_mut().enumerate() {
            *value += 0.3 * ((index * 7 + spec.range.start * 3) as f32).sin();
        }
    }
    model
}

/// Token ids that follow no pattern the model could hide a mistake behind.
pub(crate) fn tokens(len: usize, vocab: usize, seed: usize) -> Vec<u32> {
    (0..len).map(|i| ((i * i * 31 + i * 17 + seed * 13) % vocab) as u32).collect()
}

pub(crate) fn assert_close(got: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    for (index, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!((g - e).abs() <= tolerance, "{what}[{index}]: {g}, expected {e}");
    }
}
