//! The local controller with real agents: processes of the system, a gateway on a socket.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so by panicking")]

mod agents;
mod bench;
mod gateway;
mod gateway_trouble;
mod left_behind;
mod real_gateway;
mod speed;
