//! Estimates of the KL divergence from a reference policy, token by token: as a penalty in the rewards, or in the loss.

use std::str::FromStr;

use crate::metrics::Metrics;

/// Which estimate (verl: `kl_loss_type`, `kl_penalty`), with d = log p − log `p_ref`. See <http://joschu.net/blog/kl-approx.html>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KlEstimate {
    /// k1: d. Unbiased; its gradient is not that of the divergence.
    K1,
    /// |d|.
    Abs,
    /// k2: d²/2. Biased; its gradient is that of the divergence.
    K2,
    /// k3: e^−d + d − 1, d within ±20, the whole within ±10. Unbiased, never negative; its gradient is not that of the
    /// divergence.
    K3,
}

/// An estimate, and the one whose gradient it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KlPenalty {
    /// What the value is.
    pub value: KlEstimate,
    /// What the gradient is taken of; k2 for names that end in `+` (straight through).
    pub gradient: KlEstimate,
}

/// A name that is none of verl's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown KL penalty `{0}`: use kl, k1, abs, mse, k2, low_var_kl or k3, with + for the gradient of k2")]
pub struct UnknownKlPenalty(pub String);

impl FromStr for KlPenalty {
    type Err = UnknownKlPenalty;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let value = match name.strip_suffix('+').unwrap_or(name) {
            "kl" | "k1" => KlEstimate::K1,
            "abs" => KlEstimate::Abs,
            "mse" | "k2" => KlEstimate::K2,
            "low_var_kl" | "k3" => KlEstimate::K3,
            _ => return Err(UnknownKlPenalty(name.to_owned())),
        };
        Ok(Self { value, gradient: if name.ends_with('+') { KlEstimate::K2 } else { value } })
    }
}

impl KlPenalty {
    /// The estimate for one token, and d estimate / d log p.
    ///
    /// Source: verl `kl_penalty`.
    pub fn of(self, log_prob: f32, ref_log_prob: f32) -> (f32, f32) {
        (self.value.of(log_prob, ref_log_prob).0, self.gradient.of(log_prob, ref_log_prob).1)
    }
}

impl KlEstimate {
    fn of(self, log_prob: f32, ref_log_prob: f32) -> (f32, f32) {
        let difference = log_prob - ref_log_prob;
        match self {
            Self::K1 => (difference, 1.0),
            Self::Abs => (difference.abs(), if difference == 0.0 { 0.0 } else { difference.signum() }),
            Self::K2 => (0.5 * difference * difference, difference),
            Self::K3 => {
                let negated = (ref_log_prob - log_prob).clamp(-20.0, 20.0);
                let ratio = negated.exp();
                let estimate = ratio - negated - 1.0;
                let inside = difference.abs() <= 20.0 && estimate.abs() <= 10.0;
                (estimate.clamp(-10.0, 10.0), if inside { 1.0 - ratio } else { 0.0 })
            }
        }
    }
}

/// How the coefficient of the KL penalty changes with what is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KlController {
    /// It stays.
    Fixed {
        /// The coefficient.
        coefficient: f64,
    },
    /// It follows the measured divergence towards a target (<https://arxiv.org/abs/1909.08593>).
    Adaptive {
        /// The coefficient now.
        coefficient: f64,
        /// The divergence that is aimed at.
        target: f64,
        /// How slowly it changes, in steps.
        horizon: f64,
    },
}

impl KlController {
    /// The coefficient now.
    pub fn coefficient(&self) -> f64 {
        match self {
            Self::Fixed { coefficient } | Self::Adaptive { coefficient, .. } => *coefficient,
        }
    }

    /// After `steps` (verl: the rows of a batch) in which `kl` was measured: coefficient · (1 + clip(kl/target − 1, ±0.2) ·
    /// steps/horizon).
    ///
    /// Source: verl `AdaptiveKLController.update`.
    pub fn update(&mut self, kl: f64, steps: usize) {
        if let Self::Adaptive { coefficient, target, horizon } = self {
            let error = (kl / *target - 1.0).clamp(-0.2, 0.2);
            *coefficient *= 1.0 + error * steps as f64 / *horizon;
        }
    }
}

/// What the penalty in the rewards needs of one row; each slice has one number per response token.
#[derive(Clone, Copy, Debug)]
pub struct KlRow<'a> {
    /// Rewards before the penalty (verl: `token_level_scores`).
    pub scores: &'a [f32],
    /// Log-probabilities under the policy.
    pub log_probs: &'a [f32],
    /// Log-probabilities under the reference policy.
    pub ref_log_probs: &'a [f32],
    /// Whether the token was sampled.
    pub mask: &'a [bool],
}

/// A row whose slices are not one per token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {row}: scores, log_probs, ref_log_probs and mask have {lengths:?} entries; each needs one per token")]
pub struct KlShapeError {
    /// Place of the row.
    pub row: usize,
    /// Lengths of scores, log-probabilities, reference log-probabilities and mask.
    pub lengths: [usize; 4],
}

/// Rewards minus coefficient · KL on each sampled token, and the controller moved on by what was measured: the mean over
/// rows of the mean over their tokens.
///
/// Source: verl `apply_kl_penalty`.
pub fn penalise_rewards(
    rows: &[KlRow<'_>],
    penalty: KlPenalty,
    controller: &mut KlController,
) -> Result<(Vec<Vec<f32>>, Metrics), KlShapeError> {
    let coefficient = controller.coefficient();
    let mut row_means = Vec::with_capacity(rows.len());
    let mut rewards = Vec::with_capacity(rows.len());
    for (place, row) in rows.iter().enumerate() {
        let lengths = [row.scores.len(), row.log_probs.len(), row.ref_log_probs.len(), row.mask.len()];
        if lengths != [row.mask.len(); 4] {
            return Err(KlShapeError { row: place, lengths });
        }
        let (mut sum, mut tokens) = (0.0_f64, 0_usize);
        let mut of_row = row.scores.to_vec();
        for t in (0..row.mask.len()).filter(|t| row.mask[*t]) {
            let kl = penalty.of(row.log_probs[t], row.ref_log_probs[t]).0;
            of_row[t] -= coefficient as f32 * kl;
            sum += f64::from(kl);
            tokens += 1;
        }
        row_means.push(sum / f64::from(tokens as f32 + 1e-8));
        rewards.push(of_row);
    }
    let kl = row_means.iter().sum::<f64>() / row_means.len() as f64;
    controller.update(kl, rows.len());
    let metrics = Metrics::from([("actor/reward_kl_penalty", kl), ("actor/reward_kl_penalty_coeff", coefficient)]);
    Ok((rewards, metrics))
}
