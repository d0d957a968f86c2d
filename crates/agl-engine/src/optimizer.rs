//! AdamW and gradient clipping, as PyTorch computes them.

use rayon::prelude::*;

/// Constants of AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101). The learning rate comes with each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    /// Decay of the running mean of gradients.
    pub beta1: f64,
    /// Decay of the running mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the squared mean.
    pub eps: f64,
    /// Decoupled decay: each step takes `lr · weight_decay` of every parameter away.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    /// verl's values: betas of 0.9 and 0.999, weight decay of 0.01.
    fn default() -> Self {
        AdamWConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }
}

/// Running means of every parameter, and the number of steps behind them.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    /// Constants.
    pub config: AdamWConfig,
    pub(crate) steps: u64,
    pub(crate) mean: Vec<f32>,
    pub(crate) mean_square: Vec<f32>,
}

/// Parameters one task updates.
const TASK_PARAMETERS: usize = 16 * 1024;

impl AdamW {
    /// A fresh state for `parameters` parameters.
    pub fn new(config: AdamWConfig, parameters: usize) -> Self {
        AdamW { config, steps: 0, mean: vec![0.0; parameters], mean_square: vec![0.0; parameters] }
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Takes one step along `factor · gradients`; the factor is where clipping goes.
    pub fn step(&mut self, parameters: &mut [f32], gradients: &[f32], factor: f32, lr: f32) {
        self.steps += 1;
        let AdamWConfig { beta1, beta2, eps, weight_decay } = self.config;
        let correction = |beta: f64| 1.0 - beta.powf(self.steps as f64);
        let step_size = (f64::from(lr) / correction(beta1)) as f32;
        let root_correction = correction(beta2).sqrt() as f32;
        let keep = (1.0 - f64::from(lr) * weight_decay) as f32;
        let (blend1, beta2, blend2, eps) = ((1.0 - beta1) as f32, beta2 as f32, (1.0 - beta2) as f32, eps as f32);
        let tasks = (
            parameters.par_chunks_mut(TASK_PARAMETERS),
            gradients.par_chunks(TASK_PARAMETERS),
            self.mean.par_chunks_mut(TASK_PARAMETERS),
            self.mean_square.par_chunks_mut(TASK_PARAMETERS),
        );
        tasks.into_par_iter().for_each(|(parameters, gradients, mean, mean_square)| {
            for (((p, g), m), v) in parameters.iter_mut().zip(gradients).zip(mean).zip(mean_square) {
                let g = g * factor;
                *m += (g - *m) * blend1;
                *v = *v * beta2 + g * g * blend2;
                *p = *p * keep - step_size * *m / (v.sqrt() / root_correction + eps);
            }
        });
    }
}

/// Euclidean norm over all gradients, summed in f64.
pub fn grad_norm(gradients: &[f32]) -> f32 {
    let squares: Vec<f64> = gradients
        .par_chunks(TASK_PARAMETERS)
        .map(|chunk| chunk.iter().map(|g| f64::from(*g) * f64::from(*g)).sum::<f64>())
        .collect();
    squares.iter().sum::<f64>().sqrt() as f32
}

/// What to multiply gradients by so that their norm is at most `max_norm`: `min(1, max_norm / (norm + 1e-6))`.
pub fn clip_factor(norm: f32, max_norm: f32) -> f32 {
    (max_norm / (norm + 1e-6)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipping_bounds_the_norm_and_leaves_small_gradients_alone() {
        let gradients = [3.0, -4.0];
        let norm = grad_norm(&gradients);
        assert!((norm - 5.0).abs() < 1e-6);
        assert!((clip_factor(norm, 1.0) - 0.2).abs() < 1e-6);
        assert_eq!(clip_factor(norm, 6.0).to_bits(), 1.0f32.to_bits());
        assert!(grad_norm(&[1.0, f32::NAN]).is_nan());
        assert!(grad_norm(&[1e30, 1e30]).is_finite(), "squares are summed in f64");
    }

    /// One parameter by hand: the first step of Adam is lr times the sign of the gradient, whatever its size.
    #[test]
    fn the_first_step_is_the_learning_rate() {
        let mut optimizer = AdamW::new(AdamWConfig { weight_decay: 0.1, ..AdamWConfig::default() }, 2);
        let mut parameters = [2.0, -1.0];
        optimizer.step(&mut parameters, &[0.001, -30.0], 1.0, 0.01);
        assert!((parameters[0] - (2.0 * 0.999 - 0.01)).abs() < 1e-6, "{parameters:?}");
        assert!((parameters[1] - (-0.999 + 0.01)).abs() < 1e-6, "{parameters:?}");
        assert_eq!(optimizer.steps(), 1);
    }
}
