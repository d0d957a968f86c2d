//! A rollout that has ended, as training sees it: token ids, log-probabilities, the reward, and nothing of HTTP.

use agl_protocol::{RolloutState, TripletCall};

/// One model call: what the policy was shown, and what it sampled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Triplet {
    /// Token ids of the prompt, as the model server saw them.
    pub prompt_ids: Vec<u32>,
    /// Token ids that were sampled.
    pub response_ids: Vec<u32>,
    /// Log-probability of each sampled token when it was sampled; `None` when the call recorded none.
    ///
    /// The counts may still differ from that of the ids: it is aggregation that judges, see
    /// [`LogProbCheck`](crate::rows::LogProbCheck).
    pub log_probs: Option<Vec<f32>>,
}

impl From<TripletCall> for Triplet {
    fn from(call: TripletCall) -> Self {
        Self {
            prompt_ids: call.prompt_token_ids,
            response_ids: call.response_token_ids,
            log_probs: call.response_log_probs.map(|values| values.into_iter().map(|value| value as f32).collect()),
        }
    }
}

/// A rollout that has ended, with all that training needs of it.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletedRollout {
    /// The rollout.
    pub rollout_id: String,
    /// The task it was an attempt at: rollouts of one group share it, and are compared with each other.
    pub data_id: String,
    /// Training step that asked for it.
    pub step: usize,
    /// Place of its task within the step.
    pub sample_idx_in_step: usize,
    /// The last reward that was posted, if any was.
    pub final_reward: Option<f64>,
    /// Its model calls in the order in which they were made.
    pub triplets: Vec<Triplet>,
    /// How it ended.
    pub state: RolloutState,
    /// What went wrong, if it failed.
    pub error_message: Option<String>,
}
