//! The tensors: from GGUF's names, order and blocks to those of Hugging Face, one tensor in memory at a time.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;

use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::gguf::{Gguf, Tensor};
use super::{ImportError, WeightType};
use crate::checkpoint::{SaveError, write_atomically_with};
use crate::model::{Layout, LlamaConfig, TensorSpec};

/// The tensor of the file for each of the model's, in the model's order. Refused unless each is there, whole and in the
/// shape that the metadata ask for, and nothing is left over: a model without it would compute something else.
pub(super) fn find(file: &Gguf, layout: &Layout) -> Result<Vec<Tensor>, ImportError> {
    let mut left: HashMap<&str, &Tensor> = HashMap::new();
    for tensor in file.tensors() {
        if left.insert(&tensor.name, tensor).is_some() {
            return Err(ImportError::Container(format!("tensor `{}` is there twice", tensor.name)));
        }
    }
    let mut found = Vec::with_capacity(layout.tensors().len());
    for spec in layout.tensors() {
        let name = gguf_name(&spec.name);
        let tensor = left.remove(name.as_str()).ok_or_else(|| ImportError::MissingTensor(name.clone()))?;
        if tensor.shape != spec.shape {
            let (found, expected) = (tensor.shape.clone(), spec.shape.clone());
            return Err(ImportError::Shape { tensor: name, found, expected });
        }
        file.place(tensor)?;
        found.push(tensor.clone());
    }
    match left.into_keys().min() {
        Some(name) => Err(ImportError::UnexpectedTensor(name.to_owned())),
        None => Ok(found),
    }
}

/// Writes a safetensors file of the tensors that were found: its header (<https://huggingface.co/docs/safetensors>), then one
/// tensor after the other.
pub(super) fn write(
    path: &Path,
    file: &mut Gguf,
    found: &[Tensor],
    (config, layout): (&LlamaConfig, &Layout),
    weight_type: WeightType,
) -> Result<(), ImportError> {
    let fail = |reason: String| ImportError::Write(SaveError { path: path.to_owned(), reason });
    let header = header(layout, weight_type).map_err(fail)?;
    write_atomically_with(path, |out| {
        out.write_all(&header).map_err(|error| fail(error.to_string()))?;
        for (spec, tensor) in layout.tensors().iter().zip(found) {
            let values = file.values(tensor)?;
            let rotates = spec.name.ends_with("q_proj.weight") || spec.name.ends_with("k_proj.weight");
            let values = if rotates { halves_apart(&values, config.head_dim, config.hidden_size) } else { values };
            out.write_all(&stored(&values, weight_type)).map_err(|error| fail(error.to_string()))?;
        }
        Ok(())
    })
}

/// Length and text of the header: name, type, shape and place of each tensor.
fn header(layout: &Layout, weight_type: WeightType) -> Result<Vec<u8>, String> {
    let (dtype, bytes) = match weight_type {
        WeightType::Bf16 => (Dtype::BF16, 2),
        WeightType::F32 => (Dtype::F32, 4),
    };
    let info = |spec: &TensorSpec| TensorInfo {
        dtype,
        shape: spec.shape.clone(),
        data_offsets: (spec.range.start * bytes, spec.range.end * bytes),
    };
    let tensors = layout.tensors().iter().map(|spec| (spec.name.clone(), info(spec))).collect();
    let metadata = [("format".to_owned(), "pt".to_owned())];
    let metadata = Metadata::new(Some(metadata.into()), tensors).map_err(|error| error.to_string())?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok([&(text.len() as u64).to_le_bytes()[..], &text].concat())
}

fn stored(values: &[f32], weight_type: WeightType) -> Vec<u8> {
    match weight_type {
        WeightType::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        WeightType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
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
