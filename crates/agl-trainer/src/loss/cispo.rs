//! CISPO: importance weights clipped and held constant, so that clipped tokens keep their gradient.

use super::token::{TokenLoss, sum_over_tokens};
use super::{LossRow, LossSettings, PolicyLoss};

/// −clip(ρ, 1 − ε_low, 1 + ε_high)·A·log p, with the clipped ratio as a constant.
///
/// Sources: <https://arxiv.org/abs/2506.13585>; verl `compute_policy_loss_cispo`, the original's
/// `compute_policy_loss_cispo_per_rollout_mean`.
pub(super) fn cispo(rows: &[LossRow<'_>], row_weights: &[f32], settings: &LossSettings) -> PolicyLoss {
    sum_over_tokens(rows, row_weights, |token| {
        let ratio = token.log_ratio.exp();
        let (low, high) = (1.0 - settings.clip_ratio_low, 1.0 + settings.clip_ratio_high);
        let d_log_prob = -ratio.clamp(low, high) * token.advantage;
        TokenLoss {
            loss: d_log_prob * token.log_prob,
            d_log_prob,
            clipped: !(low..=high).contains(&ratio),
            clipped_lower: false,
        }
    })
}
