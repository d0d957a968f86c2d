//! Losses that are a sum over tokens: one driver that weighs, adds up and counts.

use super::{LossRow, PolicyLoss};

/// One trained token.
#[derive(Clone, Copy)]
pub(super) struct Token {
    /// Log-probability under the present policy.
    pub(super) log_prob: f32,
    /// log-probability − old log-probability, clamped to ±20 so that the ratio stays finite.
    pub(super) log_ratio: f32,
    /// d `log_ratio` / d log-probability: 0 where it was clamped.
    pub(super) d_log_ratio: f32,
    /// The advantage.
    pub(super) advantage: f32,
}

/// The loss of one token before weights.
#[derive(Clone, Copy, Default)]
pub(super) struct TokenLoss {
    pub(super) loss: f32,
    pub(super) d_log_prob: f32,
    /// Its gradient is cut off, or its ratio was clipped.
    pub(super) clipped: bool,
    /// It is at the bound of dual clip.
    pub(super) clipped_lower: bool,
}

/// Σ over rows of weight · Σ over trained tokens of loss · importance weight.
///
/// Sums are in double precision: rows may have tens of thousands of tokens.
pub(super) fn sum_over_tokens(
    rows: &[LossRow<'_>],
    row_weights: &[f32],
    mut token_loss: impl FnMut(Token) -> TokenLoss,
) -> PolicyLoss {
    let mut out = PolicyLoss { d_log_probs: Vec::with_capacity(rows.len()), ..PolicyLoss::default() };
    let (mut loss, mut kl, mut clipped, mut clipped_lower) = (0.0_f64, 0.0_f64, 0_usize, 0_usize);
    for (row, weight) in rows.iter().zip(row_weights) {
        let mut d_log_probs = vec![0.0; row.mask.len()];
        for t in (0..row.mask.len()).filter(|t| row.mask[*t]) {
            let difference = row.log_probs[t] - row.old_log_probs[t];
            let token = Token {
                log_prob: row.log_probs[t],
                log_ratio: difference.clamp(-20.0, 20.0),
                d_log_ratio: if (-20.0..=20.0).contains(&difference) { 1.0 } else { 0.0 },
                advantage: row.advantages[t],
            };
            let of_token = token_loss(token);
            let importance = row.rollout_is_weights.map_or(1.0, |weights| weights[t]);
            loss += f64::from(of_token.loss * importance) * f64::from(*weight);
            d_log_probs[t] = of_token.d_log_prob * importance * weight;
            kl -= f64::from(token.log_ratio);
            clipped += usize::from(of_token.clipped);
            clipped_lower += usize::from(of_token.clipped_lower);
            out.tokens += 1;
        }
        out.d_log_probs.push(d_log_probs);
    }
    // verl's `masked_mean` adds 1e-8 to the count in single precision, which changes it only when it is 0.
    let count = (out.tokens as f32 + 1e-8) as f64;
    out.loss = loss as f32;
    out.metrics.insert("actor/ppo_kl", kl / count);
    out.metrics.insert("actor/pg_clipfrac", clipped as f64 / count);
    out.metrics.insert("actor/pg_clipfrac_lower", clipped_lower as f64 / count);
    out
}
