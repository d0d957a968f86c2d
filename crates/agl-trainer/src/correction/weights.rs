//! Importance weights.

use super::settings::{Bounds, ImportanceLevel, ImportanceSampling};
use super::stats::{SAFETY_BOUND, clamped_std, masked_mean, max, mean, min, share, std};
use super::{CorrectionRow, Named};

/// e^d a token, or e^Σd a row, within the bounds, and divided by the mean if asked for. 0 where no token was sampled.
///
/// Source: verl `compute_rollout_correction_weights`, `compute_is_metrics`.
pub(super) fn importance_weights(
    rows: &[CorrectionRow<'_>],
    sampling: &ImportanceSampling,
    metrics: &mut Named,
) -> Vec<Vec<f32>> {
    let log_sums: Vec<f32> =
        rows.iter().map(|row| row.log_ratios().map(|(_, d)| f64::from(d)).sum::<f64>() as f32).collect();
    let raw: Vec<Vec<f32>> = rows
        .iter()
        .zip(&log_sums)
        .map(|(row, log_sum)| {
            let mut weights = vec![0.0; row.mask.len()];
            for (place, d) in row.log_ratios() {
                let log_weight = if sampling.level == ImportanceLevel::Token { d } else { *log_sum };
                weights[place] = log_weight.clamp(-SAFETY_BOUND, SAFETY_BOUND).exp();
            }
            weights
        })
        .collect();
    let mut weights = raw.clone();
    for weight in weights.iter_mut().flatten() {
        *weight = sampling.bounds.apply(*weight);
    }

    let sampled = Sampled { raw: sampled(rows, &raw), applied: sampled(rows, &weights) };
    sampled.put_metrics(sampling, &log_sums, metrics);
    let row_means: Vec<f32> = row_means(rows, &weights);
    put_row_metrics(&row_means, sampling.bounds, metrics);
    if sampling.batch_normalize {
        let mean = match sampling.level {
            ImportanceLevel::Token => masked_mean(sampled.applied.iter().copied()),
            ImportanceLevel::Sequence => {
                let with_tokens = row_means.iter().zip(rows).filter(|(_, row)| row.sampled_tokens() > 0);
                self::mean(&with_tokens.map(|(mean, _)| *mean).collect::<Vec<f32>>())
            }
        };
        let factor = if mean > 1e-8 { mean } else { 1.0 };
        for weight in weights.iter_mut().flatten() {
            *weight /= factor;
        }
        metrics.put("rollout_is_batch_norm_factor", f64::from(factor));
    }
    weights
}

impl Bounds {
    fn apply(self, weight: f32) -> f32 {
        match self {
            Self::Truncate { upper } => weight.min(upper as f32),
            Self::Zero { lower, upper } if (lower as f32..=upper as f32).contains(&weight) => weight,
            Self::Zero { .. } => 0.0,
        }
    }

    /// Upper bound, and lower bound or 1/upper.
    fn pair(self) -> (f32, f32) {
        match self {
            Self::Truncate { upper } => (upper as f32, (1.0 / upper) as f32),
            Self::Zero { lower, upper } => (upper as f32, lower as f32),
        }
    }
}

/// The weights of sampled tokens, one after the other.
fn sampled(rows: &[CorrectionRow<'_>], weights: &[Vec<f32>]) -> Vec<f32> {
    let tokens = rows.iter().zip(weights).flat_map(|(row, weights)| row.mask.iter().zip(weights));
    tokens.filter(|(sampled, _)| **sampled).map(|(_, weight)| *weight).collect()
}

/// Mean weight of each row; 0 for a row without a sampled token.
fn row_means(rows: &[CorrectionRow<'_>], weights: &[Vec<f32>]) -> Vec<f32> {
    let of_row = |(row, weights): (&CorrectionRow<'_>, &Vec<f32>)| {
        masked_mean(row.mask.iter().zip(weights).filter(|(sampled, _)| **sampled).map(|(_, weight)| *weight))
    };
    rows.iter().zip(weights).map(of_row).collect()
}

/// The weights of all sampled tokens, before and after the bounds.
struct Sampled {
    raw: Vec<f32>,
    applied: Vec<f32>,
}

impl Sampled {
    fn put_metrics(&self, sampling: &ImportanceSampling, log_sums: &[f32], metrics: &mut Named) {
        let (upper, lower) = sampling.bounds.pair();
        metrics.put("rollout_is_mean", f64::from(masked_mean(self.applied.iter().copied())));
        let (largest, smallest, high, low) = match sampling.level {
            ImportanceLevel::Token => (
                max(&self.applied),
                min(&self.applied),
                share(&self.raw, |weight| weight > upper),
                share(&self.raw, |weight| weight < lower),
            ),
            ImportanceLevel::Sequence => (
                max(log_sums).min(SAFETY_BOUND).exp(),
                min(log_sums).exp(),
                share(log_sums, |log_sum| log_sum > upper.ln()),
                share(log_sums, |log_sum| log_sum < lower.ln()),
            ),
        };
        metrics.put("rollout_is_max", f64::from(largest));
        metrics.put("rollout_is_min", f64::from(smallest));
        metrics.put("rollout_is_ratio_fraction_high", high);
        metrics.put("rollout_is_ratio_fraction_low", low);
        metrics.put("rollout_is_std", f64::from(clamped_std(&self.applied, 0.0, upper)));
        metrics.put("rollout_is_eff_sample_size", effective_sample_size(&self.applied, upper));
        if let Bounds::Zero { .. } = sampling.bounds {
            metrics.put("rollout_is_oob_ratio", share(&self.raw, |weight| weight < lower || weight > upper));
        }
    }
}

fn put_row_metrics(row_means: &[f32], bounds: Bounds, metrics: &mut Named) {
    let (upper, lower) = bounds.pair();
    metrics.put("rollout_is_seq_mean", f64::from(mean(row_means)));
    metrics.put("rollout_is_seq_std", f64::from(std(row_means)));
    metrics.put("rollout_is_seq_max", f64::from(max(row_means)));
    metrics.put("rollout_is_seq_min", f64::from(min(row_means)));
    let deviations: Vec<f32> = row_means.iter().map(|mean| (mean - 1.0).abs()).collect();
    metrics.put("rollout_is_seq_max_deviation", f64::from(max(&deviations)));
    metrics.put("rollout_is_seq_fraction_high", share(row_means, |mean| mean > upper));
    metrics.put("rollout_is_seq_fraction_low", share(row_means, |mean| mean < lower));
}

/// 1 / mean of (w / mean w)², as a share of the tokens: 1 when all weights are the same, 0 when all are 0.
fn effective_sample_size(weights: &[f32], upper: f32) -> f64 {
    let clamped = || weights.iter().map(|weight| weight.min(upper));
    let mean = masked_mean(clamped()) + 1e-8;
    let squares = masked_mean(clamped().map(|weight| (weight / mean) * (weight / mean)));
    if squares == 0.0 { 0.0 } else { 1.0 / f64::from(squares) }
}
