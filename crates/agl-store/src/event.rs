//! An event as the store keeps it.

use std::sync::Arc;

use agl_protocol::{EventKind, RawJson};

use crate::call::{PostedCall, Routes};
use crate::{CallTokens, ModelCall};

/// One event of one attempt. Its place in the list is its identity.
#[derive(Clone, Debug)]
pub struct Event {
    /// `model_request`, `reward`, or any word of the user's.
    pub event_type: String,
    /// The rollout it belongs to.
    pub rollout_id: Arc<str>,
    /// The attempt it belongs to.
    pub attempt_id: Arc<str>,
    /// Unix seconds at which the store took it.
    pub timestamp: f64,
    /// What happened.
    pub data: EventData,
}

/// What happened, in the form that makes its views cheap.
#[derive(Clone, Debug)]
pub enum EventData {
    /// A JSON object that the store has no need to understand.
    Json(RawJson),
    /// A model call that somebody posted as JSON, with what the triplet view shows of it.
    PostedCall(Box<PostedCall>),
    /// A model call that the gateway recorded.
    Call(Box<ModelCall>),
}

impl EventData {
    /// The data of an event that was posted as JSON. Any object will do: what does not look like a model call
    /// is kept all the same, and shows no tokens.
    pub fn posted(event_type: &str, data: RawJson) -> Self {
        match EventKind::of(event_type) {
            EventKind::ModelRequest => Self::PostedCall(Box::new(PostedCall::read(data))),
            EventKind::Reward | EventKind::Other => Self::Json(data),
        }
    }

    /// The tokens, if this is a model call.
    pub fn tokens(&self) -> Option<&CallTokens> {
        match self {
            Self::Json(_) => None,
            Self::PostedCall(call) => Some(&call.tokens),
            Self::Call(call) => Some(&call.tokens),
        }
    }

    /// Whether this is a model call that trains: one that sampled tokens and did not break off.
    pub(crate) fn has_answer(&self) -> bool {
        let whole = !matches!(self, Self::Call(call) if !call.status.is_whole());
        whole && self.tokens().is_some_and(CallTokens::has_response)
    }

    /// The expert routes, if this is a model call.
    pub(crate) fn routes(&self) -> Option<&Routes> {
        match self {
            Self::Json(_) => None,
            Self::PostedCall(call) => Some(&call.routes),
            Self::Call(call) => Some(&call.routes),
        }
    }

    /// Gives up the expert routes: a later call of the same trajectory holds them all.
    pub(crate) fn supersede_routes(&mut self) {
        match self {
            Self::Json(_) => {}
            Self::PostedCall(call) => call.supersede_routes(),
            Self::Call(call) => call.routes.supersede(),
        }
    }
}
