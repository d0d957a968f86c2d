//! The model proxy's modes, and its pause while weights change.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a call is for: it decides the temperature and whether log-probabilities are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Sampled at the train temperature, log-probabilities kept.
    Train,
    /// Sampled at the validation temperature.
    Val,
}

impl Mode {
    /// The mode of a rollout.
    pub fn of_rollout(is_train: bool) -> Self {
        if is_train { Self::Train } else { Self::Val }
    }

    /// The word in the path.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The body of `POST /proxy/pause`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseRequest {
    /// What paused calls are told in `Retry-After`.
    #[serde(default = "default_retry_after_seconds", deserialize_with = "crate::json::saturating_i64")]
    pub retry_after_seconds: i64,
    /// Told to paused calls.
    #[serde(default)]
    pub reason: Option<String>,
}

impl Default for PauseRequest {
    fn default() -> Self {
        Self { retry_after_seconds: default_retry_after_seconds(), reason: None }
    }
}

fn default_retry_after_seconds() -> i64 {
    5
}

/// The answer of `/proxy/pause`, `/proxy/resume` and `/proxy/state`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyState {
    /// Whether new calls are refused with 429.
    pub paused: bool,
    /// What they are told in `Retry-After`.
    #[serde(deserialize_with = "crate::json::saturating_i64")]
    pub retry_after_seconds: i64,
    /// Why.
    pub reason: Option<String>,
    /// Calls on their way to or from a model server.
    pub inflight: u64,
}
