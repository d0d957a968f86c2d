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

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 8, "hidden_size": 128, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 131072, "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}}"#;

    const EXPECTED: [(usize, f64); 11] = [
        (0, 1.000_000_000e0),
        (20, 1.656_044_008e-2),
        (28, 3.211_445_995e-3),
        (29, 2.166_570_764e-3),
        (30, 1.371_893_568e-3),
        (32, 5.248_461_610e-4),
        (34, 1.785_078_128e-4),
        (35, 9.556_212_354e-5),
        (36, 7.784_655_274e-5),
        (50, 4.411_534_675e-6),
        (63, 3.068_925_989e-7),
    ];

    /// The shape of Llama 3.1: expected values worked out from the definition in 50 digits.
    #[test]
    fn llama3_scaling_keeps_fast_components_and_slows_down_slow_ones() {
        let config = LlamaConfig::from_json(CONFIG).unwrap();
        let frequencies = inverse_frequencies(&config);
        assert_eq!(frequencies.len(), 64);
        for (index, expected) in EXPECTED {
            let relative = (f64::from(frequencies[index]) - expected).abs() / expected;
            assert!(relative < 1e-6, "component {index}: {}, expected {expected}", frequencies[index]);
        }
    }

    /// What attention sees of a position is only its distance: rotated dot products don't change when both move.
    #[test]
    fn only_distances_matter() {
        let config = LlamaConfig::from_json(CONFIG).unwrap();
        let frequencies = inverse_frequencies(&config);
        let query: Vec<f32> = (0..128).map(|i| (i as f32 * 0.37).sin()).collect();
        let key: Vec<f32> = (0..128).map(|i| (i as f32 * 0.71).cos()).collect();
        let product = |query_at: usize, key_at: usize| -> f32 {
            let mut rows = [query.clone(), key.clone()].concat();
            Rotation::new([query_at, key_at].into_iter(), &frequencies).apply(&mut rows, 128, 128);
            rows[..128].iter().zip(&rows[128..]).map(|(q, k)| q * k).sum()
        };
        let expected = product(7, 0);
        assert!((expected - product(0, 0)).abs() > 0.1, "distance must matter");
        for start in [1, 50, 400] {
            assert!((product(start + 7, start) - expected).abs() < 1e-3, "from {start}");
        }
    }
}
