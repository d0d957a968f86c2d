//! Rejection: tokens or whole rows that the two policies disagree on by too much are not trained on.

use super::settings::{Criterion, Divergence, Scope};
use super::stats::{SAFETY_BOUND, clamped_std, masked_mean, max, mean, min, share, std};
use super::{CorrectionRow, Named};

/// The masks without what any criterion rejects.
///
/// Source: verl `compute_rollout_rejection_mask`, `compute_rs_metrics`.
pub(super) fn reject(rows: &[CorrectionRow<'_>], criteria: &[Criterion], metrics: &mut Named) -> Vec<Vec<bool>> {
    let mut masks: Vec<Vec<bool>> = rows.iter().map(|row| row.mask.to_vec()).collect();
    for criterion in criteria {
        let measured = Measured::new(rows, *criterion);
        measured.put_metrics(metrics);
        for (row, values) in measured.tokens.iter().enumerate() {
            for (place, value) in values {
                masks[row][*place] &= criterion.passes(*value);
            }
        }
    }
    let kept = |row: usize| masks[row].iter().filter(|kept| **kept).count();
    let sampled: usize = rows.iter().map(CorrectionRow::sampled_tokens).sum();
    let all_kept: usize = (0..rows.len()).map(kept).sum();
    let touched = (0..rows.len()).filter(|row| kept(*row) < rows[*row].sampled_tokens()).count();
    metrics.put("rollout_rs_masked_fraction", (sampled - all_kept) as f64 / sampled as f64);
    metrics.put("rollout_rs_seq_masked_fraction", touched as f64 / rows.len() as f64);
    masks
}

impl Criterion {
    fn passes(&self, value: f32) -> bool {
        self.lower.is_none_or(|lower| value >= lower as f32) && value <= self.upper as f32
    }
}

impl Divergence {
    fn of(self, log_ratio: f32) -> f32 {
        let d = log_ratio.clamp(-SAFETY_BOUND, SAFETY_BOUND);
        match self {
            Self::K1 => -d,
            Self::K2 => 0.5 * (d * d),
            Self::K3 => d.exp() - 1.0 - d,
        }
    }
}

/// A criterion's measure of a batch.
struct Measured {
    criterion: Criterion,
    /// For each row: (place, measure) of each sampled token. Where rows are measured, their tokens all have the row's.
    tokens: Vec<Vec<(usize, f32)>>,
    /// The measure of each row that has a sampled token: its mean where tokens are measured.
    rows: Vec<f32>,
}

impl Measured {
    fn new(rows: &[CorrectionRow<'_>], criterion: Criterion) -> Self {
        let mut measured = Self { criterion, tokens: Vec::with_capacity(rows.len()), rows: Vec::new() };
        for row in rows {
            let mut tokens: Vec<(usize, f32)> =
                row.log_ratios().map(|(place, d)| (place, criterion.divergence.of(d))).collect();
            if !tokens.is_empty() {
                let values: Vec<f32> = tokens.iter().map(|(_, value)| *value).collect();
                let of_row = match criterion.scope {
                    Scope::SequenceSum => values.iter().copied().map(f64::from).sum::<f64>() as f32,
                    Scope::SequenceMax => max(&values),
                    Scope::SequenceMean | Scope::Token => masked_mean(values.iter().copied()),
                };
                measured.rows.push(of_row);
                if criterion.scope != Scope::Token {
                    for (_, value) in &mut tokens {
                        *value = of_row;
                    }
                }
            }
            measured.tokens.push(tokens);
        }
        measured
    }

    fn put_metrics(&self, metrics: &mut Named) {
        let Criterion { lower, upper, .. } = self.criterion;
        let (lower, upper) = (lower.map(|lower| lower as f32), upper as f32);
        let tokens: Vec<f32> = self.tokens.iter().flatten().map(|(_, value)| *value).collect();
        let looked_at = if self.criterion.scope == Scope::Token { &tokens } else { &self.rows };
        let below = |values: &[f32]| lower.map(|lower| share(values, |value| value < lower));
        let failing = |values: &[(usize, f32)]| values.iter().any(|(_, value)| !self.criterion.passes(*value));

        let mut put =
            |name: &str, value: f64| metrics.put(&format!("rollout_rs_{}_{name}", self.criterion.name()), value);
        put("mean", f64::from(masked_mean(tokens.iter().copied())));
        put("max", f64::from(max(looked_at)));
        put("min", f64::from(min(looked_at)));
        put("fraction_high", share(looked_at, |value| value > upper));
        put("fraction_low", below(looked_at).unwrap_or(0.0));
        put("std", f64::from(clamped_std(&tokens, lower.unwrap_or(0.0), upper)));
        put("seq_mean", f64::from(mean(&self.rows)));
        put("seq_std", f64::from(std(&self.rows)));
        put("seq_max", f64::from(max(&self.rows)));
        put("seq_min", f64::from(min(&self.rows)));
        let deviations: Vec<f32> = self.rows.iter().map(|value| value.abs()).collect();
        put("seq_max_deviation", f64::from(max(&deviations)));
        put("seq_fraction_high", share(&self.rows, |value| value > upper));
        if let Some(share) = below(&self.rows) {
            put("seq_fraction_low", share);
        }
        put("masked_fraction", share(&tokens, |value| !self.criterion.passes(value)));
        let failing_rows = self.tokens.iter().filter(|values| failing(values)).count();
        put("seq_masked_fraction", failing_rows as f64 / self.rows.len() as f64);
    }
}
