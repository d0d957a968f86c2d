//! The data plane: shape, route, forward, retry and capture model calls; pause and drain.
//!
//! A call takes one path: [`shape`](shape::Shaper) edits the agent's request, [`route`] picks the model server,
//! [`upstream`] sends it and retries, [`capture`] takes the tokens out of the answer, and [`Gateway`](proxy::Gateway)
//! ties these together behind the [`gate`], which pauses and counts. Everything but the last two is a pure function
//! over bytes. The answer reaches the agent byte for byte.

pub mod capture;
pub mod gate;
pub mod proxy;
pub mod retry;
pub mod route;
mod scan;
pub mod settings;
pub mod shape;
pub mod upstream;

pub use gate::{Gate, GateState};
pub use proxy::{Answer, Call, CallError, Gateway, UpstreamPath};
pub use settings::{GatewaySettings, RetrySettings};
