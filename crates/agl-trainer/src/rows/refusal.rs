//! Why a rollout gives nothing to train on.

use crate::rollout::CompletedRollout;

/// Why nothing of a rollout can be trained on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowRefusal {
    /// Its agent failed, and `on_failed` is `drop`.
    #[error("its agent failed: {}", message.as_deref().unwrap_or("no error message"))]
    Failed {
        /// The rollout's `error_message`.
        message: Option<String>,
    },
    /// No reward was posted, and `on_missing_reward` is not `fill`.
    #[error("no reward was posted to it; set `trainer.on_missing_reward: fill` to train with a default")]
    NoReward,
    /// It made no model call that can be trained on.
    #[error("it has no model call with token ids; the calls that were refused say why")]
    NoTriplets,
    /// Nothing that was sampled is left in any of its rows.
    #[error("{}", if *truncated {
        "no sampled token is left within `max_response_length` and `max_total_length`"
    } else {
        "none of its model calls sampled a token"
    })]
    NoTrainTokens {
        /// Its last row was cut to the limit.
        truncated: bool,
    },
    /// The prompt of each of its rows is too long.
    #[error("its prompt has {length} tokens, above `max_prompt_length` {limit}")]
    PromptTooLong {
        /// Tokens of its last row's prompt.
        length: usize,
        /// The limit.
        limit: usize,
    },
}

impl RowRefusal {
    /// Each [`RowRefusal::name`] and the metric that counts it.
    pub const NAMES: [(&'static str, &'static str); 5] = [
        ("failed", "training/refused/failed"),
        ("no_reward", "training/refused/no_reward"),
        ("no_triplets", "training/refused/no_triplets"),
        ("no_train_tokens", "training/refused/no_train_tokens"),
        ("prompt_too_long", "training/refused/prompt_too_long"),
    ];

    /// A word for it, for metrics and JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Failed { .. } => "failed",
            Self::NoReward => "no_reward",
            Self::NoTriplets => "no_triplets",
            Self::NoTrainTokens { .. } => "no_train_tokens",
            Self::PromptTooLong { .. } => "prompt_too_long",
        }
    }
}

/// A rollout of which nothing can be trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRollout {
    /// The rollout.
    pub rollout_id: String,
    /// Its task.
    pub data_id: String,
    /// Why.
    pub reason: RowRefusal,
}

impl RefusedRollout {
    pub(super) fn new(rollout: &CompletedRollout, reason: RowRefusal) -> Self {
        Self { rollout_id: rollout.rollout_id.clone(), data_id: rollout.data_id.clone(), reason }
    }
}

impl std::fmt::Display for RefusedRollout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rollout {}: {}", self.rollout_id, self.reason)
    }
}
