//! The state machine of rollouts, events and model servers, and the feed that wakes whoever waits on it.
//!
//! [`State`] is plain data with one way to change it: [`State::apply`] takes a [`Command`] and the time, and answers an
//! [`Effect`] or a [`Refusal`]. No clock, no randomness, no I/O: the same commands always make the same state, which is
//! what lets a durable log rebuild it. [`Store`] is the shared handle: one writer, many readers, waiters on the feed.

mod call;
mod command;
mod event;
mod feed;
mod model;
mod rollout;
mod state;
mod store;
mod view;

pub use call::{CallStatus, CallTokens, ModelCall, Routes, TokenIds};
pub use command::{Command, Effect, NewEvent, NewRollout, Refusal};
pub use event::{Event, EventData};
pub use feed::{FeedMarks, StateSet};
pub use model::ModelServer;
pub use rollout::Rollout;
pub use state::{State, TerminalItem, TerminalPage};
pub use store::Store;
pub use view::{EventView, write_events};
