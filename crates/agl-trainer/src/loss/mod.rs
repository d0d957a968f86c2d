//! Advantages to a loss, and its gradient with respect to each log-probability.
//!
//! The engine that holds the weights knows how its log-probabilities depend on them; all it needs from here is
//! d loss / d log-probability. Functions work on ragged rows; positions where the mask is `false` contribute nothing, so a
//! padded batch gives the same numbers.
//!
//! Formulas and names are those of verl's `POLICY_LOSS_REGISTRY` and of the original's `per_rollout_loss.py`.

mod aggregate;
mod bypass;
mod cispo;
mod covariance;
mod normalize;
mod ppo;
mod soft;
mod token;

pub use aggregate::{GlobalBatch, LossAggregation, aggregate_loss};
pub use bypass::{BypassError, BypassLoss, bypass_loss};
pub use normalize::normalize_advantages_by_rollout;

use serde::{Deserialize, Serialize};

use crate::metrics::Metrics;
use cispo::Divergence;
use covariance::CovarianceBand;

/// What a loss needs of one row; each slice has one number per response token.
#[derive(Clone, Copy, Debug)]
pub struct LossRow<'a> {
    /// Log-probabilities under the policy that the update started from.
    pub old_log_probs: &'a [f32],
    /// Log-probabilities under the present policy.
    pub log_probs: &'a [f32],
    /// Advantages.
    pub advantages: &'a [f32],
    /// Whether the token was sampled, and so is trained on.
    pub mask: &'a [bool],
    /// Importance weights of rollout correction, if any.
    pub rollout_is_weights: Option<&'a [f32]>,
}

/// A loss, its gradient, and what is told of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyLoss {
    /// The loss.
    pub loss: f32,
    /// d loss / d log-probability, one per response token of each row; 0 where the mask is `false`.
    pub d_log_probs: Vec<Vec<f32>>,
    /// verl's `actor/*` metrics, each a mean over the tokens that are trained on.
    pub metrics: Metrics,
    /// How many tokens that are: the weight of these metrics when those of several batches are averaged.
    pub tokens: usize,
}

/// Which loss (verl: `actor.policy_loss.loss_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossMode {
    /// Clipped PPO summed over tokens; the advantages carry the weights, see [`normalize_advantages_by_rollout`].
    #[default]
    PerRolloutMean,
    /// CISPO summed likewise.
    CispoPerRolloutMean,
    /// Clipped PPO with dual clip.
    Vanilla,
    /// Clipped importance weights as constants on log p.
    Cispo,
    /// Clipped PPO with one ratio a row. Always aggregated as [`LossAggregation::SeqMeanTokenMean`].
    Gspo,
    /// A smooth gate in place of the clip. Always aggregated as [`LossAggregation::SeqMeanTokenMean`].
    Sapo {
        /// Steepness of the gate for positive advantages (verl's default: 1).
        tau_pos: f32,
        /// Steepness for the others (verl's default: 1.05).
        tau_neg: f32,
    },
    /// Advantage times log p, with no ratio.
    Gpg,
    /// A trust region on the probability of each token; `clip_ratio_*` bound the difference of probabilities.
    DppoTv,
    /// The same; `clip_ratio_*` bound the KL divergence of {this token, any other}.
    DppoKl,
    /// Clipped PPO without a few tokens of high covariance.
    ClipCov {
        /// Share of tokens that are left out (verl's default: 0.0002).
        ratio: f32,
        /// Lower bound of their covariance (verl's default: 1).
        lower: f32,
        /// Upper bound of their covariance (verl's default: 5).
        upper: f32,
        /// Decides which, where there are more.
        seed: u64,
    },
    /// Unclipped, with a KL penalty on the tokens of highest covariance.
    KlCov {
        /// Share of tokens that get it (verl's default: 0.0002).
        ratio: f32,
        /// Its coefficient (verl's default: 0.1).
        coefficient: f32,
    },
    /// The geometric mean of a row's ratios. A mean over rows, whatever the aggregation.
    GeoMean,
}

/// Settings of the losses (verl: `actor.*`, with `clip_ratio` as the default of low and high).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossSettings {
    /// Which loss.
    pub mode: LossMode,
    /// How token losses become one number. The per-rollout losses sum, and ignore it.
    pub aggregation: LossAggregation,
    /// How far the ratio may fall below 1 before it is clipped.
    pub clip_ratio_low: f32,
    /// How far the ratio may rise above 1 before it is clipped; above `clip_ratio_low` is DAPO's clip-higher
    /// (<https://arxiv.org/abs/2503.14476>).
    pub clip_ratio_high: f32,
    /// Bound of the loss where the advantage is negative, in units of it (dual clip, <https://arxiv.org/abs/1912.09729>).
    pub clip_ratio_c: f32,
    /// What the batch is part of.
    pub global_batch: GlobalBatch,
}

impl Default for LossSettings {
    fn default() -> Self {
        Self {
            mode: LossMode::default(),
            aggregation: LossAggregation::default(),
            clip_ratio_low: 0.2,
            clip_ratio_high: 0.2,
            clip_ratio_c: 3.0,
            global_batch: GlobalBatch::default(),
        }
    }
}

/// Why a loss can't be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LossError {
    /// A row's slices are not one per token.
    #[error("row {row}: {field} has {found} numbers for a mask of {tokens} tokens")]
    Shape {
        /// Place of the row.
        row: usize,
        /// Which of its fields.
        field: &'static str,
        /// How many it has.
        found: usize,
        /// How many it should have.
        tokens: usize,
    },
    /// Per-row arguments are not one per row.
    #[error("{field} has {found} entries for {rows} rows")]
    Rows {
        /// Which argument.
        field: &'static str,
        /// How many it has.
        found: usize,
        /// How many it should have.
        rows: usize,
    },
    /// A setting can't be meant.
    #[error("{name} must be {rule}, got {value}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What is allowed.
        rule: &'static str,
        /// Its value.
        value: f32,
    },
    /// Rows are split over several workers, and nobody said how much there is in all.
    #[error("global_batch.{field} is required when dp_size > 1")]
    GlobalBatch {
        /// The missing number.
        field: &'static str,
    },
}

/// The loss of a batch of rows.
///
/// Source: verl `get_policy_loss_fn(loss_mode)`; the formula is at each mode's function.
pub fn policy_loss(rows: &[LossRow<'_>], settings: &LossSettings) -> Result<PolicyLoss, LossError> {
    check_shapes(rows)?;
    settings.check()?;
    let by_sequence = || LossSettings { aggregation: LossAggregation::SeqMeanTokenMean, ..*settings };
    Ok(match settings.mode {
        LossMode::PerRolloutMean => ppo::clipped(rows, &settings.summed(rows), settings),
        LossMode::Vanilla => ppo::clipped(rows, &settings.aggregated(rows)?, settings),
        LossMode::CispoPerRolloutMean => cispo::cispo(rows, &settings.summed(rows), settings),
        LossMode::Cispo => cispo::cispo(rows, &settings.aggregated(rows)?, settings),
        LossMode::Gspo => ppo::gspo(rows, &by_sequence().aggregated(rows)?, settings),
        LossMode::Sapo { tau_pos, tau_neg } => soft::sapo(rows, &by_sequence().aggregated(rows)?, tau_pos, tau_neg),
        LossMode::Gpg => {
            let loss = cispo::reinforce(rows, &settings.aggregated(rows)?);
            PolicyLoss { metrics: Metrics::new(), ..loss }
        }
        LossMode::DppoTv => cispo::dppo(rows, &settings.aggregated(rows)?, settings, Divergence::TotalVariation),
        LossMode::DppoKl => cispo::dppo(rows, &settings.aggregated(rows)?, settings, Divergence::BinaryKl),
        LossMode::ClipCov { ratio, lower, upper, seed } => {
            let band = CovarianceBand { ratio, lower, upper, seed };
            covariance::clip_cov(rows, &settings.aggregated(rows)?, settings, band)
        }
        LossMode::KlCov { ratio, coefficient } => {
            covariance::kl_cov(rows, &settings.aggregated(rows)?, ratio, coefficient)
        }
        LossMode::GeoMean => soft::geo_mean(rows, settings),
    })
}

impl LossSettings {
    /// The weight of each row in a plain sum over all tokens.
    fn summed(&self, rows: &[LossRow<'_>]) -> Vec<f32> {
        vec![self.global_batch.dp_size as f32; rows.len()]
    }

    /// The weight of each row under the aggregation.
    fn aggregated(&self, rows: &[LossRow<'_>]) -> Result<Vec<f32>, LossError> {
        let masks: Vec<&[bool]> = rows.iter().map(|row| row.mask).collect();
        self.aggregation.row_weights(&masks, &self.global_batch)
    }

    /// Refuses clip ranges that don't hold 1, and a dual clip that would cut into the loss itself.
    fn check(&self) -> Result<(), LossError> {
        let check = |holds: bool, name: &'static str, rule: &'static str, value: f32| {
            if holds { Ok(()) } else { Err(LossError::Setting { name, rule, value }) }
        };
        check(self.clip_ratio_low >= 0.0, "clip_ratio_low", "0 or more", self.clip_ratio_low)?;
        check(self.clip_ratio_high >= 0.0, "clip_ratio_high", "0 or more", self.clip_ratio_high)?;
        check(self.clip_ratio_c > 1.0, "clip_ratio_c", "greater than 1.0", self.clip_ratio_c)
    }
}

fn check_shapes(rows: &[LossRow<'_>]) -> Result<(), LossError> {
    for (place, row) in rows.iter().enumerate() {
        let tokens = row.mask.len();
        check_length(place, "old_log_probs", row.old_log_probs.len(), tokens)?;
        check_length(place, "log_probs", row.log_probs.len(), tokens)?;
        check_length(place, "advantages", row.advantages.len(), tokens)?;
        check_length(place, "rollout_is_weights", row.rollout_is_weights.map_or(tokens, <[f32]>::len), tokens)?;
    }
    Ok(())
}

fn check_length(row: usize, field: &'static str, found: usize, tokens: usize) -> Result<(), LossError> {
    if found == tokens { Ok(()) } else { Err(LossError::Shape { row, field, found, tokens }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_token(old: f32, new: f32, advantage: f32, settings: &LossSettings) -> Result<PolicyLoss, LossError> {
        let row = LossRow {
            old_log_probs: &[old],
            log_probs: &[new],
            advantages: &[advantage],
            mask: &[true],
            rollout_is_weights: None,
        };
        policy_loss(&[row], settings)
    }

    #[test]
    fn ratios_beyond_reason_stay_finite_and_get_no_gradient() {
        for (mode, log_bound) in [(LossMode::Vanilla, 20.0_f32), (LossMode::Gspo, 10.0)] {
            // Far above 1 with a negative advantage: the one place where PPO does not clip.
            let settings = LossSettings { mode, clip_ratio_c: f32::INFINITY, ..LossSettings::default() };
            let found = one_token(-90.0, 0.0, -2.0, &settings).unwrap();
            assert!((found.loss / (2.0 * log_bound.exp()) - 1.0).abs() < 1e-6, "{mode:?}: {}", found.loss);
            assert_eq!(found.d_log_probs, [[0.0]], "{mode:?}");
        }
    }

    #[test]
    fn dual_clip_bounds_the_loss_of_what_got_likelier_though_it_was_bad() {
        let settings = LossSettings { mode: LossMode::Vanilla, ..LossSettings::default() };
        let bounded = one_token(-3.0, 0.0, -2.0, &settings).unwrap();
        assert!((bounded.loss - 2.0 * 3.0).abs() < 1e-6);
        assert_eq!(bounded.d_log_probs, [[0.0]]);
        assert!((bounded.metrics["actor/pg_clipfrac_lower"] - 1.0).abs() < 1e-6);
        assert_eq!(bounded.tokens, 1);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let refused = |settings: LossSettings| one_token(0.0, 0.0, 1.0, &settings).unwrap_err().to_string();
        let defaults = LossSettings { mode: LossMode::Vanilla, ..LossSettings::default() };
        assert_eq!(
            refused(LossSettings { clip_ratio_c: 1.0, ..defaults }),
            "clip_ratio_c must be greater than 1.0, got 1"
        );
        assert_eq!(
            refused(LossSettings { clip_ratio_low: f32::NAN, ..defaults }),
            "clip_ratio_low must be 0 or more, got NaN"
        );
        let two_workers = GlobalBatch { dp_size: 2, ..GlobalBatch::default() };
        assert_eq!(
            refused(LossSettings { global_batch: two_workers, ..defaults }),
            "global_batch.tokens is required when dp_size > 1"
        );
        let row = LossRow {
            old_log_probs: &[0.0],
            log_probs: &[0.0, 0.0],
            advantages: &[0.0],
            mask: &[true],
            rollout_is_weights: None,
        };
        let error = policy_loss(&[row], &defaults).unwrap_err().to_string();
        assert_eq!(error, "row 0: log_probs has 2 numbers for a mask of 1 tokens");
    }

    #[test]
    fn the_mean_over_no_token_is_nan_and_moves_nothing() {
        let row = LossRow {
            old_log_probs: &[0.0],
            log_probs: &[0.0],
            advantages: &[1.0],
            mask: &[false],
            rollout_is_weights: None,
        };
        let mean = policy_loss(&[row], &LossSettings { mode: LossMode::Vanilla, ..LossSettings::default() }).unwrap();
        assert!(mean.loss.is_nan());
        assert_eq!(mean.d_log_probs, [[0.0]]);
        let sum = policy_loss(&[row], &LossSettings::default()).unwrap();
        assert_eq!((sum.loss.to_bits(), sum.tokens), (0.0_f32.to_bits(), 0));
    }
}
