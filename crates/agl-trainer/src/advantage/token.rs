//! Estimators that give each token a number of its own, and whitening.

use super::{AdvantageError, AdvantageRow, AdvantageSettings, Advantages};
use crate::precision::Precision;

/// Generalised advantage estimation: δ_t = r_t + γ·V(t+1) − V(t), A_t = δ_t + γλ·A(t+1), then whitened over all sampled
/// tokens; returns are A + V before whitening. Tokens that were not sampled are passed over: what follows them is
/// taken as the next state. Always in single precision.
///
/// Source: <https://arxiv.org/abs/1506.02438>; verl `compute_gae_advantage_return`.
pub(super) fn gae(rows: &[AdvantageRow<'_>], settings: &AdvantageSettings) -> Result<Advantages, AdvantageError> {
    let mut out = Advantages::default();
    for (place, row) in rows.iter().enumerate() {
        let values = row.values.ok_or(AdvantageError::Missing { row: place, field: "values", estimator: "gae" })?;
        let (mut next_value, mut next_advantage) = (0.0, 0.0);
        let mut advantages = vec![0.0; values.len()];
        for t in (0..values.len()).rev() {
            if row.mask[t] {
                let delta = row.rewards[t] + settings.gamma * next_value - values[t];
                next_advantage = delta + settings.gamma * settings.lam * next_advantage;
                next_value = values[t];
            }
            advantages[t] = next_advantage;
        }
        out.returns.push(advantages.iter().zip(values).map(|(advantage, value)| advantage + value).collect());
        out.advantages.push(advantages);
    }
    whiten(&mut out.advantages, rows, Precision::F32, "gae")?;
    Ok(out)
}

/// REINFORCE++: discounted returns, started anew before each token that was not sampled, whitened over all sampled tokens.
///
/// Source: <https://arxiv.org/abs/2501.03262>; verl `compute_reinforce_plus_plus_outcome_advantage`.
pub(super) fn reinforce_plus_plus(
    rows: &[AdvantageRow<'_>],
    settings: &AdvantageSettings,
) -> Result<Advantages, AdvantageError> {
    let round = |value| settings.precision.round(value);
    let returns: Vec<Vec<f32>> = rows
        .iter()
        .map(|row| {
            let mut running = 0.0;
            let mut returns = vec![0.0; row.rewards.len()];
            for t in (0..returns.len()).rev() {
                returns[t] = round(row.rewards[t] + round(settings.gamma * running));
                running = if row.mask[t] { returns[t] } else { 0.0 };
            }
            returns
        })
        .collect();
    let mut advantages = returns.clone();
    whiten(&mut advantages, rows, settings.precision, "reinforce_plus_plus")?;
    clear_unsampled(&mut advantages, rows);
    Ok(Advantages { advantages, returns })
}

/// `ReMax`: reward to go minus the reward of the greedy response.
///
/// Source: <https://arxiv.org/abs/2310.10505>; verl `compute_remax_outcome_advantage`.
pub(super) fn remax(rows: &[AdvantageRow<'_>], precision: Precision) -> Result<Advantages, AdvantageError> {
    let mut out = Advantages::default();
    for (place, row) in rows.iter().enumerate() {
        let missing = AdvantageError::Missing { row: place, field: "reward_baseline", estimator: "remax" };
        let baseline = row.reward_baseline.ok_or(missing)?;
        let mut to_go = 0.0;
        let mut returns = vec![0.0; row.rewards.len()];
        for t in (0..returns.len()).rev() {
            to_go += if row.mask[t] { row.rewards[t] } else { 0.0 };
            returns[t] = precision.round(to_go);
        }
        let minus_baseline = |(value, sampled): (&f32, &bool)| if *sampled { value - baseline } else { *value };
        out.advantages.push(returns.iter().zip(row.mask).map(minus_baseline).collect());
        out.returns.push(returns);
    }
    Ok(out)
}

/// (v − mean)/√(var + 1e-8), mean and variance (with Bessel's correction) over all sampled tokens of all rows.
///
/// Source: verl `masked_whiten`.
pub(super) fn whiten(
    values: &mut [Vec<f32>],
    rows: &[AdvantageRow<'_>],
    precision: Precision,
    estimator: &'static str,
) -> Result<(), AdvantageError> {
    let sampled = |values: &[Vec<f32>]| -> Vec<f32> {
        let tokens = values.iter().zip(rows).flat_map(|(values, row)| values.iter().zip(row.mask));
        tokens.filter(|(_, sampled)| **sampled).map(|(value, _)| *value).collect()
    };
    let tokens = sampled(values);
    let count = tokens.len() as f32;
    if tokens.len() < 2 {
        return Err(AdvantageError::TooFewTokens { estimator, tokens: tokens.len() });
    }
    // torch subtracts the mean as a number of the tensor's format, but multiplies by the scale in single precision.
    let mean = precision.round(precision.sum(tokens.iter().copied()) / (count + 1e-8));
    let square = |value: &f32| {
        let centred = precision.round(value - mean);
        precision.round(centred * centred)
    };
    let variance = precision.sum(tokens.iter().map(square)) / (count + 1e-8) * (count / (count - 1.0));
    let scale = 1.0 / (variance + 1e-8).sqrt();
    for value in values.iter_mut().flatten() {
        *value = precision.round(precision.round(*value - mean) * scale);
    }
    Ok(())
}

/// 0 where no token was sampled.
pub(super) fn clear_unsampled(values: &mut [Vec<f32>], rows: &[AdvantageRow<'_>]) {
    for (value, sampled) in values.iter_mut().zip(rows).flat_map(|(values, row)| values.iter_mut().zip(row.mask)) {
        if !sampled {
            *value = 0.0;
        }
    }
}
