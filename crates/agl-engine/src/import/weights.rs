//! The tensors: from GGUF's names and order to those of Hugging Face, as a safetensors file.

use std::borrow::Cow;
use std::collections::HashMap;

use half::bf16;
use safetensors::{Dtype, View};

use super::gguf::{Gguf, Tensor};
use super::{ImportError, WeightType};
use crate::checkpoint::SaveError;
use crate::model::{Layout, LlamaConfig};

/// All tensors of the model, in the bytes of a safetensors file.
pub(super) fn safetensors(
    file: &mut Gguf,
    config: &LlamaConfig,
    layout: &Layout,
    weight_type: WeightType,
) -> Result<Vec<u8>, ImportError> {
    let mut found: HashMap<String, Tensor> =
        file.tensors().iter().map(|tensor| (tensor.name.clone(), tensor.clone())).collect();
    let mut stored = Vec::with_capacity(layout.tensors().len());
    for spec in layout.tensors() {
        let name = gguf_name(&spec.name);
        let tensor = found.remove(&name).ok_or_else(|| ImportError::MissingTensor(name.clone()))?;
        if tensor.shape != spec.shape {
            return Err(ImportError::Shape { tensor: name, found: tensor.shape, expected: spec.shape.clone() });
        }
        let mut values = file.values(&tensor)?;
        if spec.name.ends_with("q_proj.weight") || spec.name.ends_with("k_proj.weight") {
            values = halves_apart(&values, config.head_dim, config.hidden_size);
        }
        stored.push((spec.name.clone(), Stored::new(&spec.shape, &values, weight_type)));
    }
    if let Some(name) = found.into_keys().min() {
        return Err(ImportError::UnexpectedTensor(name));
    }
    let metadata = [("format".to_owned(), "pt".to_owned())];
    safetensors::serialize(stored, Some(metadata.into()))
        .map_err(|error| ImportError::Write(SaveError { path: "model.safetensors".into(), reason: error.to_string() }))
}

/// The GGUF name of a Hugging Face tensor.
fn gguf_name(name: &str) -> String {
    let Some(rest) = name.strip_prefix("model.layers.") else {
        let whole = [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("lm_head.weight", "output.weight"),
        ];
        return whole.iter().find(|(own, _)| *own == name).map_or(name, |(_, theirs)| theirs).to_owned();
    };
    let parts = [
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let theirs = parts.iter().fold(rest.to_owned(), |name, (own, theirs)| name.replace(own, theirs));
    format!("blk.{theirs}")
}

/// GGUF's Llama keeps the two rows of a head that rotate together side by side; Hugging Face keeps the first rows of all
/// pairs, then the second ones.
fn halves_apart(rows: &[f32], head_dim: usize, columns: usize) -> Vec<f32> {
    let mut apart = Vec::with_capacity(rows.len());
    for head in rows.chunks_exact(head_dim * columns) {
        for which in 0..2 {
            let of_pairs = head.chunks_exact(columns).skip(which).step_by(2);
            of_pairs.for_each(|row| apart.extend_from_slice(row));
        }
    }
    apart
}

/// A tensor in the bytes it is stored as.
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Stored {
    fn new(shape: &[usize], values: &[f32], weight_type: WeightType) -> Self {
        let (dtype, bytes) = match weight_type {
            WeightType::Bf16 => {
                (Dtype::BF16, values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect())
            }
            WeightType::F32 => (Dtype::F32, values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        };
        Self { dtype, shape: shape.to_vec(), bytes }
    }
}

impl View for Stored {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_has_a_name_there() {
        for (own, theirs) in [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("lm_head.weight", "output.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("model.layers.11.post_attention_layernorm.weight", "blk.11.ffn_norm.weight"),
            ("model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight"),
        ] {
            assert_eq!(gguf_name(own), theirs);
        }
    }

    #[test]
    fn pairs_of_a_head_are_taken_apart() {
        // Two heads of four rows, two columns; each row holds its own number.
        let rows: Vec<f32> = (0..8u8).flat_map(|row| [f32::from(row); 2]).collect();
        let apart = halves_apart(&rows, 4, 2);
        let order: Vec<f32> = apart.chunks_exact(2).map(|row| row[0]).collect();
        assert_eq!(order, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }
}
