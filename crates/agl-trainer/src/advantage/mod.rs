//! Rewards to advantages: how much better than expected each sampled token was.
//!
//! Functions work on ragged rows: one slice per row, as long as the row. A padded batch gives the same numbers, since only
//! positions where the mask is `true` (the token was sampled) count.
//!
//! [`compute`] is verl's `compute_advantage`, which treats each row as a sample of its group. [`compute_by_rollout`] is the
//! original's `compute_rollout_level_advantage`: each rollout counts once, however many rows it was split into, and all its
//! rows get the same advantage.

mod by_rollout;
mod estimator;
mod group;
mod token;

pub use by_rollout::{RolloutLevelStats, compute_by_rollout};
pub use estimator::{Estimator, compute};

use crate::precision::Precision;
use crate::rows::Row;

/// What an estimator needs of one row.
#[derive(Clone, Copy, Debug)]
pub struct AdvantageRow<'a> {
    /// The task (verl: `uid`): rows of one group are compared with each other.
    pub group: &'a str,
    /// The rollout it is part of.
    pub rollout_id: &'a str,
    /// One per response token: whether it was sampled.
    pub mask: &'a [bool],
    /// One per response token (verl: `token_level_rewards`). The outcome estimators use the sum only.
    pub rewards: &'a [f32],
    /// One per response token: the critic's value. GAE only.
    pub values: Option<&'a [f32]>,
    /// Reward of the greedy response to the same prompt. `ReMax` only.
    pub reward_baseline: Option<f32>,
}

impl<'a> AdvantageRow<'a> {
    /// The view of `row` with `rewards` as its [`Row::token_level_rewards`].
    pub fn of(row: &'a Row, rewards: &'a [f32]) -> Self {
        Self {
            group: &row.data_id,
            rollout_id: &row.rollout_id,
            mask: &row.response_mask,
            rewards,
            values: None,
            reward_baseline: None,
        }
    }
}

/// One number per response token of each row. Where the mask is `false` the outcome estimators say 0; the others whatever
/// verl does, which nobody reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advantages {
    /// How much better than expected.
    pub advantages: Vec<Vec<f32>>,
    /// What a critic would be trained towards; the advantages themselves for the outcome estimators.
    pub returns: Vec<Vec<f32>>,
}

/// Settings that the estimators share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdvantageSettings {
    /// Divide by the standard deviation of the group; without it GRPO is Dr. GRPO (<https://arxiv.org/abs/2503.20783>).
    pub norm_adv_by_std_in_grpo: bool,
    /// Discount of later rewards. GAE and REINFORCE++.
    pub gamma: f32,
    /// λ of GAE.
    pub lam: f32,
    /// Format of the rewards, and of what is computed from them.
    pub precision: Precision,
}

impl Default for AdvantageSettings {
    fn default() -> Self {
        Self { norm_adv_by_std_in_grpo: true, gamma: 1.0, lam: 1.0, precision: Precision::F32 }
    }
}

/// Why advantages can't be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdvantageError {
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
    /// A row lacks what the estimator needs.
    #[error("row {row}: {estimator} needs `{field}` of every row")]
    Missing {
        /// Place of the row.
        row: usize,
        /// What is missing.
        field: &'static str,
        /// Who needs it.
        estimator: &'static str,
    },
    /// Pass@k compares the best with the second best.
    #[error("Pass@k requires at least 2 samples per group. Got {size} for group {group}.")]
    GroupTooSmall {
        /// The group.
        group: String,
        /// Its rows.
        size: usize,
    },
    /// Whitening divides by the variance over all sampled tokens.
    #[error("{estimator} whitens over all sampled tokens and needs at least 2 of them, got {tokens}")]
    TooFewTokens {
        /// Who whitens.
        estimator: &'static str,
        /// How many there are.
        tokens: usize,
    },
    /// Rows of one rollout are in different groups.
    #[error("rollout-level advantage found multiple uid values for rollout_id='{rollout_id}'")]
    SeveralGroups {
        /// The rollout.
        rollout_id: String,
    },
    /// Rows of one rollout have different rewards.
    #[error(
        "rollout-level advantage requires all triplets for the same rollout_id to share the same scalar \
         token_level_rewards sum; got rollout_id='{rollout_id}'"
    )]
    SeveralRewards {
        /// The rollout.
        rollout_id: String,
    },
    /// A rollout's first row has no sampled token to read the advantage from.
    #[error("rollout-level advantage cannot extract {key} for empty rollout_id='{rollout_id}'")]
    EmptyRollout {
        /// `advantages` or `returns`.
        key: &'static str,
        /// The rollout.
        rollout_id: String,
    },
    /// The estimator gives each token its own number, so that a rollout has no single one.
    #[error(
        "rollout-level advantage requires scalar outcome-style {key}; got non-constant token values for \
         rollout_id='{rollout_id}'"
    )]
    NotScalar {
        /// `advantages` or `returns`.
        key: &'static str,
        /// The rollout.
        rollout_id: String,
    },
}

/// Refuses rows whose slices don't agree in length.
fn check_shapes(rows: &[AdvantageRow<'_>]) -> Result<(), AdvantageError> {
    for (row, AdvantageRow { mask, rewards, values, .. }) in rows.iter().enumerate() {
        let tokens = mask.len();
        let check = |field, found| {
            if found == tokens { Ok(()) } else { Err(AdvantageError::Shape { row, field, found, tokens }) }
        };
        check("rewards", rewards.len())?;
        check("values", values.map_or(tokens, <[f32]>::len))?;
    }
    Ok(())
}

/// One number per row, on each of its sampled tokens: the outcome estimators' last step.
fn broadcast(scalars: &[f32], rows: &[AdvantageRow<'_>]) -> Vec<Vec<f32>> {
    scalars.iter().zip(rows).map(|(scalar, row)| spread(*scalar, row.mask)).collect()
}

fn spread(scalar: f32, mask: &[bool]) -> Vec<f32> {
    mask.iter().map(|sampled| if *sampled { scalar } else { 0.0 }).collect()
}
