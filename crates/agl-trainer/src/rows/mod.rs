//! Rollouts to rows: which token sequences are trained on, which of their tokens, and why a rollout gives none.
//!
//! A row is a prompt, a response, and a mask over the response: `true` where the policy sampled the token. In
//! [`Transition`](AggregationLevel::Transition) mode each model call is a row. In
//! [`Trajectory`](AggregationLevel::Trajectory) mode calls that continue each other are one row; what came between
//! them (tool results, user turns, chat template) is part of the response, masked out.
//!
//! Rows are as long as they are; [`crate::padding`] makes tensors of them. Rules and metric names are those of the
//! original's `RolloutAdapter` (`agentlightning/verl/rollout_adapter.py`).

mod conversation;
mod mismatch;
mod record;
mod refusal;
mod stats;

pub use mismatch::{MergeMismatch, MismatchCause, MismatchExplanation};
pub use record::{RECORDS_PER_STEP, TrajectoryRecord, trajectory_records};
pub use refusal::{RefusedRollout, RowRefusal};
pub use stats::{AggregationStats, ValidationStats};

use agl_protocol::RolloutState;

use crate::precision::Precision;
use crate::rollout::CompletedRollout;
use crate::settings::{AggregationLevel, OnFailed, TraceAggregatorSettings};
use conversation::Conversation;

/// One sequence to train on.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The rollout it is part of.
    pub rollout_id: String,
    /// The task of that rollout: the group whose rewards are compared.
    pub data_id: String,
    /// Which call of the rollout the row starts with, from 0.
    pub turn_index: usize,
    /// What the policy was shown first.
    pub prompt_ids: Vec<u32>,
    /// What followed: sampled tokens, and in trajectory mode what came between calls.
    pub response_ids: Vec<u32>,
    /// One per response token: whether the policy sampled it, so that it is trained on.
    pub response_mask: Vec<bool>,
    /// One per response token: its log-probability when it was sampled, 0 where the mask is `false`.
    /// `None` when any call of the row lacks them.
    pub rollout_log_probs: Option<Vec<f32>>,
    /// Reward of the whole rollout.
    pub reward: f64,
    /// The prompt was too long and has been cut: the row must not be trained on.
    pub is_drop: bool,
}

impl Row {
    /// How many tokens are trained on.
    pub fn train_token_count(&self) -> usize {
        self.response_mask.iter().filter(|trained| **trained).count()
    }

    /// Prompt and response.
    pub fn token_ids(&self) -> Vec<u32> {
        [self.prompt_ids.as_slice(), &self.response_ids].concat()
    }

    /// One reward per response token: the rollout's on the last, 0 elsewhere (verl: `token_level_scores`).
    pub fn token_level_rewards(&self, precision: Precision) -> Vec<f32> {
        let mut rewards = vec![0.0; self.response_ids.len()];
        if let Some(last) = rewards.last_mut() {
            *last = precision.round(self.reward as f32);
        }
        rewards
    }
}

/// When a row has log-probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogProbCheck {
    /// When each of its calls has as many as ids. Nothing is ever shifted against its token.
    #[default]
    EachCall,
    /// When those of all its calls, one after the other, are in all as many as tokens, after both were cut to the limit. This
    /// is what the original does: where the first call of a row that was cut has a wrong number of log-probabilities, they
    /// are kept, against the wrong tokens.
    WholeRow,
}

/// How rollouts become rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Aggregation {
    /// One row a call, or one row a conversation.
    pub level: AggregationLevel,
    /// Longest prompt, in tokens. A longer one is cut at its end and its row marked [`Row::is_drop`].
    pub max_prompt_length: usize,
    /// Longest response, in tokens. A longer one is cut at its end, and counted.
    pub max_response_length: usize,
    /// Longest prompt and response together, in tokens; a longer response is cut.
    pub max_total_length: Option<usize>,
    /// The reward of a rollout without one; `None` leaves such a rollout out.
    pub missing_reward: Option<f64>,
    /// Whether rollouts whose agent failed are trained on.
    pub on_failed: OnFailed,
    /// When a row has log-probabilities.
    pub log_prob_check: LogProbCheck,
}

impl Aggregation {
    /// The original's handling of failed rollouts and missing rewards: train on all, 0 for no reward.
    pub fn new(settings: &TraceAggregatorSettings) -> Self {
        Self {
            level: settings.level,
            max_prompt_length: settings.max_prompt_length,
            max_response_length: settings.max_response_length,
            max_total_length: settings.max_total_length,
            missing_reward: Some(0.0),
            on_failed: OnFailed::Train,
            log_prob_check: LogProbCheck::EachCall,
        }
    }
}

/// What became of a set of rollouts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Aggregated {
    /// The rows, ordered by step and sample; rollouts of one sample stay in the order in which they were given.
    pub rows: Vec<Row>,
    /// The rollouts of which nothing can be trained, each with its reason.
    pub refusals: Vec<RefusedRollout>,
    /// Where a trajectory broke into several rows. Trajectory mode only.
    pub mismatches: Vec<MergeMismatch>,
    /// Counts and lengths.
    pub stats: AggregationStats,
}

/// Turns rollouts into rows. Pure; each row's ids are copied once, whatever the number of calls merged into it.
///
/// Source: `RolloutAdapter.get_train_data_batch`. Unlike there, no row at all is not an error here: see
/// [`Aggregated::refusals`] for the reasons.
pub fn aggregate(rollouts: &[CompletedRollout], aggregation: &Aggregation) -> Aggregated {
    let mut out = Aggregated::default();
    for (place, rollout) in in_order(rollouts) {
        if let Err(reason) = add_rollout(&mut out, rollout, place, aggregation) {
            out.refusals.push(RefusedRollout::new(rollout, reason));
        }
    }
    out
}

/// Rollouts with their places, by step and sample; those of one sample stay as they were given.
fn in_order(rollouts: &[CompletedRollout]) -> impl Iterator<Item = (usize, &CompletedRollout)> {
    let mut order: Vec<usize> = (0..rollouts.len()).collect();
    order.sort_by_key(|&place| (rollouts[place].step, rollouts[place].sample_idx_in_step));
    order.into_iter().map(|place| (place, &rollouts[place]))
}

/// Adds the rows of one rollout, or says why none of them can be trained on.
fn add_rollout(
    out: &mut Aggregated,
    rollout: &CompletedRollout,
    place: usize,
    aggregation: &Aggregation,
) -> Result<(), RowRefusal> {
    if aggregation.on_failed == OnFailed::Drop && rollout.state == RolloutState::Failed {
        return Err(RowRefusal::Failed { message: rollout.error_message.clone() });
    }
    let reward = rollout.final_reward.or(aggregation.missing_reward).ok_or(RowRefusal::NoReward)?;
    out.stats.count_rollout(rollout, reward);
    if rollout.triplets.is_empty() {
        return Err(RowRefusal::NoTriplets);
    }

    let conversations = match aggregation.level {
        AggregationLevel::Transition => Conversation::each_call(&rollout.triplets),
        AggregationLevel::Trajectory => Conversation::split(&rollout.triplets),
    };
    if aggregation.level == AggregationLevel::Trajectory {
        out.stats.unmerged_rollouts += usize::from(conversations.len() > 1);
        let breaks = conversations.iter().skip(1).map(|conversation| conversation.first_turn);
        out.mismatches.extend(breaks.map(|turn_index| MergeMismatch::new(rollout, place, turn_index)));
    }
    let mut refused = Vec::new();
    for conversation in &conversations {
        refused.extend(add_row(out, rollout, reward, conversation, aggregation).err());
    }
    match refused.pop() {
        Some(last) if refused.len() + 1 == conversations.len() => Err(last),
        _ => Ok(()),
    }
}

/// Adds the row of one conversation. One that is marked to be dropped is added too, and refused all the same.
fn add_row(
    out: &mut Aggregated,
    rollout: &CompletedRollout,
    reward: f64,
    conversation: &Conversation<'_>,
    aggregation: &Aggregation,
) -> Result<(), RowRefusal> {
    let (prompt, response) = conversation.fit(aggregation);
    out.stats.truncated_rows += usize::from(response.is_cut());
    if conversation.train_token_count(response.kept) == 0 {
        out.stats.skipped_rows += 1;
        return Err(RowRefusal::NoTrainTokens { truncated: response.is_cut() });
    }
    out.rows.push(Row {
        rollout_id: rollout.rollout_id.clone(),
        data_id: rollout.data_id.clone(),
        turn_index: conversation.first_turn,
        prompt_ids: conversation.prompt_ids()[..prompt.kept].to_vec(),
        response_ids: conversation.response_ids(response.kept),
        response_mask: conversation.response_mask(response.kept),
        rollout_log_probs: conversation.log_probs(response.kept, aggregation.log_prob_check),
        reward,
        is_drop: prompt.is_cut(),
    });
    if prompt.is_cut() {
        return Err(RowRefusal::PromptTooLong { length: prompt.full, limit: prompt.kept });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::Triplet;

    fn rollout(prompt: usize, response: usize) -> CompletedRollout {
        let call = Triplet { prompt_ids: vec![1; prompt], response_ids: vec![2; response], log_probs: None };
        CompletedRollout {
            rollout_id: "r7".into(),
            data_id: "d".into(),
            step: 0,
            sample_idx_in_step: 0,
            final_reward: Some(1.0),
            triplets: vec![call],
            state: RolloutState::Succeeded,
            error_message: None,
        }
    }

    fn refusal(rollout: CompletedRollout) -> String {
        let aggregation = Aggregation {
            max_prompt_length: 4,
            max_response_length: 4,
            max_total_length: Some(6),
            missing_reward: None,
            on_failed: OnFailed::Drop,
            ..Aggregation::new(&TraceAggregatorSettings::default())
        };
        let aggregated = aggregate(&[rollout], &aggregation);
        assert!(aggregated.rows.iter().all(|row| row.is_drop));
        assert_eq!(aggregated.refusal_metrics().values().sum::<f64>().to_bits(), 1.0_f64.to_bits());
        aggregated.refusals[0].to_string()
    }

    #[test]
    fn a_rollout_without_a_row_says_why_and_the_way_out() {
        let failed = CompletedRollout {
            state: RolloutState::Failed,
            error_message: Some("exit status 1".into()),
            ..rollout(2, 2)
        };
        assert_eq!(refusal(failed), "rollout r7: its agent failed: exit status 1");
        let unrewarded = CompletedRollout { final_reward: None, ..rollout(2, 2) };
        assert!(refusal(unrewarded).contains("`trainer.on_missing_reward: fill`"));
        let silent = CompletedRollout { triplets: Vec::new(), ..rollout(2, 2) };
        assert!(refusal(silent).contains("no model call with token ids"));
        assert!(refusal(rollout(2, 0)).contains("none of its model calls sampled a token"));
        assert_eq!(refusal(rollout(5, 1)), "rollout r7: its prompt has 5 tokens, above `max_prompt_length` 4");
    }

    #[test]
    fn a_prompt_that_leaves_no_room_is_told_from_an_empty_answer() {
        let aggregation =
            Aggregation { max_total_length: Some(3), ..Aggregation::new(&TraceAggregatorSettings::default()) };
        let aggregated = aggregate(&[rollout(3, 2)], &aggregation);
        assert_eq!(aggregated.refusals[0].reason, RowRefusal::NoTrainTokens { truncated: true });
        assert_eq!((aggregated.stats.truncated_rows, aggregated.stats.skipped_rows), (1, 1));
    }
}
