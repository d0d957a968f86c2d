//! Where a trajectory breaks: a call whose prompt is not what was seen and said before.

use super::conversation::trace;
use crate::rollout::{CompletedRollout, Triplet};

/// How many tokens after the break an explanation shows of each side.
const EXPLAINED_TOKENS: usize = 48;

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
    /// The same text in other tokens. Only an explanation, which sees text, can tell.
    Retokenised,
    /// It differs within what the policy said: rendered anew by the chat template (reasoning left out, tool calls
    /// re-formatted), edited, or tokenised differently.
    ResponseRewritten,
    /// It differs within what the policy was shown, and is shorter: history was summarised.
    Compacted,
    /// It differs within what the policy was shown: history was edited, or this is another conversation.
    PromptRewritten,
}

/// A break in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MismatchExplanation {
    /// The likely cause, with the text known.
    pub cause: MismatchCause,
    /// How the conversation so far goes on after the last shared token.
    pub expected: String,
    /// How the prompt goes on instead.
    pub found: String,
}

impl MergeMismatch {
    pub(super) fn new(rollout: &CompletedRollout, place: usize, turn_index: usize) -> Self {
        let (previous, current) = (&rollout.triplets[turn_index - 1], &rollout.triplets[turn_index]);
        let shared_length = trace(previous).zip(&current.prompt_ids).take_while(|(seen, now)| seen == *now).count();
        Self {
            rollout: place,
            rollout_id: rollout.rollout_id.clone(),
            data_id: rollout.data_id.clone(),
            turn_index,
            prompt_length: current.prompt_ids.len(),
            response_length: current.response_ids.len(),
            previous_trace_length: trace(previous).count(),
            current_trace_length: trace(current).count(),
            shared_length,
            cause: cause(previous, current, shared_length),
        }
    }

    /// What both sides say where they part, `decode` turning ids into text. `rollouts` are those that were aggregated;
    /// `None` if they are others.
    pub fn explain(
        &self,
        rollouts: &[CompletedRollout],
        decode: impl Fn(&[u32]) -> String,
    ) -> Option<MismatchExplanation> {
        let triplets = &rollouts.get(self.rollout)?.triplets;
        let (previous, current) = (triplets.get(self.turn_index.checked_sub(1)?)?, triplets.get(self.turn_index)?);
        let expected: Vec<u32> = trace(previous).skip(self.shared_length).collect();
        let found = current.prompt_ids.get(self.shared_length..)?;
        let same_text = self.cause == MismatchCause::ResponseRewritten && decode(found).starts_with(&decode(&expected));
        let shown = |ids: &[u32]| decode(&ids[..ids.len().min(EXPLAINED_TOKENS)]);
        Some(MismatchExplanation {
            cause: if same_text { MismatchCause::Retokenised } else { self.cause },
            expected: shown(&expected),
            found: shown(found),
        })
    }
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
            Self::Retokenised => "the policy's own answer came back as the same text in other tokens",
            Self::ResponseRewritten => "the policy's own answer came back changed: chat template, or edited history",
            Self::Compacted => "a shorter prompt that differs from the conversation so far: compacted history",
            Self::PromptRewritten => {
                "the prompt differs from what was shown before: edited history, or another conversation"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agl_protocol::RolloutState;

    fn call(prompt_ids: &[u32], response_ids: &[u32]) -> Triplet {
        Triplet { prompt_ids: prompt_ids.to_vec(), response_ids: response_ids.to_vec(), log_probs: None }
    }

    fn broken(prompt: &[u32]) -> (Vec<CompletedRollout>, MergeMismatch) {
        let rollout = CompletedRollout {
            rollout_id: "r".into(),
            data_id: "d".into(),
            step: 0,
            sample_idx_in_step: 0,
            final_reward: None,
            triplets: vec![call(&[1, 2, 3], &[4, 5]), call(prompt, &[9])],
            state: RolloutState::Succeeded,
            error_message: None,
        };
        let mismatch = MergeMismatch::new(&rollout, 0, 1);
        (vec![rollout], mismatch)
    }

    #[test]
    fn the_cause_follows_from_the_first_token_that_differs() {
        let judged = |prompt: &[u32]| {
            let (_, mismatch) = broken(prompt);
            (mismatch.shared_length, mismatch.cause)
        };
        assert_eq!(judged(&[1, 2, 3]), (3, MismatchCause::SamePrompt));
        assert_eq!(judged(&[1, 2, 3, 4]), (4, MismatchCause::Truncated));
        assert_eq!(judged(&[1, 2]), (2, MismatchCause::Truncated));
        assert_eq!(judged(&[1, 2, 3, 4, 7, 8]), (4, MismatchCause::ResponseRewritten));
        assert_eq!(judged(&[1, 7]), (1, MismatchCause::Compacted));
        assert_eq!(judged(&[1, 7, 3, 4, 5, 6]), (1, MismatchCause::PromptRewritten));
    }

    #[test]
    fn the_same_text_in_other_tokens_is_told_from_other_text() {
        // 5 is "ab"; 7 and 8 are "a" and "b".
        let decode =
            |ids: &[u32]| ids.iter().map(|id| ["", "", "", "", "x", "ab", "!", "a", "b"][*id as usize]).collect();
        let (rollouts, mismatch) = broken(&[1, 2, 3, 4, 7, 8, 6]);
        let explained = mismatch.explain(&rollouts, decode).unwrap();
        assert_eq!(explained.cause, MismatchCause::Retokenised);
        assert_eq!((explained.expected.as_str(), explained.found.as_str()), ("ab", "ab!"));

        let (rollouts, mismatch) = broken(&[1, 2, 3, 4, 8, 7]);
        assert_eq!(mismatch.explain(&rollouts, decode).unwrap().cause, MismatchCause::ResponseRewritten);
        assert_eq!(mismatch.explain(&[], decode), None);
    }
}
