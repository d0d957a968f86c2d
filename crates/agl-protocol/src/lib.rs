//! What the parties of a training run say to each other.
//!
//! Everything here is plain data: what a rollout is and which moves its life allows, what an event holds,
//! what the trainer gets of a model call (a triplet), where model servers are, and which path serves what.
//! No I/O, no clock, no async: the server, the client, the controller and the trainer all speak in these types.
//!
//! The wire format is that of `agentlightning` 1.0.2; fields of our own are left out of JSON unless they are set.

mod event;
mod json;
mod model_server;
mod proxy;
pub mod pyjson;
mod rollout;
pub mod routes;
mod triplet;

pub use event::{Event, EventCreate, EventKind, RewardError, reward_value};
pub use json::RawJson;
pub use model_server::ModelServer;
pub use proxy::{Mode, PauseRequest, ProxyState};
pub use rollout::{
    DEFAULT_ATTEMPT_ID, InvalidTransition, K8sConfig, LocalConfig, Rollout, RolloutConfig, RolloutCreate,
    RolloutDetail, RolloutPatch, RolloutState, RolloutStatus, StatusPatch, TerminalPage, TerminalRollout,
};
pub use triplet::{TripletCall, TripletError};
