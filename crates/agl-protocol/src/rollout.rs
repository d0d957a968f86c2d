//! A rollout: one run of an agent on one task, and the moves its life allows.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::RawJson;

/// The attempt whose events count when nobody has named another.
pub const DEFAULT_ATTEMPT_ID: &str = "0";

/// Where a rollout is in its life. Terminal states are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RolloutState {
    /// Waits for a controller to start its agent.
    Queuing,
    /// Its agent runs.
    Running,
    /// Its agent ended well.
    Succeeded,
    /// Its agent, or the attempt to run it, failed; `error_message` says how.
    Failed,
}

impl RolloutState {
    /// Every state, in the order of a life.
    pub const ALL: [Self; 4] = [Self::Queuing, Self::Running, Self::Succeeded, Self::Failed];

    /// Whether no move leads out of this state.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// The one place that knows the legal moves: queuing → running | failed, running → succeeded | failed.
    pub fn advance(self, to: Self) -> Result<Self, InvalidTransition> {
        match (self, to) {
            (Self::Queuing, Self::Running | Self::Failed) | (Self::Running, Self::Succeeded | Self::Failed) => Ok(to),
            (from, to) => Err(InvalidTransition { from, to }),
        }
    }

    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queuing => "queuing",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for RolloutState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A move that a rollout's life does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot transition {from} -> {to}")]
pub struct InvalidTransition {
    /// The state it is in.
    pub from: RolloutState,
    /// The state that was asked for.
    pub to: RolloutState,
}

fn default_true() -> bool {
    true
}

fn default_timeout_seconds() -> i64 {
    3600
}

/// How the local controller starts an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LocalConfig {
    /// A Python class, `pkg.mod.Class` or `pkg.mod:Class`, whose `run()` (sync or async) is the agent.
    #[serde(default)]
    pub agent_class: Option<String>,
    /// Environment variable → `input`, `input.path.to.0.field`, or a literal.
    #[serde(default)]
    pub env_map: BTreeMap<String, String>,
    /// Program and arguments of an agent in any language (ours; `agent_class` is the original's way).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Directory the agent starts in; the controller's own when absent (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_directory: Option<String>,
}

/// How the Kubernetes controller starts an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct K8sConfig {
    /// Jinja template of a Job manifest.
    #[serde(default)]
    pub job_template: Option<String>,
}

/// What the controller needs to know about a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutConfig {
    /// Seconds an agent may run before its process group is killed.
    #[serde(default = "default_timeout_seconds", deserialize_with = "crate::json::saturating_i64")]
    pub timeout_seconds: i64,
    /// For `runner_type=local`.
    #[serde(default)]
    pub local: Option<LocalConfig>,
    /// For `runner_type=k8s`.
    #[serde(default)]
    pub k8s: Option<K8sConfig>,
}

impl Default for RolloutConfig {
    fn default() -> Self {
        Self { timeout_seconds: default_timeout_seconds(), local: None, k8s: None }
    }
}

/// A rollout as a caller asks for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RolloutCreate {
    /// The task: any JSON. `env_map` and Job templates read from it.
    pub input: RawJson,
    /// Train mode records log-probabilities and samples at the train temperature.
    #[serde(default = "default_true")]
    pub is_train: bool,
    /// How to run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<RolloutConfig>,
    /// The trainer's own notes: a JSON object (`batch_idx`, `sample_idx_in_batch`, anything else).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<RawJson>,
    /// A caller's own id makes creation safe to retry: an id that exists is answered, not created again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout_id: Option<String>,
}

/// The part of a rollout that its controller writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutStatus {
    /// Where it is in its life.
    pub state: RolloutState,
    /// The Job that runs it, if any.
    pub k8s_job_name: Option<String>,
    /// The attempt whose events count.
    pub last_attempt_id: Option<String>,
    /// Why it failed.
    pub error_message: Option<String>,
    /// Grows by one with each patch.
    pub version: u64,
    /// Unix seconds.
    pub created_at: f64,
    /// Unix seconds.
    pub updated_at: f64,
}

/// One run of an agent on one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// Unique in the store.
    pub rollout_id: String,
    /// The task.
    pub input: RawJson,
    /// Train or validation.
    pub is_train: bool,
    /// How to run it.
    pub config: RolloutConfig,
    /// The trainer's own notes: a JSON object.
    pub metadata: RawJson,
    /// The part its controller writes.
    pub status: RolloutStatus,
}

impl Rollout {
    /// The attempt whose events count: the last one named, or [`DEFAULT_ATTEMPT_ID`].
    pub fn attempt_id(&self) -> &str {
        self.status.last_attempt_id.as_deref().filter(|id| !id.is_empty()).unwrap_or(DEFAULT_ATTEMPT_ID)
    }
}

/// A rollout and the attempts that have events, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutDetail {
    /// The rollout.
    pub rollout: Rollout,
    /// Ids of its attempts that have events.
    pub attempts: Vec<String>,
}

/// A partial update of the status: absent leaves alone, `null` clears.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatusPatch {
    /// The state to move to; only legal moves are taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RolloutState>,
    /// Outer `None`: leave alone. `Some(None)`: clear.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    pub k8s_job_name: Option<Option<String>>,
    /// As above.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    pub last_attempt_id: Option<Option<String>>,
    /// As above.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    pub error_message: Option<Option<String>>,
}

impl StatusPatch {
    /// A patch that moves the state and nothing else.
    pub fn state(state: RolloutState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }

    /// Also says why.
    #[must_use]
    pub fn because(mut self, error_message: impl Into<String>) -> Self {
        self.error_message = Some(Some(error_message.into()));
        self
    }

    /// Also names the attempt whose events count.
    #[must_use]
    pub fn attempt(mut self, attempt_id: impl Into<String>) -> Self {
        self.last_attempt_id = Some(Some(attempt_id.into()));
        self
    }

    /// Whether the patch would change nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The body of `PATCH /api/rollouts/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RolloutPatch {
    /// Only the status may be patched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<StatusPatch>,
}

/// One line of the terminal list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TerminalRollout {
    /// The rollout.
    pub rollout_id: String,
    /// How it ended.
    pub state: RolloutState,
    /// `input.data_id`, else `input.instance_id`, else empty.
    pub data_id: String,
    /// Train or validation.
    pub is_train: bool,
}

/// A page of rollouts in the order in which they ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TerminalPage {
    /// Rollouts that ended after the cursor; deleted ones are left out.
    pub items: Vec<TerminalRollout>,
    /// The cursor for the next page.
    pub next_after: u64,
    /// How many rollouts have ended so far, deleted ones included.
    pub total_terminal: u64,
}

/// Tells "absent" from "null": `Some(None)` is an explicit null.
mod present {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::option_option, reason = "absent and null mean different things in a patch")]
    #[expect(clippy::ref_option, reason = "the signature serde's `with` asks for")]
    pub(super) fn serialize<S: Serializer>(value: &Option<Option<String>>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().and_then(Option::as_ref).serialize(serializer)
    }

    #[expect(clippy::option_option, reason = "absent and null mean different things in a patch")]
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
        Option::<String>::deserialize(deserializer).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RolloutState::{Failed, Queuing, Running, Succeeded};

    #[test]
    fn only_the_four_legal_moves_are_taken() {
        let legal = [(Queuing, Running), (Queuing, Failed), (Running, Succeeded), (Running, Failed)];
        for from in RolloutState::ALL {
            for to in RolloutState::ALL {
                let expected = if legal.contains(&(from, to)) { Ok(to) } else { Err(InvalidTransition { from, to }) };
                assert_eq!(from.advance(to), expected, "{from} -> {to}");
            }
        }
        assert_eq!(Succeeded.advance(Running).unwrap_err().to_string(), "cannot transition succeeded -> running");
    }

    #[test]
    fn a_patch_tells_absent_from_null() {
        let patch: StatusPatch = serde_json::from_str(r#"{"error_message":null,"state":"failed"}"#).unwrap();
        assert_eq!(patch.error_message, Some(None));
        assert_eq!(patch.k8s_job_name, None);
        assert_eq!(serde_json::to_string(&patch).unwrap(), r#"{"state":"failed","error_message":null}"#);
        assert!(serde_json::from_str::<StatusPatch>(r#"{"sate":"failed"}"#).is_err());
    }

    #[test]
    fn our_own_config_keys_stay_off_the_wire_unless_set() {
        let config: RolloutConfig = serde_json::from_str(r#"{"local":{"agent_class":"m:C"}}"#).unwrap();
        assert_eq!(
            serde_json::to_string(&config).unwrap(),
            r#"{"timeout_seconds":3600,"local":{"agent_class":"m:C","env_map":{}},"k8s":null}"#
        );
    }
}
