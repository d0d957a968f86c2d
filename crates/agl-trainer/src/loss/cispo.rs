//! Losses whose importance weight is a constant, so that all gradient flows through log p.

use super::token::{TokenLoss, sum_over_tokens};
use super::{LossRow, LossSettings, PolicyLoss};

/// CISPO: −clip(ρ, 1 − ε_low, 1 + ε_high)·A·log p, with the clipped ratio as a constant: clipped tokens keep their gradient.
///
/// Sources: <https://arxiv.org/abs/2506.13585>; verl `compute_policy_loss_cispo`, the original's
/// `compute_policy_loss_cispo_per_rollout_mean`.
pub(super) fn cispo(rows: &[LossRow<'_>], row_weights: &[f32], settings: &LossSettings) -> PolicyLoss {
    let (low, high) = (1.0 - settings.clip_ratio_low, 1.0 + settings.clip_ratio_high);
    sum_over_tokens(rows, row_weights, |token| {
        let log_ratio = token.clamped_log_ratio();
        let ratio = log_ratio.exp();
        let d_log_prob = -ratio.clamp(low, high) * token.advantage;
        TokenLoss {
            loss: d_log_prob * token.log_prob,
            d_log_prob,
            kl: -log_ratio,
            clipped: !(low..=high).contains(&ratio),
            clipped_lower: false,
        }
    })
}

/// −A·log p: GPG, and REINFORCE where importance weights are given.
///
/// Sources: <https://arxiv.org/abs/2504.02546>; verl `compute_policy_loss_gpg`, `compute_policy_loss_reinforce`.
pub(super) fn reinforce(rows: &[LossRow<'_>], row_weights: &[f32]) -> PolicyLoss {
    let mut loss = sum_over_tokens(rows, row_weights, |token| TokenLoss {
        loss: -token.advantage * token.log_prob,
        d_log_prob: -token.advantage,
        kl: -token.log_ratio(),
        ..TokenLoss::default()
    });
    loss.metrics.retain(|name, _| *name == "actor/ppo_kl");
    loss
}

/// How far a token's probability has moved, in the sense that DPPO bounds.
#[derive(Clone, Copy)]
pub(super) enum Divergence {
    /// Difference of the probabilities.
    TotalVariation,
    /// KL divergence of the two-outcome distributions {this token, any other}.
    BinaryKl,
}

/// DPPO: −A·min(ρ, c)·log p with the ratio as a constant, and nothing where an update would push a token further that has
/// already moved by more than `clip_ratio_high` (A > 0) or `clip_ratio_low`: these are divergences here, not ratios.
///
/// Sources: <https://arxiv.org/abs/2602.04879>; verl `compute_policy_loss_dppo_tv`, `compute_policy_loss_dppo_kl`.
pub(super) fn dppo(
    rows: &[LossRow<'_>],
    row_weights: &[f32],
    settings: &LossSettings,
    divergence: Divergence,
) -> PolicyLoss {
    sum_over_tokens(rows, row_weights, |token| {
        let log_ratio = token.clamped_log_ratio();
        let ratio = log_ratio.exp();
        let (prob, old_prob) = (token.log_prob.exp(), token.old_log_prob.exp());
        let may_move = match (divergence, token.advantage > 0.0) {
            (Divergence::TotalVariation, true) => prob - old_prob <= settings.clip_ratio_high,
            (Divergence::TotalVariation, false) => prob - old_prob >= -settings.clip_ratio_low,
            (Divergence::BinaryKl, up) => {
                let others = (1.0 - old_prob) * ((1.0 - old_prob + 1e-8) / (1.0 - prob + 1e-8)).ln();
                let kl = old_prob * (token.old_log_prob - token.log_prob) + others;
                if up {
                    kl <= settings.clip_ratio_high || prob <= old_prob
                } else {
                    kl <= settings.clip_ratio_low || prob >= old_prob
                }
            }
        };
        let d_log_prob = if may_move { -token.advantage * ratio.min(settings.clip_ratio_c) } else { 0.0 };
        TokenLoss {
            loss: d_log_prob * token.log_prob,
            d_log_prob,
            kl: -log_ratio,
            clipped: !may_move,
            clipped_lower: may_move && ratio > settings.clip_ratio_c,
        }
    })
}
