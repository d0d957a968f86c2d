//! A rollout as the store keeps it.

use std::sync::Arc;

use agl_protocol::pyjson::{self, Value};
use agl_protocol::{DEFAULT_ATTEMPT_ID, RawJson, RolloutState, RolloutStatus};
use serde::Serialize;

use crate::NewRollout;

/// One run of an agent on one task. It serialises to the wire's rollout.
///
/// Input, config and metadata are the caller's: checked where they came in, kept as text, never looked into again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rollout {
    /// Unique among the rollouts that exist.
    pub rollout_id: Arc<str>,
    /// The task.
    pub input: RawJson,
    /// Train or validation.
    pub is_train: bool,
    /// How to run it.
    pub config: RawJson,
    /// The trainer's own notes.
    pub metadata: RawJson,
    /// The part its controller writes.
    pub status: RolloutStatus,
    /// What the terminal list calls the task: `input.data_id`, else `input.instance_id`, else nothing.
    #[serde(skip)]
    pub data_id: Arc<str>,
}

impl Rollout {
    /// A new rollout, queuing since `now` (Unix seconds).
    pub(crate) fn new(new: NewRollout, now: f64) -> Self {
        let status = RolloutStatus {
            state: RolloutState::Queuing,
            k8s_job_name: None,
            last_attempt_id: None,
            error_message: None,
            version: 1,
            created_at: now,
            updated_at: now,
        };
        Self {
            data_id: data_id(&new.input).into(),
            rollout_id: new.rollout_id.into(),
            input: new.input,
            is_train: new.is_train,
            config: new.config,
            metadata: new.metadata,
            status,
        }
    }

    /// The attempt whose events count: the last one named, or the default.
    pub fn attempt_id(&self) -> &str {
        self.status.last_attempt_id.as_deref().filter(|id| !id.is_empty()).unwrap_or(DEFAULT_ATTEMPT_ID)
    }
}

/// `str(input.get("data_id") or input.get("instance_id") or "")`, as the original's Python has it.
fn data_id(input: &RawJson) -> String {
    let input = value_of(input);
    let named = ["data_id", "instance_id"].iter().filter_map(|key| input.get(key)).find(|value| value.is_truthy());
    named.map(pyjson::python_repr).unwrap_or_default()
}

/// Reads whatever JSON the store holds.
pub(crate) fn value_of(raw: &RawJson) -> Value {
    pyjson::parse(raw.text().as_bytes()).unwrap_or_default()
}
