//! The data plane: shape, route, forward, retry and capture model calls; pause and drain.
//!
//! A call takes one path: [`shape`](shape::Shaper) edits the agent's request, [`route`] picks the model server,
//! [`upstream`] sends it and [`retry`] says when to try again, [`capture`] takes the tokens out of the answer, or
//! [`relay`] out of a stream that passes, and [`Gateway`] ties these together behind the [`gate`], which
//! pauses and counts. What decides is pure: functions over bytes. The answer reaches the agent byte for byte.

mod assemble;
pub mod capture;
pub mod gate;
pub mod proxy;
mod record;
pub mod relay;
pub mod retry;
pub mod route;
mod scan;
pub mod settings;
pub mod shape;
mod sse;
pub mod upstream;

pub use gate::{Gate, GateState};
pub use proxy::{Answer, AnswerBody, Call, CallError, Gateway, UpstreamPath};
pub use relay::{Relay, RelayError};
pub use settings::{GatewaySettings, RetrySettings};
