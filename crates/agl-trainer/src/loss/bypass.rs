//! Training against the log-probabilities recorded when the tokens were sampled, without scoring them once more first.

use super::{LossError, LossMode, LossRow, LossSettings, PolicyLoss, cispo, policy_loss};
use crate::correction::{Correction, CorrectionError, CorrectionMetrics, CorrectionRow, correct};

/// What makes up for the policy that sampled being another one (verl: `rollout_correction.loss_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BypassLoss {
    /// The ratio and clip of PPO; importance weights are reported and not applied, since the ratio is one already.
    #[default]
    PpoClip,
    /// REINFORCE with importance weights.
    Reinforce,
}

/// Why a bypass loss can't be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BypassError {
    /// Nothing to correct.
    #[error(transparent)]
    Correction(#[from] CorrectionError),
    /// No loss.
    #[error(transparent)]
    Loss(#[from] LossError),
}

/// The loss of rows whose `old_log_probs` are those recorded at sampling: corrected, rejected tokens left out.
///
/// Source: verl `compute_policy_loss_bypass_mode`.
pub fn bypass_loss(
    rows: &[LossRow<'_>],
    kind: BypassLoss,
    correction: &Correction,
    settings: &LossSettings,
) -> Result<(PolicyLoss, CorrectionMetrics), BypassError> {
    let views: Vec<CorrectionRow<'_>> = rows
        .iter()
        .map(|row| CorrectionRow { log_probs: row.log_probs, rollout_log_probs: row.old_log_probs, mask: row.mask })
        .collect();
    let corrected = correct(&views, correction)?;
    let weights = corrected.weights.as_ref().filter(|_| kind == BypassLoss::Reinforce);
    let kept: Vec<LossRow<'_>> = rows
        .iter()
        .enumerate()
        .map(|(place, row)| LossRow {
            mask: &corrected.masks[place],
            rollout_is_weights: weights.map(|weights| weights[place].as_slice()),
            ..*row
        })
        .collect();
    let loss = match kind {
        BypassLoss::PpoClip => policy_loss(&kept, &LossSettings { mode: LossMode::Vanilla, ..*settings })?,
        BypassLoss::Reinforce => cispo::reinforce(&kept, &settings.aggregated(&kept)?),
    };
    Ok((loss, corrected.metrics))
}
