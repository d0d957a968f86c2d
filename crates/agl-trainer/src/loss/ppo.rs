//! Clipped PPO with dual clip, a token at a time or a row at a time.

use super::token::{TokenLoss, sum_over_tokens, trained_tokens};
use super::{LossRow, LossSettings, PolicyLoss};

/// With ratio ρ = exp(log p − log p_old): max(−A·ρ, −A·clip(ρ, 1 − ε_low, 1 + ε_high)), and no more than −A·c where A < 0.
///
/// Sources: <https://arxiv.org/abs/1707.06347>, <https://arxiv.org/abs/1912.09729>; verl `compute_policy_loss_vanilla`, the
/// original's `compute_policy_loss_per_rollout_mean`.
pub(super) fn clipped(rows: &[LossRow<'_>], row_weights: &[f32], settings: &LossSettings) -> PolicyLoss {
    sum_over_tokens(rows, row_weights, |token| {
        let log_ratio = token.clamped_log_ratio();
        let of_token = clipped_token(token.advantage, log_ratio.exp(), settings);
        let bound = -token.advantage * settings.clip_ratio_c;
        let at_bound = of_token.loss > bound && token.advantage < 0.0;
        TokenLoss {
            loss: if at_bound { bound } else { of_token.loss },
            d_log_prob: if at_bound { 0.0 } else { of_token.d_log_prob * token.d_clamped_log_ratio() },
            kl: -log_ratio,
            clipped_lower: at_bound,
            ..of_token
        }
    })
}

/// GSPO: one ratio a row, s = exp(mean over its tokens of log ρ), at most e¹⁰; clipped as in PPO. The gradient of log s is
/// taken to be that of each token's own log p.
///
/// Sources: <https://arxiv.org/abs/2507.18071>; verl `compute_policy_loss_gspo`.
pub(super) fn gspo(rows: &[LossRow<'_>], row_weights: &[f32], settings: &LossSettings) -> PolicyLoss {
    let mut log_ratios = vec![(0.0_f64, 0_usize); rows.len()];
    for token in trained_tokens(rows) {
        let (sum, tokens) = &mut log_ratios[token.row];
        *sum += f64::from(token.log_ratio());
        *tokens += 1;
    }
    let of_rows: Vec<f32> = log_ratios.iter().map(|(sum, tokens)| (sum / (*tokens).max(1) as f64) as f32).collect();
    sum_over_tokens(rows, row_weights, |token| {
        let log_ratio = of_rows[token.row];
        let mut of_token = clipped_token(token.advantage, log_ratio.min(10.0).exp(), settings);
        if log_ratio > 10.0 {
            of_token.d_log_prob = 0.0;
        }
        TokenLoss { kl: -token.log_ratio(), ..of_token }
    })
}

/// PPO's clipped surrogate and its derivative by log ρ.
pub(super) fn clipped_token(advantage: f32, ratio: f32, settings: &LossSettings) -> TokenLoss {
    let plain = -advantage * ratio;
    let clipped = -advantage * ratio.clamp(1.0 - settings.clip_ratio_low, 1.0 + settings.clip_ratio_high);
    TokenLoss {
        loss: plain.max(clipped),
        // Inside the clip range both are the same; outside, the clipped one is constant.
        d_log_prob: if plain >= clipped { plain } else { 0.0 },
        clipped: clipped > plain,
        ..TokenLoss::default()
    }
}
