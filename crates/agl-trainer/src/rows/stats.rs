//! Counts and lengths of an aggregation, under the original's metric names.

use super::{Aggregated, AggregationLevel, RowRefusal};
use crate::metrics::Metrics;
use crate::rollout::CompletedRollout;

/// The original keeps this many mismatches, and counts no further.
const MAX_COUNTED_MISMATCHES: usize = 100;

/// What was counted while rollouts became rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AggregationStats {
    /// The reward of each rollout that counts, a missing one filled.
    pub rewards: Vec<f64>,
    /// Rollouts that have a reward of their own.
    pub rollouts_with_reward: usize,
    /// Rollouts that have a model call.
    pub rollouts_with_trace: usize,
    /// Rows whose response was cut, skipped ones included.
    pub truncated_rows: usize,
    /// Rows that were skipped since no trained token was left in them.
    pub skipped_rows: usize,
    /// Rollouts whose calls did not all merge into one row. Trajectory mode only.
    pub unmerged_rollouts: usize,
    /// Sampled tokens of each call.
    pub response_lengths: Vec<usize>,
}

impl AggregationStats {
    pub(super) fn count_rollout(&mut self, rollout: &CompletedRollout, reward: f64) {
        self.rewards.push(reward);
        self.rollouts_with_reward += usize::from(rollout.final_reward.is_some());
        self.rollouts_with_trace += usize::from(!rollout.triplets.is_empty());
        self.response_lengths.extend(rollout.triplets.iter().map(|call| call.response_ids.len()));
    }
}

impl Aggregated {
    /// The original's `training/*` and `response_length/training/*` metrics, and `training/refused/*` by reason.
    pub fn metrics(&self, level: AggregationLevel) -> Metrics {
        let stats = &self.stats;
        let lengths = &stats.response_lengths;
        let mut metrics = Metrics::from([
            ("training/reward", mean(stats.rewards.iter().copied())),
            ("training/n_sample", self.rows.len() as f64),
            ("training/n_rollouts", stats.rewards.len() as f64),
            ("training/n_rollouts_w_trace", stats.rollouts_with_trace as f64),
            ("training/n_rollouts_w_reward", stats.rollouts_with_reward as f64),
            ("training/n_truncated_sample", stats.truncated_rows as f64),
            ("training/n_skipped_empty_rows", stats.skipped_rows as f64),
            ("training/n_turns", lengths.len() as f64),
            ("response_length/training/avg_by_turn", mean(lengths.iter().map(|length| *length as f64))),
            ("response_length/training/max_by_turn", lengths.iter().max().copied().unwrap_or(0) as f64),
            ("response_length/training/min_by_turn", lengths.iter().min().copied().unwrap_or(0) as f64),
        ]);
        if level == AggregationLevel::Trajectory {
            metrics.insert("training/n_unmerged_rollouts", stats.unmerged_rollouts as f64);
            let mismatches = self.mismatches.len().min(MAX_COUNTED_MISMATCHES);
            metrics.insert("training/n_trace_merge_mismatch_rows", mismatches as f64);
        }
        metrics
    }

    /// Rows without log-probabilities. Unless it is 0, the padded batch has none at all.
    pub fn rows_without_log_probs(&self) -> usize {
        self.rows.iter().filter(|row| row.rollout_log_probs.is_none()).count()
    }

    /// How many rollouts were refused for each reason, 0 included, as `training/refused/<reason>`.
    pub fn refusal_metrics(&self) -> Metrics {
        RowRefusal::NAMES
            .iter()
            .map(|(name, metric)| {
                (*metric, self.refusals.iter().filter(|refused| refused.reason.name() == *name).count() as f64)
            })
            .collect()
    }
}

/// What validation rollouts say of the policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValidationStats {
    /// The reward of each rollout, a missing one filled.
    pub rewards: Vec<f64>,
    /// Rollouts that have a reward of their own.
    pub rollouts_with_reward: usize,
    /// For each rollout with a model call: how many calls, and how many sampled tokens in all.
    pub traces: Vec<(usize, usize)>,
}

impl ValidationStats {
    /// Source: `RolloutAdapter.get_test_metrics`.
    pub fn new(rollouts: &[CompletedRollout], reward_fill_value: f64) -> Self {
        let tokens = |rollout: &CompletedRollout| rollout.triplets.iter().map(|call| call.response_ids.len()).sum();
        Self {
            rewards: rollouts.iter().map(|rollout| rollout.final_reward.unwrap_or(reward_fill_value)).collect(),
            rollouts_with_reward: rollouts.iter().filter(|rollout| rollout.final_reward.is_some()).count(),
            traces: rollouts
                .iter()
                .filter(|rollout| !rollout.triplets.is_empty())
                .map(|rollout| (rollout.triplets.len(), tokens(rollout)))
                .collect(),
        }
    }

    /// The original's `val/*` metrics; `None` when no rollout has a model call, which is an error there.
    pub fn metrics(&self) -> Option<Metrics> {
        if self.traces.is_empty() {
            return None;
        }
        let per_turn = self.traces.iter().map(|(turns, tokens)| *tokens as f64 / *turns as f64);
        Some(Metrics::from([
            ("val/reward", mean(self.rewards.iter().copied())),
            ("val/n_rollouts", self.rewards.len() as f64),
            ("val/n_rollouts_w_trace", self.traces.len() as f64),
            ("val/n_rollouts_w_reward", self.rollouts_with_reward as f64),
            ("val/mean_response_length_per_turn", mean(per_turn)),
            ("val/mean_total_response_length_per_rollout", mean(self.traces.iter().map(|(_, tokens)| *tokens as f64))),
            ("val/turn_count", mean(self.traces.iter().map(|(turns, _)| *turns as f64))),
        ]))
    }
}

/// 0 for no values, as the original's reward mean.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len();
    if count == 0 { 0.0 } else { values.sum::<f64>() / count as f64 }
}
