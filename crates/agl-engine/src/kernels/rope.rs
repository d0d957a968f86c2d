//! Rotary position embedding (Su et al. 2021, arXiv:2104.09864) in the half-split layout of Hugging Face checkpoints, where
//! component `i` of a head is paired with component `i + head_dim / 2`.

use super::rows::for_each_row;
use crate::model::{LlamaConfig, RopeScaling};

/// Angular frequency of each pair of components, `[head_dim / 2]`, in radians per position.
pub(crate) fn inverse_frequencies(config: &LlamaConfig) -> Vec<f32> {
    let half = config.head_dim / 2;
    let frequency = |i: usize| config.rope_theta.powf(-(2.0 * i as f64) / config.head_dim as f64);
    (0..half).map(|i| scale(frequency(i), config.rope_scaling.as_ref()) as f32).collect()
}

/// The context extension of Llama 3.1: slow components are slowed down by `factor`, fast ones kept, the rest blended.
fn scale(frequency: f64, scaling: Option<&RopeScaling>) -> f64 {
    let Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings }) =
        scaling
    else {
        return frequency;
    };
    let turns = *original_max_position_embeddings as f64 * frequency / (2.0 * std::f64::consts::PI);
    let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
    (1.0 - kept) * frequency / factor + kept * frequency
}

/// Cosines and sines of every token of a batch: one table serves all heads and layers.
pub(crate) struct Rotation {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rotation {
    pub(crate) fn new(positions: impl Iterator<Item = usize>, inverse_frequencies: &[f32]) -> Self {
        let mut rotation = Rotation { half: inverse_frequencies.len(), cos: Vec::new(), sin: Vec::new() };
        for position in positions {
            for frequency in inverse_frequencies {
                let (sin, cos) = (position as f32 * frequency).sin_cos();
                rotation.cos.push(cos);
                rotation.sin.push(sin);
            }
        }
        rotation
    }

    /// Rotates the first `columns` columns (queries and keys, head after head) of each row of `qkv`.
    pub(crate) fn apply(&self, qkv: &mut [f32], width: usize, columns: usize) {
        self.turn(qkv, width, columns, 1.0);
    }

    /// Turns gradients back: the derivative of a rotation is its inverse.
    pub(crate) fn apply_inverse(&self, d_qkv: &mut [f32], width: usize, columns: usize) {
        self.turn(d_qkv, width, columns, -1.0);
    }

    fn turn(&self, qkv: &mut [f32], width: usize, columns: usize, direction: f32) {
        let half = self.half;
        for_each_row(qkv, width, |row, qkv| {
            let (cos, sin) = (&self.cos[row * half..][..half], &self.sin[row * half..][..half]);
            for head in qkv[..columns].chunks_exact_mut(2 * half) {
                let (first, second) = head.split_at_mut(half);
                for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    let sin = sin * direction;
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        });
    }
}
