//! What can be asked of the state, what comes of it, and why it may be refused.

use std::sync::Arc;

use agl_protocol::{InvalidTransition, RawJson, StatusPatch};

use crate::{Event, EventData, ModelServer, Rollout};

/// A rollout to create, with its id and all defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRollout {
    /// The caller's id, or one made for it.
    pub rollout_id: String,
    /// The task.
    pub input: RawJson,
    /// Train or validation.
    pub is_train: bool,
    /// How to run it.
    pub config: RawJson,
    /// The trainer's own notes.
    pub metadata: RawJson,
}

/// An event to append to an attempt.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// The rollout it belongs to.
    pub rollout_id: String,
    /// The attempt it belongs to.
    pub attempt_id: String,
    /// `model_request`, `reward`, or any word of the user's.
    pub event_type: String,
    /// What happened.
    pub data: EventData,
}

/// Every change that the state knows.
#[derive(Clone, Debug)]
pub enum Command {
    /// Create rollouts, all or none. One whose id exists is answered as it is, not created again.
    Create(Vec<NewRollout>),
    /// Change the status of a rollout.
    Patch {
        /// Which one.
        rollout_id: String,
        /// The change.
        patch: StatusPatch,
    },
    /// Forget a rollout and its events. One that does not exist is already forgotten.
    Delete {
        /// Which one.
        rollout_id: String,
    },
    /// Append an event.
    Record(NewEvent),
    /// Add model servers, or replace those of the same model and endpoint.
    Register(Vec<ModelServer>),
    /// Forget all model servers.
    ForgetServers,
}

/// What came of a command.
#[derive(Clone, Debug)]
pub enum Effect {
    /// The rollouts of the batch in its order, found or made.
    Created(Vec<Arc<Rollout>>),
    /// The rollout after the patch.
    Patched(Arc<Rollout>),
    /// The rollout is gone; whether it was there.
    Deleted(bool),
    /// The event as it is kept.
    Recorded(Arc<Event>),
    /// The model servers are as asked.
    ServersChanged,
}

/// Why a command was refused. The state is then as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such rollout.
    #[error("Rollout not found: {0}")]
    NotFound(String),
    /// The life of a rollout has no such move.
    #[error("Rollout {rollout_id}: {transition}")]
    InvalidTransition {
        /// Which rollout.
        rollout_id: String,
        /// From where to where.
        transition: InvalidTransition,
    },
    /// A model call has expert routes, which only make sense beside token ids, but its ids or those of the call
    /// before it are no lists.
    #[error(
        "routed_experts can't be kept: `response.prompt_token_ids` and `token_ids` of this model call and of the one before it must be lists"
    )]
    RoutesWithoutTokens,
}
