//! Model calls that continue each other, seen as one growing token sequence.

use super::{Aggregation, LogProbCheck};
use crate::rollout::Triplet;

/// Consecutive calls of a rollout, each of which has all that precedes it (prompt and response of the call before) as
/// the beginning of its prompt. Never empty.
///
/// The last call's prompt and response therefore hold the whole conversation: nothing has to be joined, and the row
/// is copied once.
pub(super) struct Conversation<'a> {
    /// Place of the first call in the rollout.
    pub(super) first_turn: usize,
    first: &'a Triplet,
    last: &'a Triplet,
    turns: &'a [Triplet],
}

/// How much of a prompt or response fits, in tokens.
#[derive(Clone, Copy)]
pub(super) struct Fit {
    pub(super) full: usize,
    pub(super) kept: usize,
}

impl Fit {
    fn new(full: usize, limit: usize) -> Self {
        Self { full, kept: full.min(limit) }
    }

    pub(super) fn is_cut(self) -> bool {
        self.kept < self.full
    }
}

/// What `next` was shown after all that `previous` saw and said; `None` if it does not continue it token by token.
pub(super) fn observation<'a>(previous: &Triplet, next: &'a Triplet) -> Option<&'a [u32]> {
    next.prompt_ids.strip_prefix(previous.prompt_ids.as_slice())?.strip_prefix(previous.response_ids.as_slice())
}

/// All tokens of a call: what was shown and what was sampled.
pub(super) fn trace(call: &Triplet) -> impl Iterator<Item = u32> {
    call.prompt_ids.iter().chain(&call.response_ids).copied()
}

impl<'a> Conversation<'a> {
    /// Each call on its own.
    pub(super) fn each_call(triplets: &'a [Triplet]) -> Vec<Self> {
        triplets
            .iter()
            .enumerate()
            .map(|(first_turn, call)| Self { first_turn, first: call, last: call, turns: std::slice::from_ref(call) })
            .collect()
    }

    /// The longest runs of calls that continue each other.
    pub(super) fn split(triplets: &'a [Triplet]) -> Vec<Self> {
        let mut first_turn = 0;
        triplets
            .chunk_by(|previous, next| observation(previous, next).is_some())
            .filter_map(|turns| {
                let (first, last) = (turns.first()?, turns.last()?);
                let conversation = Self { first_turn, first, last, turns };
                first_turn += turns.len();
                Some(conversation)
            })
            .collect()
    }

    /// How much of its prompt and of its response fits. The response gets what the (cut) prompt leaves of the total.
    pub(super) fn fit(&self, limits: &Aggregation) -> (Fit, Fit) {
        let prompt = Fit::new(self.first.prompt_ids.len(), limits.max_prompt_length);
        let room = limits.max_total_length.map_or(usize::MAX, |total| total.saturating_sub(prompt.kept));
        (prompt, Fit::new(self.full_response_length(), limits.max_response_length.min(room)))
    }

    pub(super) fn prompt_ids(&self) -> &'a [u32] {
        &self.first.prompt_ids
    }

    fn full_response_length(&self) -> usize {
        self.last.prompt_ids.len() + self.last.response_ids.len() - self.first.prompt_ids.len()
    }

    /// The first `length` tokens after the prompt.
    pub(super) fn response_ids(&self, length: usize) -> Vec<u32> {
        let after_prompt = &self.last.prompt_ids[self.first.prompt_ids.len()..];
        let mut ids = Vec::with_capacity(length);
        ids.extend(after_prompt.iter().chain(&self.last.response_ids).take(length));
        ids
    }

    /// Where each call's sampled tokens are in the response, cut to `length`.
    fn spans(&self, length: usize) -> impl Iterator<Item = (std::ops::Range<usize>, &'a Triplet)> {
        let start = self.first.prompt_ids.len();
        self.turns.iter().map(move |turn| {
            let from = turn.prompt_ids.len() - start;
            (from.min(length)..(from + turn.response_ids.len()).min(length), turn)
        })
    }

    /// `true` where the token was sampled.
    pub(super) fn response_mask(&self, length: usize) -> Vec<bool> {
        let mut mask = vec![false; length];
        for (span, _) in self.spans(length) {
            mask[span].fill(true);
        }
        mask
    }

    pub(super) fn train_token_count(&self, length: usize) -> usize {
        self.spans(length).map(|(span, _)| span.len()).sum()
    }

    /// Log-probabilities of the first `length` response tokens, 0 where none was sampled.
    pub(super) fn log_probs(&self, length: usize, check: LogProbCheck) -> Option<Vec<f32>> {
        match check {
            LogProbCheck::EachCall => self.aligned_log_probs(length),
            LogProbCheck::WholeRow => self.joined_log_probs(length),
        }
    }

    fn aligned_log_probs(&self, length: usize) -> Option<Vec<f32>> {
        let mut aligned = vec![0.0; length];
        for (span, turn) in self.spans(length) {
            let log_probs = turn.log_probs.as_ref().filter(|values| values.len() == turn.response_ids.len())?;
            let kept = span.len();
            aligned[span].copy_from_slice(&log_probs[..kept]);
        }
        Some(aligned)
    }

    /// The original's rule: the first call's log-probabilities are taken whatever their number, those of later calls only
    /// if they are as many as ids, and the whole is compared with the row after both were cut.
    fn joined_log_probs(&self, length: usize) -> Option<Vec<f32>> {
        let mut joined = self.first.log_probs.clone()?;
        for pair in self.turns.windows(2) {
            let gap = observation(&pair[0], &pair[1])?.len();
            let log_probs = pair[1].log_probs.as_ref().filter(|values| values.len() == pair[1].response_ids.len())?;
            joined.resize(joined.len() + gap, 0.0);
            joined.extend(log_probs);
        }
        if length < self.full_response_length() {
            joined.truncate(length);
        }
        (joined.len() == length).then_some(joined)
    }
}
