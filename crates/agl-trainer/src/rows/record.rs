//! Whole trajectories for people to read: the last call of a rollout shows the conversation as it ended.

use crate::rollout::CompletedRollout;

/// How many trajectories of a training step the original keeps.
pub const RECORDS_PER_STEP: usize = 24;

/// The end of a rollout. Ids are not decoded here: that is the tokenizer's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrajectoryRecord<'a> {
    /// The rollout.
    pub rollout_id: &'a str,
    /// Its reward, a missing one filled.
    pub reward: f64,
    /// What the policy was shown in its last call.
    pub prompt_ids: &'a [u32],
    /// What it answered.
    pub response_ids: &'a [u32],
}

/// The first `limit` rollouts that made a model call, ordered by step and sample.
///
/// Source: the original's `_build_compact_rollout_trajectory_records`.
pub fn trajectory_records(
    rollouts: &[CompletedRollout],
    reward_fill_value: f64,
    limit: usize,
) -> Vec<TrajectoryRecord<'_>> {
    super::in_order(rollouts)
        .filter_map(|(_, rollout)| {
            let last = rollout.triplets.last()?;
            Some(TrajectoryRecord {
                rollout_id: &rollout.rollout_id,
                reward: rollout.final_reward.unwrap_or(reward_fill_value),
                prompt_ids: &last.prompt_ids,
                response_ids: &last.response_ids,
            })
        })
        .take(limit)
        .collect()
}
