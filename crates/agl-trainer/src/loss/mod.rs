//! Advantages to a loss, and its gradient with respect to each log-probability.
//!
//! The engine that holds the weights knows how its log-probabilities depend on them; all it needs from here is
//! d loss / d log-probability. Functions work on ragged rows; positions where the mask is `false` contribute nothing, so a
//! padded batch gives the same numbers.
//!
//! Formulas and names are those of verl's `POLICY_LOSS_REGISTRY` and of the original's `per_rollout_loss.py`.

mod aggregate;
mod cispo;
mod normalize;
mod ppo;
mod token;

pub use aggregate::{GlobalBatch, LossAggregation, aggregate_loss};
pub use normalize::normalize_advantages_by_rollout;

use serde::{Deserialize, Serialize};

use crate::metrics::Metrics;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    let summed = || vec![settings.global_batch.dp_size as f32; rows.len()];
    let aggregated = || {
        let masks: Vec<&[bool]> = rows.iter().map(|row| row.mask).collect();
        settings.aggregation.row_weights(&masks, &settings.global_batch)
    };
    match settings.mode {
        LossMode::PerRolloutMean => ppo::clipped(rows, &summed(), settings),
        LossMode::Vanilla => ppo::clipped(rows, &aggregated()?, settings),
        LossMode::CispoPerRolloutMean => Ok(cispo::cispo(rows, &summed(), settings)),
        LossMode::Cispo => Ok(cispo::cispo(rows, &aggregated()?, settings)),
    }
}

fn check_shapes(rows: &[LossRow<'_>]) -> Result<(), LossError> {
    for (place, row) in rows.iter().enumerate() {
        let tokens = row.mask.len();
        for (field, found) in [
            ("old_log_probs", row.old_log_probs.len()),
            ("log_probs", row.log_probs.len()),
            ("advantages", row.advantages.len()),
            ("rollout_is_weights", row.rollout_is_weights.map_or(tokens, <[f32]>::len)),
        ] {
            if found != tokens {
                return Err(LossError::Shape { row: place, field, found, tokens });
            }
        }
    }
    Ok(())
}
