//! Where a trajectory breaks: a call whose prompt is not what was seen and said before.

use crate::rollout::{CompletedRollout, Triplet};

/// A break between two calls of one rollout, so that they are two rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeMismatch {
    /// Place of the rollout in what was aggregated.
    pub rollout: usize,
    /// The rollout.
    pub rollout_id: String,
    /// Its task.
    pub data_id: String,
    /// The call that does not continue the one before, from 0.
    pub turn_index: usize,
    /// Tokens of that call's prompt.
    pub prompt_length: usize,
    /// Tokens of that call's response.
    pub response_length: usize,
    /// Tokens of the prompt and response of the call before.
    pub previous_trace_length: usize,
    /// Tokens of this call's prompt and response.
    pub current_trace_length: usize,
    /// How many tokens the prompt shares with the call before: the place of the first token that differs.
    pub shared_length: usize,
    /// The likely cause, as far as ids tell.
    pub cause: MismatchCause,
}

/// What most likely made a prompt differ from the conversation so far, judged by where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MismatchCause {
    /// The prompt is the one of the call before: a retry, or a second sample in parallel.
    SamePrompt,
    /// The prompt ends before the conversation so far does: history was cut, or a call was made out of order.
    Truncated,
    /// It differs within what the policy said: rendered anew by the chat template (reasoning or tool calls re-formatted)
    /// or tokenised differently.
    ResponseRewritten,
    /// It differs within what the policy was shown, and is shorter: history was summarised.
    Compacted,
    /// It differs within what the policy was shown: history was edited, or this is another conversation.
    PromptRewritten,
}

impl MergeMismatch {
    pub(super) fn new(rollout: &CompletedRollout, place: usize, turn_index: usize) -> Self {
        let (previous, current) = (&rollout.triplets[turn_index - 1], &rollout.triplets[turn_index]);
        let shared_length = shared_prefix(previous, &current.prompt_ids);
        let previous_trace_length = previous.prompt_ids.len() + previous.response_ids.len();
        Self {
            rollout: place,
            rollout_id: rollout.rollout_id.clone(),
            data_id: rollout.data_id.clone(),
            turn_index,
            prompt_length: current.prompt_ids.len(),
            response_length: current.response_ids.len(),
            previous_trace_length,
            current_trace_length: current.prompt_ids.len() + current.response_ids.len(),
            shared_length,
            cause: cause(previous, current, shared_length),
        }
    }
}

/// How many leading tokens of `prompt` are the prompt and response of `previous`.
fn shared_prefix(previous: &Triplet, prompt: &[u32]) -> usize {
    previous.prompt_ids.iter().chain(&previous.response_ids).zip(prompt).take_while(|(seen, now)| seen == now).count()
}

fn cause(previous: &Triplet, current: &Triplet, shared_length: usize) -> MismatchCause {
    let (seen, now) = (previous.prompt_ids.len(), current.prompt_ids.len());
    if shared_length == now {
        if now == seen { MismatchCause::SamePrompt } else { MismatchCause::Truncated }
    } else if shared_length >= seen {
        MismatchCause::ResponseRewritten
    } else if now < seen {
        MismatchCause::Compacted
    } else {
        MismatchCause::PromptRewritten
    }
}

impl std::fmt::Display for MismatchCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::SamePrompt => "the same prompt again: a retry, or a second sample in parallel",
            Self::Truncated => "the prompt ends before the conversation so far does: truncated history",
            Self::ResponseRewritten => {
                "the policy's own answer came back as other tokens: chat template or retokenisation"
            }
            Self::Compacted => "a shorter prompt that differs from the start: compacted history",
            Self::PromptRewritten => {
                "the prompt differs from what was shown before: edited history, or another conversation"
            }
        })
    }
}
