//! How far the two policies are apart.

use super::stats::{SAFETY_BOUND, masked_mean, max, mean, min};
use super::{CorrectionRow, Named};

/// Perplexities, KL estimates and χ² divergences.
///
/// Source: verl `compute_offpolicy_metrics`. Rows without a sampled token count there with a log-probability of 0.
pub(super) fn diagnose(rows: &[CorrectionRow<'_>], metrics: &mut Named) {
    let log_ratios = || rows.iter().flat_map(|row| row.log_ratios().map(|(_, d)| d));
    let mean_of = |pick: for<'a> fn(&CorrectionRow<'a>) -> &'a [f32]| -> Vec<f32> {
        let of_row = |row: &CorrectionRow<'_>| {
            masked_mean(pick(row).iter().zip(row.mask).filter(|(_, sampled)| **sampled).map(|(value, _)| *value))
        };
        rows.iter().map(of_row).collect()
    };
    let (training, rollout) = (mean_of(|row| row.log_probs), mean_of(|row| row.rollout_log_probs));
    let mut put = |name: &str, value: f32| metrics.put(name, f64::from(value));
    let mean_map =
        |values: &[f32], f: fn(f32) -> f32| mean(&values.iter().map(|value| f(*value)).collect::<Vec<f32>>());

    put("training_ppl", mean_map(&training, |value| (-value).exp()));
    put("training_log_ppl", mean_map(&training, |value| -value));
    put("rollout_ppl", mean_map(&rollout, |value| (-value).exp()));
    put("rollout_log_ppl", mean_map(&rollout, |value| -value));
    put("kl", masked_mean(log_ratios().map(|d| -d)));
    put("k3_kl", masked_mean(log_ratios().map(|d| d.exp() - d - 1.0)));

    let differences: Vec<f32> = rollout.iter().zip(&training).map(|(rollout, training)| rollout - training).collect();
    put("log_ppl_diff", mean(&differences));
    put("log_ppl_abs_diff", mean_map(&differences, f32::abs));
    put("log_ppl_diff_max", max(&differences));
    put("log_ppl_diff_min", min(&differences));
    put("ppl_ratio", mean_map(&differences, f32::exp));

    let squared = |d: f32| {
        let ratio = d.clamp(-SAFETY_BOUND, SAFETY_BOUND).exp();
        ratio * ratio
    };
    put("chi2_token", masked_mean(log_ratios().map(squared)) - 1.0);
    let of_row = |row: &CorrectionRow<'_>| {
        let sum = row.log_ratios().map(|(_, d)| f64::from(d)).sum::<f64>() as f32;
        (2.0 * sum.clamp(-SAFETY_BOUND, SAFETY_BOUND)).exp()
    };
    put("chi2_seq", mean(&rows.iter().map(of_row).collect::<Vec<f32>>()) - 1.0);
}
