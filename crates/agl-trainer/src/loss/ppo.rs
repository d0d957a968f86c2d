//! Clipped PPO with dual clip.

use super::token::{Token, TokenLoss, sum_over_tokens};
use super::{LossError, LossRow, LossSettings, PolicyLoss};

/// With ratio ρ = exp(log p − log p_old): max(−A·ρ, −A·clip(ρ, 1 − ε_low, 1 + ε_high)), and no more than −A·c where A < 0.
///
/// Sources: <https://arxiv.org/abs/1707.06347>, <https://arxiv.org/abs/1912.09729>; verl `compute_policy_loss_vanilla`, the
/// original's `compute_policy_loss_per_rollout_mean`.
pub(super) fn clipped(
    rows: &[LossRow<'_>],
    row_weights: &[f32],
    settings: &LossSettings,
) -> Result<PolicyLoss, LossError> {
    if settings.clip_ratio_c <= 1.0 || settings.clip_ratio_c.is_nan() {
        return Err(LossError::Setting {
            name: "clip_ratio_c",
            rule: "greater than 1.0",
            value: settings.clip_ratio_c,
        });
    }
    Ok(sum_over_tokens(rows, row_weights, |token| token_loss(token, settings)))
}

fn token_loss(token: Token, settings: &LossSettings) -> TokenLoss {
    let advantage = token.advantage;
    let ratio = token.log_ratio.exp();
    let plain = -advantage * ratio;
    let clipped = -advantage * ratio.clamp(1.0 - settings.clip_ratio_low, 1.0 + settings.clip_ratio_high);
    let bound = -advantage * settings.clip_ratio_c;

    let loss = plain.max(clipped);
    let at_bound = loss > bound && advantage < 0.0;
    // Inside the clip range both are the same; outside, the clipped one is constant.
    let follows_ratio = plain >= clipped && !at_bound;
    TokenLoss {
        loss: if at_bound { bound } else { loss },
        d_log_prob: if follows_ratio { plain * token.d_log_ratio } else { 0.0 },
        clipped: clipped > plain,
        clipped_lower: at_bound,
    }
}
